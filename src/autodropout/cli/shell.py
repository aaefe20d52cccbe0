"""What every command shares: how errors and Ctrl-C end it, how a study is named, what the shell can complete."""

import json
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

from autodropout.search.driver import ChildError
from autodropout.search.errors import LedgerError, NoSuchStudy
from autodropout.search.ledger import Ledger
from autodropout.search.reading import Reader
from autodropout.search.states import State
from autodropout.search.url import Address, parse_url

USERS = (ValueError, LedgerError, ChildError, ModuleNotFoundError, OSError)
"""What a user can mend: a mistake of theirs, a file, a database, a package that is not installed, their child."""

_UsageError: Any = typer.BadParameter.__mro__[1]  # click's, wherever typer keeps it


class Commands(TyperGroup):
    """Errors of users are told in a line, without a traceback, unless --debug asks for one; no password is shown."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # `autodropout best | head`: typer knows
        except _UsageError as error:  # may repeat an argument
            error.message = masked(error.message)
            raise
        except USERS as error:
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            typer.echo(f"error: {masked(_said(error))}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _said(error: Exception) -> str:
    """Its message; of the system's, without the number."""
    named = isinstance(error, OSError) and error.filename is not None and error.strerror is not None
    return f"{error.filename}: {error.strerror}" if named else str(error)  # type: ignore[attr-defined]


def masked(text: str) -> str:
    """The text without the passwords of the URLs in it."""
    text = re.sub(r"(\w://[^\s:/@]*):[^\s@]*@", r"\1:***@", text)
    return re.sub(r"([?&]\w*password=)[^\s&#]*", r"\1***", text)


def one_of(names: Callable[[], tuple[str, ...]]) -> Callable[[str | None], str | None]:
    """The callback of an option that must be one of these names."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in names():
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names())}")
        return value

    return check


@dataclass(frozen=True, slots=True)
class Opened:
    """A study, to be read, and where it is."""

    reader: Reader
    url: str  # with its password
    address: Address  # without


@contextmanager
def opened(study: str | None, storage: str) -> Iterator[Opened]:
    """The study that STUDY and --storage name: NAME, URL or URL#NAME; without a name the ledger's only one."""
    url, name = storage, study
    if study is not None and "://" in study:
        url, _, name = study.partition("#")
    address = parse_url(url)
    with Ledger(url) as ledger:
        if not name:
            names = [info.name for info in ledger.studies()]
            if len(names) != 1:
                there = f"there are {', '.join(names)}: name one" if names else "there is no study yet"
                raise NoSuchStudy(f"{address}: {there}")
            name = names[0]
        yield Opened(ledger.read(name), url, address)


def study_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the studies of the ledger."""
    try:
        with Ledger(ctx.params.get("storage") or "") as ledger:
            return [info.name for info in ledger.studies() if info.name.startswith(incomplete)]
    except LedgerError:
        return []


def study_facts(found: Opened) -> dict[str, Any]:
    """A study in numbers, as JSON data."""
    from autodropout.report.history import read_history

    reader, history = found.reader, read_history(found.reader)
    info, best, owner, updates = reader.info, reader.best(), reader.owner(), reader.updates()
    wanted = info.attributes.get("trials")  # the user's data, unless `search` wrote it
    return {
        "study": info.name,
        "storage": str(found.address),
        "proposer": info.proposer,
        "seed": info.seed,
        "capacity": info.capacity,
        "minibatch": info.minibatch,
        "scored": len(history.scored),
        "wanted": wanted if isinstance(wanted, int) else None,
        "trials": {state.name.lower(): history.count(state) for state in State},
        "updates": len(updates),
        "best": best and {"trial": best.number, "value": best.value},
        "per_minute": history.per_minute(),
        "owner": owner and {"host": owner.host, "pid": owner.pid, "since": owner.since.isoformat()},
        "created": info.created and info.created.isoformat(),
    }


def print_json(data: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(data, indent=2))
