"""The driver: one loop around two queues (paper, "Improving Parallelism").

                 refill, C at most          start               answers
    proposer ───────────────────> WAITING ───────> engine ──────────────> FINISHED
        ^                            ^                │ crash, timeout        │
        │                            └── again, later ┘                       │ M at a time
        └─────────────────────────────── update ──────────────────────────────┘

One thread, the study's only writer. It waits for answers and nothing else, and whatever it decides is in the ledger
before anybody acts on it: a trial is RUNNING before it is submitted, an answer is recorded before it is learned from,
an update is stored with the proposer it made. So the process can be killed at any instant and resumed.

Departures from the paper:
1. A trial whose worker dies is tried again with the same tokens and seed, alone in its job, a bounded number of times,
   then FAILED; it teaches nothing. A child that diverges is scored with the study's floor, so that the controller
   learns to avoid it (`outcomes`). Where nothing but deaths comes of the children, the search gives up early
   (`deaths`).
2. Near the end no more is proposed, and no more is started, than is still to be scored.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice

from autodropout.search.deaths import Deaths, child_error, has_failed
from autodropout.search.errors import ChildError, LedgerError
from autodropout.search.halving import Halving
from autodropout.search.jobs import Answer, Engine, Task
from autodropout.search.outcomes import Outcomes
from autodropout.search.protocols import Proposer, Scored
from autodropout.search.records import Failure, Outcome, Trial
from autodropout.search.states import SCORED, FailureKind, State
from autodropout.search.writing import Writer

log = logging.getLogger("autodropout")

PATIENCE = 10
"""So many trials that used up their attempts, with no score between them, and a study gives up. Trials, not attempts:
a machine that takes all its workers with it costs each of them one attempt."""

LONGEST_PAUSE = 60.0
"""Seconds before a trial is tried again, at most."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands, for a display."""

    scored: int
    wanted: int
    running: int
    waiting: int
    failed: int
    retried: int
    updates: int
    best: float | None
    metrics: dict[str, float]


class Driver:
    """Runs a study until `trials` of its trials have a score.

    Args:
        study: the study, owned.
        proposer: as its ledger knows it: restored, when the study is resumed.
        engine: where children run.
        trials: how many scored trials the study shall have in all.
        policy_of: the policy of a trial, as JSON.
        attempts: how often a trial is started before it is FAILED.
        backoff: seconds before a second attempt; doubled for each further one, to a minute at most.
        job: how many trials one job carries.
        halving: early stopping, if wanted; the engine must have it as its judge.
        watch: called with the progress after each turn of the loop.
        clock: seconds, for simulations.
    """

    def __init__(
        self,
        study: Writer,
        proposer: Proposer,
        engine: Engine,
        *,
        trials: int,
        policy_of: Callable[[Trial], str],
        attempts: int = 3,
        backoff: float = 1.0,
        job: int = 1,
        halving: Halving | None = None,
        watch: Callable[[Progress], None] = lambda progress: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for what, number in (("trials", trials), ("attempts", attempts), ("job", job)):
            if number < 1:
                raise ValueError(f"{what} must be at least 1, got {number}")
        self._study, self._proposer, self._engine = study, proposer, engine
        self._trials, self._attempts, self._backoff, self._job = trials, attempts, backoff, job
        self._policy_of, self._halving, self._watch, self._clock = policy_of, halving, watch, clock
        self._outcomes = Outcomes(study.info, halving)
        self._waiting: deque[Trial] = deque()
        self._later: dict[int, tuple[float, Trial]] = {}  # trials to be tried again, and when
        self._running: dict[int, Trial] = {}
        self._ready: deque[Scored] = deque()  # scored, in this order, and not yet learned from
        self._next = 0
        self._scored = self._failed = self._retried = 0
        self._in_a_row = 0  # failed trials since the last score
        self._works = False  # the child gave a score, to this driver
        self._deaths = Deaths(alone=job == 1)
        self._told = False  # that something failed
        self._best: float | None = None
        self._metrics: dict[str, float] = {}
        self._stopping = False
        self._end: BaseException | None = None
        self._resume()

    def run(self) -> None:
        """Search until enough trials are scored, or `stop` was called and those under way have ended."""
        try:
            while self._scored < self._trials and not (self._stopping and not self._running):
                self._learn()
                if self._end is not None:
                    raise self._end
                self._refill()
                self._dispatch()
                self._watch(self.progress)
                self._settle(self._engine.answers(timeout=self._patience()))
            self._learn()
            self._watch(self.progress)
            if self._end is not None:
                raise self._end
        except BaseException:  # what `end` was given among them
            self._give_back()
            raise

    def stop(self) -> None:
        """Start nothing new; `run` returns when the trials under way have ended. Safe in a signal handler."""
        self._stopping = True

    def end(self, error: BaseException) -> None:
        """Let `run` raise this, within about a second. Safe in a signal handler, where raising it would not be: it
        could fall into a commit, and with the connection go the trials that shall be given back."""
        self._end = error

    @property
    def progress(self) -> Progress:
        return Progress(
            self._scored,
            self._trials,
            len(self._running),
            len(self._waiting) + len(self._later),
            self._failed,
            self._retried,
            self._proposer.version,
            self._best,
            self._metrics,
        )

    def _resume(self) -> None:
        """Take up what an earlier driver left."""
        orphans = self._study.columns(["number"], states=[State.RUNNING])["number"]
        if orphans:
            self._study.requeue(orphans, limit=self._attempts)
        self._waiting.extend(self._study.trials(states=[State.WAITING]))
        unapplied = self._study.trials(states=[State.FINISHED, State.STOPPED])
        unapplied.sort(key=lambda trial: (trial.finished, trial.number))
        self._ready.extend(trial.scored() for trial in unapplied)
        counts = self._study.counts()
        self._next = sum(counts.values())
        self._scored = sum(counts[state] for state in SCORED)
        self._failed = counts[State.FAILED]
        best = self._study.best()
        self._best = None if best is None else best.value
        if self._halving is not None:
            for trial in self._study.trials(states=SCORED):
                whole = not trial.stopped and trial.failure is None
                self._halving.resumed(trial.curve, trial.value if whole else None)

    def _refill(self) -> None:
        """Keep C trials proposed and not yet finished."""
        pending = len(self._waiting) + len(self._later) + len(self._running)
        missing = min(self._study.info.capacity, self._trials - self._scored) - pending
        if missing > 0 and not self._stopping:
            proposals = self._proposer.propose(range(self._next, self._next + missing))
            self._waiting.extend(self._study.propose(proposals))
            self._next += missing

    def _dispatch(self) -> None:
        """Give the engine what it can take."""
        now = self._clock()
        for number in [number for number, (since, _) in self._later.items() if since <= now]:
            self._waiting.append(self._later.pop(number)[1])
        jobs = [] if self._stopping else self._jobs()
        if not jobs:
            return
        started = list(chain.from_iterable(jobs))
        self._study.start([trial.number for trial in started])
        self._running.update((trial.number, replace(trial, attempts=trial.attempts + 1)) for trial in started)
        for job in jobs:
            self._engine.submit([Task(trial.number, self._policy_of(trial), trial.seed) for trial in job])

    def _jobs(self) -> list[list[Trial]]:
        """Take of those that wait, in their order, what the engine can take now, and no more than is to be scored."""
        slots, wanted = self._engine.free(), self._trials - self._scored - len(self._running)
        jobs: list[list[Trial]] = []
        crowd: list[Trial] | None = None  # the job that others may still join
        left: list[Trial] = []
        while self._waiting and wanted > 0:
            joinable = crowd is not None and len(crowd) < self._job
            if len(jobs) >= slots and not joinable:
                break
            trial = self._waiting.popleft()
            alone = has_failed(trial)
            if crowd is not None and joinable and not alone:
                crowd.append(trial)
            elif len(jobs) < slots:
                jobs.append([trial])
                crowd = crowd if alone else jobs[-1]
            else:
                left.append(trial)
                continue
            wanted -= 1
        self._waiting.extendleft(reversed(left))
        return jobs

    def _patience(self) -> float:
        """How long to wait for answers: until the next trial may be tried again, and a second at most."""
        soonest = min((since for since, _ in self._later.values()), default=None)
        return 1.0 if soonest is None else min(1.0, max(0.01, soonest - self._clock()))

    def _settle(self, answers: Sequence[Answer]) -> None:
        """Record what became of trials; answers that come twice or too late change nothing."""
        taken = [(self._running.pop(answer.number), answer) for answer in answers if answer.number in self._running]
        taken.sort(key=lambda pair: pair[0].number)  # a driver that resumes learns of them in this order
        outcomes: list[tuple[Trial, Outcome]] = []
        broken: dict[Failure, list[Trial]] = {}  # a machine's end is one reason for many
        for trial, answer in taken:
            outcome = self._outcomes.of(answer)
            if isinstance(outcome, Outcome):
                outcomes.append((trial, outcome))
            else:
                broken.setdefault(outcome, []).append(trial)
        with self._study.transaction():
            self._study.record([outcome for _, outcome in outcomes])
            for trial, outcome in outcomes:
                self._score(trial, outcome)
            errors = [self._try_again(trials, failure) for failure, trials in broken.items()]
            errors += [self._deaths.count(trials, failure, self._running) for failure, trials in broken.items()]
        for error in errors:  # raised here, so that what came in with it is kept
            if error is not None:
                raise error

    def _score(self, trial: Trial, outcome: Outcome) -> None:
        assert outcome.value is not None
        self._ready.append(Scored(trial.number, trial.tokens, trial.log_prob, trial.version, outcome.value))
        self._scored += 1
        self._in_a_row = 0
        self._works = self._deaths.over = True
        own = outcome.state is State.FINISHED and outcome.failure is None
        if own and (self._best is None or outcome.value > self._best):
            self._best = outcome.value

    def _try_again(self, trials: Sequence[Trial], failure: Failure) -> ChildError | None:
        """Queue trials for another attempt, or fail them; the error, when there is no point in going on."""
        numbers = [trial.number for trial in trials]
        mistake = failure.kind is FailureKind.USER_ERROR and not self._works
        if mistake and self._scored == 0:
            # The mistake is most likely in the code, not in the trial: it waits for a corrected child.
            self._study.release(numbers, failure)
            return child_error("the child failed before any trial had a score", failure)
        again, failed = map(set, self._study.requeue(numbers, limit=self._attempts, failure=failure))
        for trial in trials:
            if trial.number in again:
                pause = min(self._backoff * 2 ** (trial.attempts - 1), LONGEST_PAUSE)
                self._later[trial.number] = (self._clock() + pause, replace(trial, failure=failure))
        self._tell(trials[0], failure)
        self._retried += len(again)
        self._failed += len(failed)
        self._in_a_row += len(failed)
        if mistake and again:
            return child_error("the child failed before it gave this run a score", failure)
        if failed and self._in_a_row >= PATIENCE:
            return child_error(f"{self._in_a_row} trials in a row failed in every attempt, the last one", failure)
        return None

    def _tell(self, trial: Trial, failure: Failure) -> None:
        """The first failure of a run: it may be the first of many, and each may have taken an hour."""
        if not self._told:
            self._told = True
            told = (
                "study %r: trial %d failed in attempt %d of %d: %s. What fails is tried again; this is told once, the "
                "study's report lists all failures"
            )
            log.warning(told, self._study.info.name, trial.number, trial.attempts, self._attempts, failure.message)

    def _learn(self) -> None:
        """Apply finished trials, M at a time."""
        size = self._study.info.minibatch
        while len(self._ready) >= size:
            batch = list(islice(self._ready, size))
            self._metrics = self._proposer.update(batch)
            numbers = [scored.number for scored in batch]
            self._study.apply(numbers, self._proposer.version, self._metrics, self._proposer.save())
            for _ in batch:
                self._ready.popleft()

    def _give_back(self) -> None:
        """The trials under way wait again; that this driver ends is no fault of theirs."""
        with suppress(LedgerError):  # that which ended it, most likely; the next driver does the same
            self._study.release(self._study.columns(["number"], states=[State.RUNNING])["number"])
