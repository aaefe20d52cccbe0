"""Writing a study: what its one driver does.

    propose --> WAITING --start--> RUNNING --record--> FINISHED --apply--> APPLIED, with the update and its checkpoint
                   ^------------requeue-----+

Every call is one transaction: when it returns, its write is on disk; when it raises, nothing was written. Several
calls in `with writer.transaction():` are one together. Each transaction first checks that the driver still owns the
study. A thread of its own keeps the lease alive while the driver is busy elsewhere.
"""

import hashlib
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine, bindparam, func, select
from sqlalchemy.exc import DBAPIError

from autodropout.search import schema
from autodropout.search.database import translated
from autodropout.search.errors import LedgerError, LostLease, StateError, StorageError
from autodropout.search.lease import Lease
from autodropout.search.protocols import Proposal
from autodropout.search.reading import Reader, chunks
from autodropout.search.records import Curve, Failure, Outcome, Trial, Update, trial_seed
from autodropout.search.rows import failure_values, outcome_values, trial_values, update_record, update_values
from autodropout.search.states import TRANSITIONS, FailureKind, State
from autodropout.search.url import Address

KEPT_EVERY = 64
"""Beside the last two, each checkpoint whose version is a multiple of this is kept."""

INTERRUPTED = Failure(FailureKind.INTERRUPTED, "its driver ended while it ran")


class Writer(Reader):
    """A study and the right to write it. Close it, or use it as a context manager, to let another driver in."""

    def __init__(
        self, address: Address, readers: Engine, engine: Engine, connection: Connection, name: str, lease: Lease
    ) -> None:
        self._connection = connection
        self._writers = engine
        self._lease = lease
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._thread: int | None = None  # that has a transaction open
        self._doomed = False  # a statement of the open transaction failed
        self._lost: str | None = None
        self._closing = threading.Event()
        super().__init__(address, readers, name)
        self._sizes = [len(token.values) for token in self.info.space.tokens]
        self._heart = threading.Thread(target=self._keep_alive, name=f"lease of {name}", daemon=True)
        self._heart.start()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside are kept together or not at all. An inner one that raises is undone alone."""
        if os.getpid() != self._process:
            raise LostLease(f"study {self.info.name!r} is driven by process {self._process}, this is a fork of it")
        with self._lock, translated(self._address):
            if self._connection.in_transaction():
                with self._inner():
                    yield
            else:
                with self._outer():
                    yield

    def propose(self, proposals: Sequence[Proposal]) -> list[Trial]:
        """Enter new trials, WAITING, numbered on from the last."""
        for proposal in proposals:
            self._check_proposal(proposal)
        with self.transaction():
            number = schema.trial.c.number
            last = self._connection.execute(
                select(func.max(number)).where(schema.trial.c.study == self._study)
            ).scalar()
            trials = [
                Trial(
                    number=number,
                    state=State.WAITING,
                    tokens=tuple(proposal.tokens),
                    log_prob=None if proposal.log_prob is None else float(proposal.log_prob) + 0.0,
                    version=proposal.version,
                    seed=trial_seed(self.info.seed, number),
                )
                for number, proposal in enumerate(proposals, start=0 if last is None else last + 1)
            ]
            if trials:
                rows = [{"study": self._study, **trial_values(trial)} for trial in trials]
                self._connection.execute(schema.trial.insert(), rows)
        return trials

    def start(self, numbers: Sequence[int], worker: str | None = None) -> None:
        """WAITING -> RUNNING: one more attempt at each."""
        with self.transaction():
            self._check_moves(numbers, State.RUNNING)
            attempts = schema.trial.c.attempts + 1
            self._set(numbers, state=State.RUNNING.value, attempts=attempts, worker=worker, started=time.time())

    def record(self, outcomes: Sequence[Outcome]) -> list[bool]:
        """RUNNING -> FINISHED, STOPPED or FAILED; for each whether it counted.

        An answer that comes twice, or so late that its trial waits for another attempt, does not count and changes
        nothing. One for a trial that was never started raises.
        """
        with self.transaction():
            found = self._states({outcome.number for outcome in outcomes})
            for number, (state, attempts) in found.items():
                if state is State.WAITING and attempts == 0:
                    raise StateError(f"trial {number} was never started: it can have no outcome")
            running = {number for number, (state, _) in found.items() if state is State.RUNNING}
            counted = [self._first(running, outcome.number) for outcome in outcomes]
            now = time.time()
            rows = [
                {"study_": self._study, "number_": outcome.number, **outcome_values(outcome, now)}
                for outcome, counts in zip(outcomes, counted, strict=True)
                if counts
            ]
            self._update_each(rows)
        return counted

    def finish(self, number: int, value: float, curve: Curve = (), failure: Failure | None = None) -> bool:
        """A score. With `failure` when the child diverged and `value` is the study's floor."""
        return self.record([Outcome(number, State.FINISHED, value, curve, failure)])[0]

    def stop(self, number: int, value: float, curve: Curve = ()) -> bool:
        """A child that was ended early; `value` is the score its proposer shall see, if it sees one."""
        return self.record([Outcome(number, State.STOPPED, value, curve)])[0]

    def fail(self, number: int, failure: Failure, curve: Curve = ()) -> bool:
        """A child that gave no score, for good."""
        return self.record([Outcome(number, State.FAILED, None, curve, failure)])[0]

    def requeue(
        self, numbers: Sequence[int], limit: int, failure: Failure = INTERRUPTED
    ) -> tuple[list[int], list[int]]:
        """RUNNING -> WAITING with the same tokens and seed, or FAILED after `limit` attempts; the numbers of each."""
        with self.transaction():
            found = self._check_moves(numbers, State.WAITING)
            again = [number for number in numbers if found[number][1] < limit]
            failed = [number for number in numbers if found[number][1] >= limit]
            why = failure_values(failure)
            self._set(again, state=State.WAITING.value, worker=None, **why)
            self._set(failed, state=State.FAILED.value, finished=time.time(), **why)
        return again, failed

    def release(self, numbers: Sequence[int], failure: Failure = INTERRUPTED) -> None:
        """RUNNING -> WAITING, and the attempt does not count: it ended for a reason that is not the trial's."""
        with self.transaction():
            self._check_moves(numbers, State.WAITING)
            attempts = schema.trial.c.attempts - 1
            self._set(numbers, state=State.WAITING.value, attempts=attempts, worker=None, **failure_values(failure))

    def apply(self, numbers: Sequence[int], version: int, metrics: Mapping[str, float], checkpoint: bytes) -> Update:
        """An update of the proposer: its M trials become APPLIED; `checkpoint` is the proposer after it."""
        if len(numbers) != self.info.minibatch:
            raise ValueError(
                f"an update of study {self.info.name!r} has {self.info.minibatch} trials, got {len(numbers)}"
            )
        with self.transaction():
            self._check_moves(numbers, State.APPLIED)
            table = schema.update.c
            last = self._connection.execute(select(func.max(table.number)).where(table.study == self._study)).scalar()
            number = 0 if last is None else last + 1
            if version != number + 1:
                raise StateError(f"the proposer has seen {version} updates, with this one the ledger has {number + 1}")
            values = update_values(number, numbers, metrics, time.time())
            row = self._connection.execute(schema.update.insert().returning(*table), {"study": self._study, **values})
            update = update_record(row.one())
            self._set(numbers, state=State.APPLIED.value, update=number)
            self._store(version, checkpoint)
        return update

    def heartbeat(self) -> None:
        """Say that this driver is alive; LostLease when another has taken over."""
        with self.transaction():
            self._lease.beat(self._connection)

    def close(self) -> None:
        """Let another driver in. Trials that are RUNNING stay so until it queues them again."""
        if self._closing.is_set() or os.getpid() != self._process:
            return
        self._closing.set()
        self._heart.join()
        try:
            with suppress(LedgerError), self.transaction():  # lost or unreachable: there is nothing left to release
                self._lease.release(self._connection)
        finally:
            self._lost = f"study {self.info.name!r} was closed by its driver"
            self._connection.close()
            self._writers.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reading(self) -> AbstractContextManager[Connection]:
        """Inside a transaction a driver sees what it has written so far; outside it reads as everybody does."""
        return self._inside() if self._thread == threading.get_ident() else super()._reading()

    @contextmanager
    def _inside(self) -> Iterator[Connection]:
        with translated(self._address), self._dooming():
            yield self._connection

    @contextmanager
    def _outer(self) -> Iterator[None]:
        if self._lost:
            raise LostLease(self._lost)
        self._thread = threading.get_ident()
        try:
            with self._connection.begin():
                self._lease.check(self._connection)
                yield
                if self._doomed:
                    raise StorageError("a part of this transaction failed: nothing of it was kept")
        except LostLease as error:
            self._lost = str(error)
            raise
        finally:
            self._thread, self._doomed = None, False
            if self._connection.invalidated:  # and the lock went with the connection: do not connect anew
                self._lost = f"study {self.info.name!r}: the connection that owned it broke. Resume the study"

    @contextmanager
    def _inner(self) -> Iterator[None]:
        with self._dooming():
            part = self._connection.begin_nested()
            try:
                yield
            except BaseException:
                try:
                    part.rollback()
                except DBAPIError:  # the database has undone the whole transaction; what ended it says why
                    self._doomed = True
                raise
            part.commit()

    @contextmanager
    def _dooming(self) -> Iterator[None]:
        """After an error the database may have undone the open transaction: then what follows must not be kept."""
        if self._doomed:
            raise StorageError("an earlier part of this transaction failed: nothing of it will be kept")
        try:
            yield
        except DBAPIError:
            self._doomed = True
            raise

    def _keep_alive(self) -> None:
        while not self._closing.wait(self._lease.seconds / 3):
            try:
                self.heartbeat()
            except LostLease:
                return  # the next write says so to the driver
            except StorageError:
                continue  # the disk is full or busy: a later beat may succeed, and the fence holds in any case

    def _check_proposal(self, proposal: Proposal) -> None:
        sizes = self._sizes
        if len(proposal.tokens) != len(sizes) or not all(
            type(token) is int and 0 <= token < size for token, size in zip(proposal.tokens, sizes, strict=True)
        ):
            raise ValueError(f"{proposal.tokens} is no token string of this {self.info.space.describe()}")
        if proposal.log_prob is not None and not math.isfinite(proposal.log_prob):
            raise ValueError(f"a log-probability must be finite, got {proposal.log_prob!r}")
        if proposal.version < 0:
            raise ValueError(f"a proposer cannot have seen {proposal.version} updates")

    def _states(self, numbers: Iterable[int]) -> dict[int, tuple[State, int]]:
        """State and attempts of these trials; StateError when there is no such trial."""
        wanted = list(numbers)
        table = schema.trial.c
        found: dict[int, tuple[State, int]] = {}
        for chunk in chunks(wanted):
            rows = self._connection.execute(select(table.number, table.state, table.attempts).where(self._among(chunk)))
            found |= {number: (State(state), attempts) for number, state, attempts in rows}
        if missing := [number for number in wanted if number not in found]:
            raise StateError(f"study {self.info.name!r} has no trial {missing[0]}")
        return found

    def _check_moves(self, numbers: Sequence[int], target: State) -> dict[int, tuple[State, int]]:
        if len(set(numbers)) < len(numbers):
            raise StateError(f"a trial is named twice among {list(numbers)[:20]}")
        found = self._states(numbers)
        for number, (state, _) in found.items():
            if target not in TRANSITIONS[state]:
                raise StateError(f"trial {number} is {state.name} and cannot become {target.name}")
        return found

    @staticmethod
    def _first(running: set[int], number: int) -> bool:
        """Whether this is the first answer for a running trial."""
        if number in running:
            running.remove(number)
            return True
        return False

    def _set(self, numbers: Sequence[int], **values: Any) -> None:
        for chunk in chunks(numbers):
            self._connection.execute(schema.trial.update().where(self._among(chunk)).values(**values))

    def _update_each(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            table = schema.trial.c
            one = (table.study == bindparam("study_")) & (table.number == bindparam("number_"))
            self._connection.execute(schema.trial.update().where(one), rows)

    def _store(self, version: int, state: bytes) -> None:
        table = schema.checkpoint.c
        digest = hashlib.sha256(state).hexdigest()
        row = {"study": self._study, "version": version, "sha256": digest, "state": state}
        self._connection.execute(schema.checkpoint.insert(), row)
        old = (table.study == self._study) & (table.version < version - 1) & (table.version % KEPT_EVERY != 0)
        self._connection.execute(schema.checkpoint.delete().where(old))
