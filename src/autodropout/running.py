"""How a study's children are run: what `ad.search` and `ad.confirm` ask of an engine and of the driver alike.

It joins ledger, engine and driver of `search`; who proposes, and which policy a trial is, the two say themselves.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, Self

from autodropout.search.driver import Driver, Progress
from autodropout.search.engines import check_engine, make_engine
from autodropout.search.gpus import visible_gpus
from autodropout.search.halving import Halving
from autodropout.search.interrupts import interruptible
from autodropout.search.jobs import Child
from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposer
from autodropout.search.records import StudyInfo, Trial
from autodropout.search.writing import Writer
from autodropout.spaces import Provenance

Watch = Callable[[Progress], None]


def unwatched(progress: Progress) -> None:
    """Nobody looks."""


class Begun(NamedTuple):
    """What a study is driven with, once it is owned."""

    proposer: Proposer
    policy_of: Callable[[Trial], str]  # as JSON
    trials: int  # that shall have a score, in all


@dataclass(frozen=True, slots=True)
class Running:
    """Where children run, how many at a time, and what becomes of those that fail."""

    child: Child
    engine: str
    workers: int | None
    job: int
    deadline: float | None
    attempts: int
    cpus_per_child: float
    gpus_per_child: float
    watch: Watch

    @classmethod
    def checked(
        cls,
        child: Child,
        *,
        engine: str,
        workers: int | None,
        job: int | None,
        deadline: float | None,
        attempts: int,
        cpus_per_child: float,
        gpus_per_child: float,
        watch: Watch,
    ) -> Self:
        """As a user has asked for; ValueError, naming what is wrong, before anything is begun."""
        check_engine(engine)
        check_counts(attempts=attempts)
        check_counts(**{what: count for what, count in (("workers", workers), ("job", job)) if count is not None})
        if not callable(watch):
            raise ValueError(f"watch is a function of the progress, got {watch!r}")
        if job not in (None, 1) and callable(child) and not hasattr(child, "train_many"):
            raise ValueError(
                f"job={job} is for a child that offers train_many, to train so many at once; {child!r} does not"
            )
        if job is None:
            job = crowd_of(child, engine, gpus_per_child)
            if job > 1:
                workers = workers or (len(visible_gpus()) if engine == "local" else None)
        return cls(child, engine, workers, job, deadline, attempts, cpus_per_child, gpus_per_child, watch)

    @property
    def busy(self) -> int:
        """How many trials must be under way for every worker to have something to do, and every crowd to be full."""
        return self.job * (self.workers or 1)

    def drive(
        self,
        storage: str,
        info: StudyInfo,
        begin: Callable[[Writer], Begun],
        halving: Halving | None = None,
        before: Callable[[StudyInfo, Progress], None] = lambda info, progress: None,
    ) -> Progress:
        """Run the study until all its trials have a score, or Ctrl-C; returns where it stands then.

        `before` sees how it stands when it begins. The engine is made before the study, because it checks the child,
        and closed before the lease ends.
        """
        with (
            Ledger(storage) as ledger,
            closing(
                make_engine(
                    self.engine,
                    self.child,
                    workers=self.workers,
                    most=math.ceil(info.capacity / self.job),
                    deadline=self.deadline,
                    judge=halving,
                    cpus_per_child=self.cpus_per_child,
                    gpus_per_child=self.gpus_per_child,
                )
            ) as engine,
            ledger.drive(info) as owned,
            closing(engine),
        ):
            begun = begin(owned)
            driver = Driver(
                owned,
                begun.proposer,
                engine,
                trials=begun.trials,
                policy_of=begun.policy_of,
                attempts=self.attempts,
                job=self.job,
                halving=halving,
                watch=self.watch,
            )
            before(owned.info, driver.progress)
            with interruptible(driver):
                driver.run()
            return driver.progress


def policies_of(info: StudyInfo) -> Callable[[Trial], str]:
    """A study's policies as its children get them: they know its rate, and nothing else of where they come from."""
    known = None if info.drop_rate is None else Provenance(rate=info.drop_rate)
    return lambda trial: info.space.decode(trial.tokens, known).to_json()


def check_counts(**counts: int) -> None:
    """Raise ValueError for the first that is no positive integer."""
    for what, count in counts.items():
        if type(count) is not int or count < 1:
            raise ValueError(f"{what} must be a positive integer, got {count!r}")


def crowd_of(child: Child, engine: str, gpus_per_child: float = 0.0) -> int:
    """How many children a job trains at once, unless told otherwise: as many as the child likes, where there is a GPU.

    The driver's own process may have no GPU in sight on a cluster; there it is asked for.
    """
    likes = getattr(child, "crowd", 1)
    if type(likes) is not int or likes < 1:
        raise ValueError(f"a child's crowd must be a positive integer, got {likes!r}")
    there = bool(visible_gpus()) if engine == "local" else gpus_per_child > 0
    return likes if there else 1
