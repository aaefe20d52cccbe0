"""`ad.search`: learn a policy for a space with the user's own training as the judge; and the study it leaves.

    study = ad.search(space, child, trials=512, workers=8)     # the same call again resumes
    study.best.policy.save("mine.json")

It stands above the packages because it joins them: a proposer of `controller`; ledger, driver and engine of `search`.
"""

import logging
import math
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from autodropout.controller import PROPOSERS, load_proposer, make_proposer
from autodropout.search.driver import Driver, Progress
from autodropout.search.engines import check_engine, make_engine
from autodropout.search.gpus import visible_gpus
from autodropout.search.halving import Halving
from autodropout.search.interrupts import interruptible
from autodropout.search.jobs import Child
from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposer
from autodropout.search.reading import Reader
from autodropout.search.records import Failure, StudyInfo, Trial
from autodropout.search.states import PENDING, SCORED, WORDS, State
from autodropout.search.writing import Writer
from autodropout.spaces import ConvSpace, Policy, Space, TransformerSpace

log = logging.getLogger("autodropout")


def search(
    space: Space,
    child: Child,
    trials: int,
    *,
    workers: int | None = None,
    capacity: int = 16,
    minibatch: int = 16,
    storage: str = "sqlite:///autodropout.db",
    name: str = "study",
    engine: str = "local",
    proposer: str = "controller",
    seed: int = 0,
    floor: float = 0.0,
    deadline: float | None = None,
    attempts: int = 3,
    halving: Halving | None = None,
    job: int | None = None,
    cpus_per_child: float = 1.0,
    gpus_per_child: float = 0.0,
    attributes: Mapping[str, Any] | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> "Study":
    """Search for a policy. Killed or interrupted at any moment, the same call goes on where it was.

    Ctrl-C once ends the search when the children under way have finished, and the study is returned as it is then;
    twice, at once, by KeyboardInterrupt; so do SIGTERM and a terminal that is closed, by SystemExit. All can be
    resumed. A child that raises before it gave any score ends the search with its traceback, as `ChildError`; the same
    call with a corrected child goes on.

    Args:
        space: what can be chosen, from `ad.space(model, example)`.
        child: `child(policy, seed, report) -> score`, a finite number, higher is better. Called in worker processes.
        trials: how many scored trials the study shall have.
        workers: how many jobs run at the same time, of one child each unless `job` says otherwise. None: one on the
            engine "local", or one for each GPU where a job is a crowd; on "ray" as many as fit into the cluster, nodes
            that join later among them.
        capacity: the paper's C: how many trials are proposed and not yet finished; raised where workers would have
            nothing to do, or crowds not be full. Many more than are under way let proposals grow old before they are
            tried.
        minibatch: the paper's M: how many finished trials make one update of the proposer.
        storage: the ledger: `sqlite:///file` or `postgresql://user:password@host/database`.
        name: the study's name in the ledger.
        engine: "local", processes on this machine; or "ray": the cluster at the address in the variable RAY_ADDRESS,
            or Ray started for this machine alone.
        proposer: one of `autodropout.controller.PROPOSERS`.
        seed: of the study; proposals and the children's seeds follow from it.
        floor: what a child that diverges counts as for the proposer, which learns to avoid it, if that is below what
            children score: 0 rewards divergence where scores are negative, the negative of a loss say. Its trial has
            no score of its own: `value` is None, and it is never the best.
        deadline: seconds after which a child is ended and tried again.
        attempts: how often a trial is started before it counts as failed.
        halving: early stopping, by an `ad.Halving` itself; children must then report their curve.
        job: trials per job, for a child that offers `train_many`. None: what it likes, `child.crowd`, where there is
            a GPU (on "ray": where `gpus_per_child` asks for one); else 1.
        cpus_per_child: what a job takes of a node's CPUs, for "ray"; its threads, too, unless OMP_NUM_THREADS is set.
        gpus_per_child: what it takes of its GPUs, for "ray"; it sees no others, and none with 0. Below 1 they share.
        attributes: what else to keep with the study, as JSON data; read again as `study.info.attributes`, beside
            `trials` and `capacity`, as they were asked for. When the study is resumed, those named here change and
            others stay. `drop_rate`, at which the children put policies on their models, is recorded in the study's
            policies.
        watch: called with a `Progress` after each turn of the driver's loop.
    """
    check_engine(engine)
    if proposer not in PROPOSERS:
        raise ValueError(f"{proposer!r} is not a proposer; there are {', '.join(PROPOSERS)}")
    if not isinstance(space, ConvSpace | TransformerSpace):
        got = type(space).__name__
        raise ValueError(f"a space must come first, and ad.space(model, example) makes one of a model; got a {got}")
    counts = {"trials": trials, "capacity": capacity, "attempts": attempts, "workers": workers, "job": job}
    for what, count in counts.items():  # before anything is begun
        if (type(count) is not int or count < 1) and not (count is None and what in ("workers", "job")):
            raise ValueError(f"{what} must be a positive integer, got {count!r}")
    if halving is not None and type(halving) is not Halving:  # what a subclass adds would be lost below
        raise ValueError(f"halving must be an ad.Halving, and of no class made from it, got {halving!r}")
    if not callable(watch):
        raise ValueError(f"watch is a function of the progress, got {watch!r}")
    make_proposer(proposer, space, seed)  # what it lacks, a package say, is told while there is no study
    if job is None:
        job = crowd_of(child, engine, gpus_per_child)
        if job > 1:
            workers = workers or (len(visible_gpus()) if engine == "local" else None)
    kept = {**(attributes or {}), "trials": trials, "capacity": capacity}
    capacity = max(capacity, job * (workers or 1))
    info = StudyInfo(name, space, proposer, seed, capacity, minibatch, floor, attributes=kept)
    judge = None if halving is None else Halving(halving.first, halving.factor)  # it remembers: one for each run
    make_running = partial(
        make_engine,
        engine,
        child,
        workers=workers,
        most=math.ceil(capacity / job),
        deadline=deadline,
        judge=judge,
        cpus_per_child=cpus_per_child,
        gpus_per_child=gpus_per_child,
    )
    # The engine is made before the study, because it checks the child, and closed before the lease ends.
    with Ledger(storage) as ledger, closing(make_running()) as running, ledger.drive(info) as owned, closing(running):
        driver = Driver(
            owned,
            restore(owned),
            running,
            trials=trials,
            tokens_to_policy=lambda tokens: space.decode(tokens).to_json(),
            attempts=attempts,
            job=job,
            halving=judge,
            watch=watch,
        )
        if driver.progress.scored >= trials:
            told = "study %r has its %d trials, nothing is run: ask for more, or take another name for another child"
            log.warning(told, name, trials)
        with interruptible(driver):
            driver.run()
    study = Study(storage, name)
    _warn_of_no_score(study.reader)
    return study


def _warn_of_no_score(study: Reader) -> None:
    """A search of children that all diverge comes to its end like any other."""
    ended = study.ended()
    if ended.diverged and not ended.scored:
        last = [trial.failure.message for trial in study.trials(states=SCORED) if trial.failure is not None][-1]
        told = "no trial of study %r has a score (%s); the last that diverged: %s"
        log.warning(told, study.info.name, ended, last)


def crowd_of(child: Child, engine: str, gpus_per_child: float = 0.0) -> int:
    """How many children a job trains at once, unless told otherwise: as many as the child likes, where there is a GPU.

    The driver's own process may have no GPU in sight on a cluster; there it is asked for.
    """
    likes = getattr(child, "crowd", 1)
    if type(likes) is not int or likes < 1:
        raise ValueError(f"a child's crowd must be a positive integer, got {likes!r}")
    there = bool(visible_gpus()) if engine == "local" else gpus_per_child > 0
    return likes if there else 1


def restore(study: Writer) -> Proposer:
    """A study's proposer as its last update left it: the newest intact checkpoint, and the updates after it again."""
    info, checkpoint = study.info, study.checkpoint()
    if checkpoint.damaged:
        damaged = ", ".join(map(str, checkpoint.damaged))
        warnings.warn(
            f"study {info.name!r}: the checkpoint of update {damaged} is damaged; replaying from {checkpoint.version}",
            stacklevel=3,
        )
    if checkpoint.state is None:
        proposer = make_proposer(info.proposer, info.space, info.seed)
    else:
        proposer = load_proposer(info.proposer, info.space, info.seed, checkpoint.state)
    for _, batch in study.batches(after=checkpoint.version):
        proposer.update(batch)
    return proposer


@dataclass(frozen=True, slots=True)
class StudyTrial:
    """A trial of a study, with its policy."""

    record: Trial
    study: StudyInfo

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def value(self) -> float | None:
        """Its score; None while it has none, and where it diverged: `record.value` is then the study's floor."""
        return None if self.failure is not None else self.record.value

    @property
    def stopped(self) -> bool:
        """Whether it was ended early: its value is then what the study credits it with, and it is never the best."""
        return self.record.stopped

    @property
    def failure(self) -> Failure | None:
        """Why it has no score of its own, where something went wrong."""
        return self.record.failure

    @property
    def policy(self) -> Policy:
        """The policy it tried, with its provenance."""
        return self.study.policy(self.record)

    def __repr__(self) -> str:
        if self.value is not None:
            said = f"stopped early, credited with {self.value:.6g}" if self.stopped else f"score {self.value:.6g}"
        elif self.record.state in SCORED:
            said = "diverged"
        else:
            said = WORDS[self.record.state]
            said += "" if self.failure is None else f", last attempt: {self.failure.kind.value}"
        return f"StudyTrial({self.number}: {said})"


def unscored(study: Reader) -> ValueError:
    """What to tell who asks for the best of a study that has none."""
    ended = sum(count for state, count in study.counts().items() if state in SCORED)
    why = f"; diverged or stopped early: {ended}" if ended else ""
    return ValueError(f"study {study.info.name!r} has no scored trial yet{why}")


class Study:
    """A study in a ledger, to be read; also while somebody drives it."""

    def __init__(self, storage: str, name: str) -> None:
        ledger = Ledger(storage)
        weakref.finalize(self, ledger.close)  # before reading, which raises where there is no such study
        self._reader: Reader = ledger.read(name)

    @property
    def name(self) -> str:
        return self._reader.info.name

    @property
    def info(self) -> StudyInfo:
        return self._reader.info

    @property
    def reader(self) -> Reader:
        """The ledger's view of it: counts, updates, columns of trials."""
        return self._reader

    @property
    def best(self) -> StudyTrial:
        """The trial with the highest score of its own."""
        found = self._reader.best()
        if found is None:
            raise unscored(self._reader)
        return StudyTrial(found, self.info)

    def top(self, count: int) -> list[StudyTrial]:
        """The trials with the highest scores, of which no two have policies that do the same, and none drops nothing.

        A score is of one seed, and the best of many are partly luck: train these again, with other seeds.
        """
        return [StudyTrial(trial, self.info) for trial in self._reader.distinct(count)]

    @property
    def trials(self) -> list[StudyTrial]:
        return [StudyTrial(trial, self.info) for trial in self._reader.trials()]

    def __repr__(self) -> str:
        counts, ended, best = self._reader.counts(), self._reader.ended(), self._reader.best()
        pending = sum(counts[state] for state in PENDING)
        mixed = f" ({ended})" if ended.scored < ended.total else ""
        parts = (
            f"{ended.total} trial{'' if ended.total == 1 else 's'} ended{mixed}",
            f"{pending} not yet" if pending else "",
            f"{counts[State.FAILED]} failed" if counts[State.FAILED] else "",
            "" if best is None else f"best {best.value:.6g}",
        )
        return f"Study({self.name!r}: {', '.join(filter(None, parts))})"
