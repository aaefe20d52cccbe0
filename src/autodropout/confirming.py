"""`ad.confirm`: the best policies of a search once more, with new seeds, trained by the user's own child.

    found = ad.confirm(study, child, top=10, seeds=5)     # the same call again resumes; more `seeds` go on
    print(found)                                          # each policy's mean, and its difference from no policy
    found.policy.save("mine.json")                        # the best; None where none is better than no policy

The best of many scores is partly luck, so whoever keeps the best of a search keeps some luck. Here every policy, and no
policy at all, is trained with the same seeds, which the search did not use. At several rates, that is tuning, too.

The trainings are a study of their own in the same ledger, one for each rate. Its trials are given and not proposed,
seeds outermost: cut short, all policies have almost equally many. One is known again by its tokens and its seed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Self

from autodropout.recipes.comparison import Row, Variant
from autodropout.recipes.confirmation import NONE, Confirmation, nothing_to_confirm
from autodropout.running import Begun, Running, Watch, check_counts, policies_of, unwatched
from autodropout.search.jobs import Child
from autodropout.search.protocols import Proposal, Scored
from autodropout.search.records import StudyInfo, trial_seed
from autodropout.search.states import SCORED, State
from autodropout.search.study import Study, StudyTrial, unscored
from autodropout.search.writing import Writer
from autodropout.spaces import Space
from autodropout.training.run import Scores

GIVEN = "given"  # who proposes: nobody
MINIBATCH = 16  # trials that nothing is learned from

Pair = tuple[tuple[int, ...], int]
"""Tokens and seed of a training."""


def confirm(
    study: Study,
    child: Child,
    *,
    top: int = 10,
    seeds: int = 5,
    rates: Sequence[float] | None = None,
    name: str | None = None,
    workers: int | None = None,
    engine: str = "local",
    deadline: float | None = None,
    attempts: int = 3,
    job: int | None = None,
    cpus_per_child: float = 1.0,
    gpus_per_child: float = 0.0,
    watch: Watch = unwatched,
) -> Confirmation:
    """Train the best policies of a study again, with new seeds, beside no policy at all.

    Killed or interrupted, the same call goes on where it was; with more `seeds`, or after more trials of the search,
    what is missing is trained, and what failed is tried again.

    Args:
        study: what `ad.search` returned, or `ad.Study(storage, name)`.
        child: as for `ad.search`: `child(policy, seed, report) -> score`. No policy at all is a policy that drops
            nothing.
        top: how many of the best policies (`study.top`: no two do the same, none drops nothing).
        seeds: trainings of each; the same seeds for all of them, and none that the search used.
        rates: drop rates to train each policy at, written into what the child gets as the search's is. None: the
            search's own.
        name: of the study that the trainings are, but for the rate; None: "STUDY, confirmed". As a search, it is found
            again by its name even if the child has changed.
        workers, engine, deadline, attempts, job, cpus_per_child, gpus_per_child, watch: as for `ad.search`.

    Raises:
        ValueError: there is nothing to confirm, or a number makes no sense.
    """
    check_counts(top=top, seeds=seeds)
    running = Running.checked(
        child,
        engine=engine,
        workers=workers,
        job=job,
        deadline=deadline,
        attempts=attempts,
        cpus_per_child=cpus_per_child,
        gpus_per_child=gpus_per_child,
        watch=watch,
    )
    best = study.top(top)
    if not best:
        raise unscored(study.reader) if study.reader.best() is None else nothing_to_confirm(study.name)
    searched_at = study.info.drop_rate
    at = [searched_at] if rates is None else _checked_rates(rates)
    rows: list[Row] = []
    trials: dict[str, StudyTrial] = {}
    rate_of: dict[str, float | None] = {}
    for rate in at:
        names = {t.record.tokens: f"trial {t.number}" + (f" at {rate:g}" if len(at) > 1 else "") for t in best}
        trials |= dict(zip(names.values(), best, strict=True))
        rate_of |= dict.fromkeys(names.values(), rate)
        if rate == at[0]:  # at no rate does it drop anything
            names = {(0,) * len(study.info.space.tokens): NONE} | names
        given = Given(study, names, seeds, rate)
        info = given.info(f"{study.name}, confirmed" if name is None else name, running.busy)
        progress = running.drive(study.storage, info, given.begin)
        rows += given.rows(Study(study.storage, info.name))
        if progress.scored < progress.wanted:  # Ctrl-C
            break
    return Confirmation(rows, trials, rate_of, as_searched=at == [searched_at])


@dataclass(frozen=True, slots=True)
class Given:
    """What is trained at one rate: policies, by their names in a table, each with the same seeds."""

    study: Study
    names: Mapping[tuple[int, ...], str]
    seeds: int
    rate: float | None  # None: the child knows

    def info(self, name: str, busy: int) -> StudyInfo:
        """The study that the trainings are."""
        known = self.study.info
        wanted = len(self.names) * self.seeds
        attributes: dict[str, Any] = {"confirms": known.name, "trials": wanted}
        if self.rate is not None:
            name, attributes["drop_rate"] = f"{name} at {self.rate:g}", self.rate
        capacity = max(wanted, busy)
        return StudyInfo(name, known.space, GIVEN, known.seed, capacity, MINIBATCH, known.floor, attributes=attributes)

    def pairs(self) -> Iterator[Pair]:
        """Tokens and seed of each training, without end: those beyond `seeds` stand in for what fails."""
        for number in count(1):  # trials are numbered from 0: these seeds are no search's
            for tokens in self.names:
                yield tokens, trial_seed(self.study.info.seed, -number)

    def begin(self, owned: Writer) -> Begun:
        there = [trial for trial in owned.trials() if trial.state is not State.FAILED]
        known = {(trial.tokens, trial.seed) for trial in there}
        missing = sum(pair not in known for pair in islice(self.pairs(), len(self.names) * self.seeds))
        fresh = (pair for pair in self.pairs() if pair not in known)
        return Begun(InOrder(fresh, len(owned.updates())), policies_of(owned.info), len(there) + missing)

    def rows(self, trained: Study) -> list[Row]:
        """Of all that was asked for and has come to an end."""
        ended = {(t.record.tokens, t.record.seed): t for t in trained.trials if t.record.state in SCORED}
        rows = []
        for pair in islice(self.pairs(), len(self.names) * self.seeds):
            if (trial := ended.get(pair)) is not None:
                name = self.names[pair[0]]
                variant = Variant(name, None, 0.0 if name == NONE else self.rate or 0.0)  # as much as a table shows
                rows.append(Row(variant, pair[1], None if trial.value is None else Scores(trial.value, {})))
        return rows


class InOrder:
    """A proposer that proposes what is given, and learns nothing."""

    def __init__(self, pairs: Iterator[Pair], version: int) -> None:
        self.version = version
        self._pairs = pairs

    def propose(self, numbers: Sequence[int]) -> list[Proposal]:
        return [Proposal(tokens, None, self.version, seed) for tokens, seed in islice(self._pairs, len(numbers))]

    def update(self, batch: Sequence[Scored]) -> dict[str, float]:
        self.version += 1
        return {}

    def save(self) -> bytes:
        return GIVEN.encode()

    @classmethod
    def load(cls, space: Space, seed: int, state: bytes) -> Self:
        raise ValueError("trials that are given are not loaded: `ad.confirm` knows them")


def _checked_rates(rates: Sequence[float]) -> list[float | None]:
    for rate in rates:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
            raise ValueError(f"a rate must be a number in (0, 1], got {rate!r}")
    if not rates or len({f"{rate:g}" for rate in rates}) < len(rates):
        raise ValueError(f"rates are one or more, and no two the same, got {rates!r}")
    return [float(rate) for rate in rates]
