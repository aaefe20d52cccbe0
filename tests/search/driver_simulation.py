"""A study without processes: a fake clock, an engine with every fault a real one can have, and the driver's promises.

Everything follows from one seed. The ledger is the real one.
"""

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ledger_tools import value

from autodropout.controller import make_proposer
from autodropout.search.driver import ChildError, Driver, Progress
from autodropout.search.halving import Halving
from autodropout.search.jobs import Answer, Judge, Task
from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposal, Proposer, Scored
from autodropout.search.records import Failure, StudyInfo, Trial
from autodropout.search.states import FailureKind, State
from autodropout.search.writing import Writer
from autodropout.spaces import ConvSpace
from autodropout.study import restore

SPACE = ConvSpace(groups=((8, 8),))
FLOOR = -1.0
STEPS = (1, 2, 4, 8)
DEADLINE = 20.0
FATES = ("score", "slow", "die", "hang", "out of memory", "raise", "diverge", "not finite")


class Killed(BaseException):
    """The driver's process dies: nothing of it runs any more."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeEngine:
    """Workers that are slow, die, hang, answer late or twice, come and go. Answers come in any order."""

    def __init__(self, draw: random.Random, clock: Clock, judge: Judge | None, faults: dict[str, float]) -> None:
        self._draw, self._clock, self._judge, self._faults = draw, clock, judge, faults
        self._events: list[tuple[float, int, list[Answer]]] = []
        self._order = itertools.count()
        self._workers = draw.randint(1, 8)
        self.held: Counter[int] = Counter()  # trials of jobs that were taken and not yet answered

    def free(self) -> int:
        return max(0, self._workers - len(self._events))

    def submit(self, job: Sequence[Task]) -> None:
        assert self.free() > 0, "a job was given to an engine that has no worker for it"
        assert job
        self.held.update(task.number for task in job)
        fate = self._draw.choices(FATES, [self._faults[fate] for fate in FATES])[0]
        after = {"slow": 15.0, "hang": DEADLINE}.get(fate, 0.0) + self._draw.expovariate(1.0)
        self._push(after, [self._answer(task, fate) for task in job])

    def answers(self, timeout: float) -> list[Answer]:
        if self._draw.random() < 0.1:
            self._workers = self._draw.randint(0, 8)  # nodes leave and join; a busy one first finishes its job
        until = self._clock.now + timeout
        found: list[Answer] = []
        while self._events and self._events[0][0] <= until:
            self._clock.now, _, answers = heapq.heappop(self._events)
            found += [self._judged(answer) for answer in answers]
            self.held.subtract(answer.number for answer in answers)
            self._mislead(answers)
            if self._draw.random() < 0.6:
                return found
        self._clock.now = max(self._clock.now, until)
        return found

    def close(self) -> None:
        self._events.clear()

    def _push(self, after: float, answers: list[Answer]) -> None:
        heapq.heappush(self._events, (self._clock.now + after, next(self._order), answers))

    def _mislead(self, answers: list[Answer]) -> None:
        """The same answer again, or a score from a worker that was given up."""
        if self._draw.random() < 0.1:
            late = self._draw.choice([answers, [Answer(a.number, value(a.number)) for a in answers]])
            self.held.update(answer.number for answer in late)
            self._push(self._draw.expovariate(0.2), late)

    def _answer(self, task: Task, fate: str) -> Answer:
        number = task.number
        match fate:
            case "score" | "slow":
                return Answer(number, value(number), curve(number))
            case "diverge":
                return Answer(number, None, curve(number)[:2], Failure(FailureKind.DIVERGED, "nan at step 3"))
            case "not finite":
                return Answer(number, self._draw.choice([math.nan, math.inf, -math.inf]), curve(number))
        kind = {
            "die": FailureKind.CRASH,
            "hang": FailureKind.TIMEOUT,
            "out of memory": FailureKind.OUT_OF_MEMORY,
            "raise": FailureKind.USER_ERROR,
        }[fate]
        return Answer(number, failure=Failure(kind, fate, "Traceback: line 7, in child" if fate == "raise" else ""))

    def _judged(self, answer: Answer) -> Answer:
        if self._judge is not None:
            for seen, (step, report) in enumerate(answer.curve, start=1):
                if self._judge(answer.number, step, report):
                    return Answer(answer.number, curve=answer.curve[:seen], stopped=True)
        return answer


def curve(number: int) -> tuple[tuple[int, float], ...]:
    """What trial `number` reports: it rises to its score, and not all that are good in the end are so at first."""
    noise = random.Random(number)
    return tuple((step, value(number) - noise.random() / step) for step in STEPS)


class Careful:
    """A proposer that looks at what it is given: M finite scores, no trial twice, each as it was proposed."""

    def __init__(self, proposer: Proposer, minibatch: int, seen: set[int]) -> None:
        self._proposer, self._minibatch, self._seen = proposer, minibatch, seen

    @property
    def version(self) -> int:
        return self._proposer.version

    def propose(self, numbers: Sequence[int]) -> list[Proposal]:
        return self._proposer.propose(numbers)

    def update(self, batch: Sequence[Scored]) -> dict[str, float]:
        numbers = {scored.number for scored in batch}
        assert len(numbers) == len(batch) == self._minibatch
        assert not numbers & self._seen, f"learned from twice: {sorted(numbers & self._seen)}"
        assert all(math.isfinite(scored.value) for scored in batch)
        self._seen |= numbers
        return self._proposer.update(batch)

    def save(self) -> bytes:
        return self._proposer.save()


@dataclass(frozen=True)
class Setting:
    """What is drawn once for a whole simulated study."""

    info: StudyInfo
    trials: int
    attempts: int
    job: int
    halving: tuple[int, int] | None
    faults: dict[str, float]
    interruptions: float  # the chance, at each turn, that the driver is killed or told to stop

    @classmethod
    def drawn(cls, draw: random.Random, seed: int, proposer: str) -> "Setting":
        faults = {fate: draw.choice([0.0, 0.03, 0.1]) for fate in FATES} | {"score": 1.0}
        if draw.random() < 0.1:
            faults |= {"die": 1.0, "raise": 0.3}
        return cls(
            StudyInfo(f"{proposer} {seed}", SPACE, proposer, seed, draw.randint(1, 20), draw.randint(1, 8), FLOOR),
            trials=draw.randint(1, 40),
            attempts=draw.randint(1, 4),
            job=draw.choice([1, 1, 2, 5]),
            halving=draw.choice([None, (1, 2), (2, 3)]),
            faults=faults,
            interruptions=draw.choice([0.0, 0.02, 0.1]),
        )


class Simulation:
    """One study from its start to its end, through as many drivers as it takes."""

    def __init__(self, ledger: Ledger, seed: int, proposer: str = "random") -> None:
        self._ledger = ledger
        self._draw = random.Random(seed)
        self._clock = Clock()
        self.setting = Setting.drawn(self._draw, seed, proposer)
        self._trials = self.setting.trials
        self.drivers = 0
        self.errors: list[ChildError] = []

    def run(self) -> None:
        while not self._finished():
            assert self.drivers < 300, "the study does not come to its end"
            self.drivers += 1
            if self.drivers > 1:
                self._change_our_mind()
            with self._ledger.drive(self.setting.info) as study:
                self._drive(study)
        with self._ledger.drive(self.setting.info) as study:
            self._check_end(study)

    def _finished(self) -> bool:
        return self.drivers > 0 and self._scored() >= self._trials

    def _scored(self) -> int:
        counts = self._ledger.read(self.setting.info.name).counts()
        return sum(counts[state] for state in (State.FINISHED, State.STOPPED, State.APPLIED))

    def _change_our_mind(self) -> None:
        """A study may be resumed with another capacity, and to another number of trials."""
        if self._draw.random() < 0.2:
            self._trials = max(self._scored(), self._draw.randint(1, 40))
        if self._draw.random() < 0.2:
            self.setting = replace(self.setting, info=replace(self.setting.info, capacity=self._draw.randint(1, 20)))

    def _drive(self, study: Writer) -> None:
        """One driver until its end, whatever that is."""
        setting = self.setting
        halving = None if setting.halving is None else Halving(*setting.halving)
        # A child that made a mistake is corrected before the next run, or the study would never end.
        faults = setting.faults | ({"raise": 0.0, "die": 0.0} if self.errors else {})
        engine = FakeEngine(self._draw, self._clock, halving, faults)
        applied = {number for update in study.updates() for number in update.trials}
        inherited = _pending(study.counts())
        driver = Driver(
            study,
            Careful(restore(study), setting.info.minibatch, applied),
            engine,
            trials=self._trials,
            policy_of=lambda trial: str(trial.tokens),
            attempts=setting.attempts,
            job=setting.job,
            halving=halving,
            watch=lambda progress: self._turn(driver, study, engine, progress, inherited),
            clock=self._clock,
        )
        try:
            driver.run()
        except Killed:
            return  # as it is: the next driver finds what a dead one leaves
        except ChildError as error:
            self.errors.append(error)
        assert study.counts()[State.RUNNING] == 0, "a driver that ended left trials running"
        assert len(driver._ready) < setting.info.minibatch or self.errors

    def _turn(self, driver: Driver, study: Writer, engine: FakeEngine, progress: Progress, inherited: int) -> None:
        """After a refill and before the answers: everything the driver promises holds."""
        info, trials = self.setting.info, study.trials()
        counts = study.counts()
        scored = [trial for trial in trials if trial.value is not None]
        running = {trial.number for trial in trials if trial.state is State.RUNNING}
        pending, missing = _pending(counts), max(0, self._trials - len(scored))
        assert pending <= max(info.capacity, inherited)
        if not driver._stopping:
            assert pending >= min(info.capacity, missing)
            assert pending <= max(min(info.capacity, missing), inherited)
        assert len(running) <= missing
        assert running == set(driver._running)
        assert all(engine.held[number] > 0 for number in running), "a trial is RUNNING that no worker has"
        assert all(trial.attempts <= self.setting.attempts for trial in trials)
        own = [trial.value for trial in scored if trial.failure is None and not trial.stopped]
        view = (len(scored), len(running), counts[State.WAITING], counts[State.FAILED], len(study.updates()))
        assert view == (progress.scored, progress.running, progress.waiting, progress.failed, progress.updates)
        assert progress.best == max(own, default=None)
        waiting = sorted([t.number for t in driver._waiting] + list(driver._later))
        assert waiting == [trial.number for trial in trials if trial.state is State.WAITING]
        ready = {trial.number for trial in scored if trial.state is not State.APPLIED}
        assert {item.number for item in driver._ready} == ready
        chance = self._draw.random()
        if chance < self.setting.interruptions:
            driver._give_back = lambda: None
            raise Killed
        if chance > 1 - self.setting.interruptions / 2:
            driver.stop()

    def _check_end(self, study: Writer) -> None:
        info, trials, updates = self.setting.info, study.trials(), study.updates()
        applied = [number for update in updates for number in update.trials]
        assert all(len(update.trials) == info.minibatch for update in updates)
        assert len(set(applied)) == len(applied)
        assert {trial.number for trial in trials if trial.state is State.APPLIED} == set(applied)
        for trial in trials:
            self._check_trial(trial)
        scored = [trial for trial in trials if trial.value is not None]
        assert len(scored) == self._trials
        own = [trial.value for trial in scored if trial.failure is None and not trial.stopped]
        best = study.best()
        assert (None if best is None else best.value) == max(own, default=None)
        again = make_proposer(info.proposer, info.space, info.seed)
        for _, batch in study.batches():
            again.update(batch)
        checkpoint = study.checkpoint()
        assert checkpoint.version == len(updates)
        assert checkpoint.state in (None, again.save()), "the recorded updates do not give the stored proposer"

    def _check_trial(self, trial: Trial) -> None:
        number = trial.number
        if self.setting.info.proposer == "random":
            (proposal,) = make_proposer("random", SPACE, self.setting.info.seed).propose([number])
            assert trial.tokens == proposal.tokens
        match trial:
            case Trial(state=State.FAILED):
                assert trial.failure is not None
                assert trial.attempts <= self.setting.attempts
            case Trial(stopped=True):
                assert self.setting.halving
                assert trial.curve == curve(number)[: len(trial.curve)]
            case Trial(value=float() as score, failure=None):
                assert score == value(number)
            case Trial(value=float() as score):
                assert trial.failure.kind is FailureKind.DIVERGED
                assert score == FLOOR


def _pending(counts: dict[State, int]) -> int:
    return counts[State.WAITING] + counts[State.RUNNING]
