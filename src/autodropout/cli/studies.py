"""How the command line finds a study, and a study in numbers. Imported when a command runs: it needs a database."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autodropout.cli.options import STORAGE
from autodropout.search.errors import NoSuchStudy
from autodropout.search.ledger import Ledger
from autodropout.search.reading import Reader
from autodropout.search.records import Ended, StudyInfo
from autodropout.search.states import SCORED, State
from autodropout.search.url import Address, parse_url


@dataclass(frozen=True, slots=True)
class Opened:
    """A study, to be read, and where it is."""

    reader: Reader
    url: str  # with its password
    address: Address  # without


@contextmanager
def opened(study: str | None, storage: str) -> Iterator[Opened]:
    """The study that STUDY and --storage name: NAME, URL or URL#NAME; without a name the ledger's only search."""
    url, name = storage, study
    if study is not None and "://" in study:
        url, _, name = study.partition("#")
    address = parse_url(url)
    with Ledger(url) as ledger:
        if not name:
            studies = list(ledger.studies())
            searches = [info for info in studies if "confirms" not in info.attributes]  # others are by `ad.confirm`
            names = [info.name for info in searches or studies]
            if len(names) != 1:
                there = f"there are {', '.join(names)}: name one" if names else "there is no study yet"
                raise NoSuchStudy(f"{address}: {there}")
            name = names[0]
        yield Opened(ledger.read(name), url, address)


@dataclass(frozen=True, slots=True)
class Begun:
    """A study that exists, before a command goes on with it."""

    info: StudyInfo
    scored: int


def existing(name: str, storage: str) -> Begun | None:
    """The study of this name, if there is one."""
    try:
        with Ledger(storage) as ledger:
            reader = ledger.read(name)
            return Begun(reader.info, _scored(reader.counts()))
    except NoSuchStudy:
        return None


def ended_in_words(facts: Mapping[str, Any]) -> str:
    """Of what kind the trials are that have ended, in brackets; nothing where all have a score."""
    stopped, diverged = facts["stopped_early"], facts["diverged"]
    ended = Ended(facts["scored"] - stopped - diverged, stopped, diverged)
    return f" ({ended})" if stopped or diverged else ""


def best_in_words(best: Mapping[str, Any]) -> str:
    """The best trial of a study's facts."""
    nothing = ", whose policy drops nothing: no dropout was best" if best["drops_nothing"] else ""
    return f"{best['value']:.6g}, by trial {best['trial']}{nothing}"


def command_for(what: str, name: str, storage: str) -> str:
    """A command for this study, without a password."""
    where = "" if storage == STORAGE else f" --storage {shlex.quote(str(parse_url(storage)))}"
    return f"autodropout {what} {shlex.quote(name)}{where}"


def names_in(storage: str) -> list[str]:
    """The studies of a ledger."""
    with Ledger(storage) as ledger:
        return [info.name for info in ledger.studies()]


def study_facts(found: Opened) -> dict[str, Any]:
    """A study in numbers, as JSON data."""
    reader = found.reader
    info, counts, ended, best, owner = reader.info, reader.counts(), reader.ended(), reader.best(), reader.owner()
    wanted = info.attributes.get("trials")  # `ad.search` wrote it; who else made the study may have used the name
    return {
        "study": info.name,
        "storage": str(found.address),
        "space": info.space.describe(),
        "proposer": info.proposer,
        "seed": info.seed,
        "capacity": info.capacity,
        "minibatch": info.minibatch,
        "scored": ended.total,  # all that `wanted` counts: the next two among them
        "stopped_early": ended.stopped,
        "diverged": ended.diverged,
        "wanted": wanted if isinstance(wanted, int) else None,
        "trials": {state.name.lower(): count for state, count in counts.items()},
        "updates": len(reader.updates()),
        "best": best and {"trial": best.number, "value": best.value, "drops_nothing": info.policy(best).drops_nothing},
        "per_minute": reader.per_minute(),
        "owner": owner and {"host": owner.host, "pid": owner.pid, "since": owner.since.isoformat()},
        "created": info.created and info.created.isoformat(),
    }


def _scored(counts: Mapping[State, int]) -> int:
    return sum(counts[state] for state in SCORED)
