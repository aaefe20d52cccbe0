"""`ad.confirm`: the best policies of a search once more, with new seeds, trained by the user's own child.

    found = ad.confirm(study, child, top=10, seeds=5)     # the same call again resumes; more `seeds` go on
    print(found)                                          # each policy's mean, and its difference from no policy
    found.policy.save("mine.json")                        # the best; None where none is better than no policy

The best of many scores is partly luck, so whoever keeps the best of a search keeps some luck. Here every policy, and no
policy at all, is trained with the same seeds, which the search did not use. At several rates, that is tuning, too.

The trainings are a study of their own in the same ledger, whose trials are given and not proposed: trial k is variant
k mod V under seed k div V, so that all variants have almost equally many when it is cut short.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from autodropout.recipes.comparison import Row, Variant
from autodropout.recipes.confirmation import NONE, Confirmation, nothing_to_confirm
from autodropout.running import Running, Watch, check_counts, unwatched
from autodropout.search.errors import NoSuchStudy
from autodropout.search.jobs import Child
from autodropout.search.protocols import Proposal, Proposer, Scored
from autodropout.search.records import MAX_NAME, StudyInfo, Trial, trial_seed
from autodropout.search.states import SCORED
from autodropout.search.study import Study, StudyTrial, unscored
from autodropout.search.writing import Writer
from autodropout.spaces import Provenance, Space
from autodropout.training.run import Scores

GIVEN = "given"  # who proposes: nobody


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

    Killed or interrupted, the same call goes on where it was; with more `seeds` it trains those that are missing.

    Args:
        study: what `ad.search` returned, or `ad.Study(storage, name)`.
        child: as for `ad.search`: `child(policy, seed, report) -> score`. No policy at all is a policy that drops
            nothing.
        top: how many of the best policies (`study.top`: no two do the same, none drops nothing).
        seeds: trainings of each; the same seeds for all of them, and none that the search used.
        rates: drop rates to train each policy at, written into what the child gets as the search's is. None: the
            search's own.
        name: of the study that the trainings are; None: "STUDY, confirmed", with the rates that were asked for.
        workers, engine, deadline, attempts, job, cpus_per_child, gpus_per_child, watch: as for `ad.search`.

    Raises:
        ValueError: there is nothing to confirm; or a study of that name has other policies, rates or seeds.
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
    given = Given.of(study, top, rates)
    info = StudyInfo(
        _name(study.name, rates) if name is None else name,
        study.info.space,
        GIVEN,
        study.info.seed,
        capacity=max(2 * len(given.variants), running.busy),
        minibatch=len(given.variants),
        floor=study.info.floor,
        attributes={"confirms": study.name, "variants": given.told(), "trials": seeds * len(given.variants)},
    )
    _check_same(study, info)
    running.drive(study.storage, info, seeds * len(given.variants), given.begin)
    return given.confirmation(Study(study.storage, info.name))


@dataclass(frozen=True, slots=True)
class Given:
    """What is trained: variants in their order, no policy first."""

    space: Space
    seed: int
    variants: Sequence[tuple[str, tuple[int, ...], float | None]]  # name, tokens, rate
    trials: dict[str, StudyTrial]  # of the study that is confirmed, by the names of their variants
    as_searched: bool

    @classmethod
    def of(cls, study: Study, top: int, rates: Sequence[float] | None) -> Self:
        best = study.top(top)
        if not best:
            raise unscored(study.reader) if study.reader.best() is None else nothing_to_confirm(study.name)
        at = [study.info.drop_rate] if rates is None else [_checked_rate(rate) for rate in rates]
        if not at or len(set(at)) < len(at):
            raise ValueError(f"rates are one or more, and no two the same, got {rates!r}")
        several = len(at) > 1
        trials = {
            f"trial {trial.number}" + (f" at {rate:g}" if several else ""): (trial, rate)
            for trial in best
            for rate in at
        }
        nothing = (0,) * len(study.info.space.tokens)
        variants = [(NONE, nothing, at[0]), *((name, t.record.tokens, rate) for name, (t, rate) in trials.items())]
        as_searched = at == [study.info.drop_rate]
        return cls(
            study.info.space, study.info.seed, variants, {n: trial for n, (trial, _) in trials.items()}, as_searched
        )

    def told(self) -> list[list[Any]]:
        """As JSON data."""
        return [[name, list(tokens), rate] for name, tokens, rate in self.variants]

    def begin(self, owned: Writer) -> tuple[Proposer, Callable[[Trial], str]]:
        return InOrder(self, len(owned.updates())), self._policy

    def _policy(self, trial: Trial) -> str:
        _, tokens, rate = self.variants[trial.number % len(self.variants)]
        return self.space.decode(tokens, None if rate is None else Provenance(rate=rate)).to_json()

    def confirmation(self, trained: Study) -> Confirmation:
        """What came of it. A child that crashed in every attempt has no row."""
        shown = [Variant(name, None, rate or 0.0) for name, _, rate in self.variants]  # a name and a rate, for a table
        rows = [
            Row(
                shown[trial.number % len(shown)],
                trial.record.seed,
                None if trial.value is None else Scores(trial.value, {}),
            )
            for trial in trained.trials
            if trial.record.state in SCORED
        ]
        rates = {name: rate for name, _, rate in self.variants if name != NONE}
        return Confirmation(rows, self.trials, rates, self.as_searched)


class InOrder:
    """A proposer that proposes what is given, and learns nothing."""

    def __init__(self, given: Given, version: int) -> None:
        self.version = version
        self._given = given

    def propose(self, numbers: Sequence[int]) -> list[Proposal]:
        given, count = self._given, len(self._given.variants)
        # Numbers below zero are no trial's of any search: their seeds are new.
        return [
            Proposal(given.variants[n % count][1], None, self.version, trial_seed(given.seed, -1 - n // count))
            for n in numbers
        ]

    def update(self, batch: Sequence[Scored]) -> dict[str, float]:
        self.version += 1
        return {}

    def save(self) -> bytes:
        return GIVEN.encode()

    @classmethod
    def load(cls, space: Space, seed: int, state: bytes) -> Self:
        raise ValueError("trials that are given are not loaded: `ad.confirm` knows them")


def _checked_rate(rate: float) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
        raise ValueError(f"a rate must be a number in (0, 1], got {rate!r}")
    return float(rate)


def _name(study: str, rates: Sequence[float] | None) -> str:
    at = "" if rates is None else f" at {', '.join(f'{rate:g}' for rate in rates)}"
    return f"{study[: MAX_NAME // 2]}, confirmed{at}"


def _check_same(study: Study, info: StudyInfo) -> None:
    """That a study of this name, if there is one, has the same variants."""
    try:
        known = Study(study.storage, info.name).info
    except NoSuchStudy:
        return
    if known.attributes.get("variants") != info.attributes["variants"]:
        raise ValueError(
            f"study {info.name!r} has trained other policies than those of study {study.name!r} that are asked for "
            "now: take another name (name=)"
        )
