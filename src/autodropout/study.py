"""`ad.search`: learn a policy for a space with the user's own training as the judge; and the study it leaves.

    study = ad.search(space, child, trials=512, workers=8)     # the same call again resumes
    study.best.policy.save("mine.json")

It stands above the packages because it joins them: a proposer of `controller`; ledger, driver and engine of `search`.
"""

import logging
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from autodropout.controller import PROPOSERS, load_proposer, make_proposer
from autodropout.running import Begun, Running, Watch, check_counts, policies_of, unwatched
from autodropout.search.driver import Progress
from autodropout.search.halving import Halving
from autodropout.search.jobs import Child
from autodropout.search.protocols import Proposer
from autodropout.search.records import StudyInfo
from autodropout.search.states import SCORED
from autodropout.search.study import Study, StudyTrial
from autodropout.search.writing import Writer
from autodropout.spaces import ConvSpace, Space, TransformerSpace

__all__ = ["Study", "StudyTrial", "restore", "search"]

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
    rate: float | None = None,
    attributes: Mapping[str, Any] | None = None,
    watch: Watch = unwatched,
) -> Study:
    """Search for a policy. Killed or interrupted at any moment, the same call goes on where it was.

    Ctrl-C once ends the search when the children under way have finished, and the study is returned as it is then;
    twice, at once, by KeyboardInterrupt; so do SIGTERM and a terminal that is closed, by SystemExit. All can be
    resumed. A child that raises before it gave any score ends the search with its traceback, as `ChildError`, and so do
    children that die, or miss their deadline, several times in a row before there is a score; the same call with a
    corrected child goes on.

    Args:
        space: what can be chosen, from `ad.space(model, example)`.
        child: `child(policy, seed, report) -> score`, a finite number, higher is better. Called in worker processes.
            It may leave `report` out. Or call it while it trains, as `report(step, value)`, an integer and a score so
            far: these make the trial's curve, which `halving` needs; a value that is not finite ends the child.
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
        rate: the drop rate of the children. It is recorded in their policies, so that `ad.attach(model, policy)` needs
            no other in a child, nor later for what was found. A study has one rate: it keeps what it was begun with.
        attributes: what else to keep with the study, as JSON data; read again as `study.info.attributes`, beside
            `trials`, `capacity` and `rate` (as `drop_rate`), as they were asked for. When the study is resumed, those
            named here change and others stay.
        watch: called with a `Progress` after each turn of the driver's loop.
    """
    if proposer not in PROPOSERS:
        raise ValueError(f"{proposer!r} is not a proposer; there are {', '.join(PROPOSERS)}")
    if not isinstance(space, ConvSpace | TransformerSpace):
        got = type(space).__name__
        raise ValueError(f"a space must come first, and ad.space(model, example) makes one of a model; got a {got}")
    check_counts(trials=trials, capacity=capacity)
    if halving is not None and type(halving) is not Halving:  # what a subclass adds would be lost below
        raise ValueError(f"halving must be an ad.Halving, and of no class made from it, got {halving!r}")
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
    make_proposer(proposer, space, seed)  # what it lacks, a package say, is told while there is no study
    kept = {**(attributes or {}), **_recorded(rate, attributes or {}), "trials": trials, "capacity": capacity}
    info = StudyInfo(name, space, proposer, seed, max(capacity, running.busy), minibatch, floor, attributes=kept)
    judge = None if halving is None else Halving(halving.first, halving.factor)  # it remembers: one for each run
    running.drive(storage, info, partial(_begin, trials=trials), judge, _warn_before)
    study = Study(storage, name)
    _warn_after(study)
    return study


def _begin(owned: Writer, trials: int) -> Begun:
    return Begun(restore(owned), policies_of(owned.info), trials)


def _recorded(rate: float | None, attributes: Mapping[str, Any]) -> dict[str, float]:
    """The rate as the study's attributes have it."""
    if rate is None:
        return {}
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise ValueError(f"rate must be a number in [0, 1], got {rate!r}")
    if attributes.get("drop_rate", rate) != rate:
        raise ValueError(f"rate={rate!r}, but the attributes have the drop_rate {attributes['drop_rate']!r}")
    return {"drop_rate": float(rate)}


def _warn_before(info: StudyInfo, progress: Progress) -> None:
    """Of a call that does nothing, or not what a search is for."""
    name, trials = info.name, progress.wanted
    if progress.scored >= trials:
        there = (
            f"its {trials} trials"
            if progress.scored == trials
            else f"{progress.scored} trials, {trials} were asked for"
        )
        again = "Ask for more (trials=, or --trials), or take another name (name=, or --name) for another child"
        log.warning("study %r has %s, nothing is run. %s", name, there, again)
    elif trials < info.minibatch and info.proposer != "random":
        told = (
            "study %r: the proposer %r learns from %d trials at a time, and the study is to have %d: it will learn "
            "nothing, its policies are drawn at random. Ask for more (trials=, or --trials)"
        )
        log.warning(told, name, info.proposer, info.minibatch, trials)


def _warn_after(study: Study) -> None:
    """A search of children that all diverge comes to its end like any other; so does one where no dropout is best."""
    ended, name = study.reader.ended(), study.name
    if ended.diverged and not ended.scored:
        failures = (trial.failure for trial in study.reader.trials(states=SCORED))
        last = [failure.message for failure in failures if failure is not None][-1]
        log.warning("no trial of study %r has a score (%s); the last that diverged: %s", name, ended, last)
    elif ended.scored and study.best.policy.drops_nothing:
        best, other = study.best, next(iter(study.top(1)), None)
        better = "none that drops something has a score"
        if other is not None:
            better = f"of those that drop something, the best is trial {other.number}, {other.value:.6g}"
        told = "study %r: the best policy, of trial %d with a score of %.6g, drops nothing: no dropout was best; %s"
        log.warning(told, name, best.number, best.value, better)


def restore(study: Writer) -> Proposer:
    """A study's proposer as its last update left it: the newest intact checkpoint, and the updates after it again."""
    info, checkpoint = study.info, study.checkpoint()
    if checkpoint.damaged:
        damaged = ", ".join(map(str, checkpoint.damaged))
        warnings.warn(
            f"study {info.name!r}: the checkpoint of update {damaged} is damaged; replaying from {checkpoint.version}",
            stacklevel=5,  # whoever called `search`
        )
    if checkpoint.state is None:
        proposer = make_proposer(info.proposer, info.space, info.seed)
    else:
        proposer = load_proposer(info.proposer, info.space, info.seed, checkpoint.state)
    for _, batch in study.batches(after=checkpoint.version):
        proposer.update(batch)
    return proposer
