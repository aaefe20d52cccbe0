"""For tests of `ad.search`: an engine in the driver's own thread, children that act by the number of their trial."""

import math
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from autodropout.controller import make_proposer
from autodropout.search.jobs import Answer, Child, Judge, Report, Task
from autodropout.search.ledger import Ledger
from autodropout.search.records import Failure, trial_seed
from autodropout.search.states import FailureKind, State
from autodropout.search.worker import run_job
from autodropout.search.writing import Writer
from autodropout.spaces import ConvSpace, Policy
from autodropout.study import restore

SPACE = ConvSpace(groups=((8, 8),))


class InlineEngine:
    """Runs jobs when asked for answers, one at a time and in a random order that a seed fixes."""

    def __init__(self, child: Child, workers: int, deadline: float | None, judge: Judge | None, seed: int = 0) -> None:
        self._child, self._workers, self._judge = child, workers, judge
        self._jobs: list[Sequence[Task]] = []
        self._draw = random.Random(seed)

    def free(self) -> int:
        return self._workers - len(self._jobs)

    def submit(self, job: Sequence[Task]) -> None:
        self._jobs.append(job)

    def answers(self, timeout: float) -> list[Answer]:
        if not self._jobs:
            return []
        job = self._jobs.pop(self._draw.randrange(len(self._jobs)))
        return run_job(self._child, job, self._judge)

    def close(self) -> None:
        self._jobs.clear()


class FaultyEngine(InlineEngine):
    """One job in six comes to nothing, as if its worker had died."""

    def answers(self, timeout: float) -> list[Answer]:
        if self._jobs and self._draw.random() < 1 / 6:
            job = self._jobs.pop(self._draw.randrange(len(self._jobs)))
            return [Answer(task.number, failure=Failure(FailureKind.CRASH, "killed by signal 9")) for task in job]
        return super().answers(timeout)


class DeadlyEngine(InlineEngine):
    """The worker of each job dies, oldest first, as long as `dies` says so of the answers given so far and the job's
    trial; a job it says nothing of is held back."""

    dies: Callable[[int, int], bool | None] = staticmethod(lambda given, number: True)
    given = 0

    def answers(self, timeout: float) -> list[Answer]:
        for job in self._jobs:
            dies = self.dies(self.given, job[0].number)
            if dies is not None:
                self._jobs.remove(job)
                self.given += 1
                killed = Failure(FailureKind.CRASH, "the worker's process exited with code 3")
                dead = [Answer(task.number, failure=killed) for task in job]
                return dead if dies else run_job(self._child, job, self._judge)
        return []


def reporting_child(policy: Policy, seed: int, report: Report) -> float:
    """A curve of nine steps to a score that follows from the seed; one child in eleven diverges."""
    score = seed / 2**31
    for step in range(1, 10):
        report(step, score * step / 9)
    return math.nan if seed % 11 == 0 else score


def by_number(actions: dict[int, Callable[[], object]], otherwise: Callable[[int], float], trials: int = 200) -> Child:
    """A child, made here and hence sent by value, that acts by its trial's number in a study of seed 0."""
    numbers = {trial_seed(0, number): number for number in range(trials)}

    def child(policy: Policy, seed: int, report: Report) -> object:
        number = numbers[seed]
        return actions[number]() if number in actions else otherwise(number)

    return child


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def states(storage: str, name: str = "study") -> Counter[State]:
    """How many trials are in each state that has any."""
    with Ledger(storage) as ledger:
        return +Counter(ledger.read(name).counts())


def check_study(storage: str, name: str = "study") -> None:
    """Nothing half done: updates of M trials each, none twice, nobody RUNNING, and the proposer they give is stored."""
    with Ledger(storage) as ledger, ledger.drive(ledger.read(name).info) as study:
        _check(study)


def _check(study: Writer) -> None:
    trials, updates = study.trials(), study.updates()
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert not [trial for trial in trials if trial.state is State.RUNNING]
    assert all(len(update.trials) == study.info.minibatch for update in updates)
    applied = [number for update in updates for number in update.trials]
    assert len(set(applied)) == len(applied)
    assert {trial.number for trial in trials if trial.state is State.APPLIED} == set(applied)
    assert sum(trial.state in (State.FINISHED, State.STOPPED) for trial in trials) < study.info.minibatch
    checkpoint = study.checkpoint()
    assert (checkpoint.version, checkpoint.damaged) == (len(updates), ())
    if updates:
        assert checkpoint.state == replayed(study)
        assert restore(study).save() == checkpoint.state


def replayed(study: Writer) -> bytes:
    """The proposer that the recorded updates give, from the very first."""
    proposer = make_proposer(study.info.proposer, study.info.space, study.info.seed)
    for _, batch in study.batches():
        proposer.update(batch)
    return proposer.save()


def spoil_checkpoints(path: Path, versions: int) -> None:
    """Flip a bit in the newest checkpoints."""
    with closing(sqlite3.connect(path)) as connection, connection:
        table = "autodropout_checkpoint"
        rows = connection.execute(
            f"SELECT version, state FROM {table} ORDER BY version DESC LIMIT {versions}"
        ).fetchall()
        for version, state in rows:
            middle = len(state) // 2
            spoiled = state[:middle] + bytes([state[middle] ^ 1]) + state[middle + 1 :]
            connection.execute(f"UPDATE {table} SET state = ? WHERE version = ?", (spoiled, version))
