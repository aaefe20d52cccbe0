"""Drivers of a ledger to be killed (see `zygote`)."""

import os
import time

import psycopg  # noqa: F401 (before the fork, or every child would import it)
from ledger_tools import MINIBATCH, info, learned, proposal, replayed, value

from autodropout.search.errors import LedgerError
from autodropout.search.ledger import Ledger
from autodropout.search.states import State
from autodropout.search.writing import Writer
from zygote import Log, crashing, serve


def drive(url: str, log: str, capacity: int = 12, seconds: float = 60) -> None:
    """A small driver: resumes, then proposes, starts, finishes and applies until it is killed."""
    say = Log(log)
    with Ledger(url) as ledger, ledger.drive(info()) as study:
        _drive(study, say, capacity, time.monotonic() + seconds)


def _drive(study: Writer, say: Log, capacity: int, deadline: float) -> None:
    running = [trial.number for trial in study.trials({State.RUNNING})]
    study.requeue(running, limit=10**6)
    say(op="resumed", running=running)
    checkpoint = study.checkpoint()
    assert not checkpoint.damaged
    state, version = checkpoint.state or b"", checkpoint.version
    assert replayed(study) == state
    while time.monotonic() < deadline:
        waiting = [trial.number for trial in study.trials({State.WAITING})]
        first = sum(study.counts().values())
        new = study.propose([proposal(n, version) for n in range(first, first + capacity - len(waiting))])
        say(op="proposed", numbers=[trial.number for trial in new])
        numbers = waiting + [trial.number for trial in new]
        study.start(numbers)
        say(op="started", numbers=numbers)
        for number in numbers:
            assert study.finish(number, value(number))
            say(op="finished", number=number)
        ready = study.trials({State.FINISHED})
        while len(ready) >= MINIBATCH:
            batch, ready = ready[:MINIBATCH], ready[MINIBATCH:]
            state, version = learned(state, [trial.scored() for trial in batch]), version + 1
            numbers = [trial.number for trial in batch]
            study.apply(numbers, version, {"loss": 1.0}, state)
            say(op="applied", version=version, numbers=numbers)


def crash(url: str, log: str, commit: int, after: bool) -> None:
    """The same driver, killed exactly before or after its commit number `commit`."""
    say = Log(log)
    with Ledger(url) as ledger, ledger.drive(info(), lease_seconds=3600) as study:  # no heartbeat: it commits too
        dialect = study._connection.dialect
        dialect.do_commit = crashing(dialect.do_commit, commit, after)
        _drive(study, say, 4, time.monotonic() + 60)


def hold(url: str, log: str, lease_seconds: float) -> None:
    """Owns the study and writes to it every now and then; says what comes of it."""
    say = Log(log)
    try:
        with Ledger(url) as ledger, ledger.drive(info(), lease_seconds) as study:
            say(op="owned", pid=os.getpid())
            while True:
                time.sleep(0.05)
                study.propose([proposal(0)])
                say(op="wrote")
    except LedgerError as error:
        say(op="refused", kind=type(error).__name__, message=str(error))


def write_as(url: str, log: str, user: int) -> None:
    """Reads and drives a study as another user."""
    say = Log(log)
    os.setgid(user)
    os.setuid(user)
    try:
        with Ledger(url) as ledger:
            say(op="read", trials=len(ledger.read("mine").trials()))
            ledger.drive(info())
    except LedgerError as error:
        say(op="refused", kind=type(error).__name__, message=str(error))


if __name__ == "__main__":
    serve({task.__name__: task for task in (drive, crash, hold, write_as)})
