"""Writing a study: what its one driver does.

    propose --> WAITING --start--> RUNNING --record--> FINISHED --apply--> APPLIED, with the update and its checkpoint
                   ^------------requeue-----+

Every call is one transaction: when it returns, its write is on disk; when it raises, nothing was written. Several
calls in `with writer.transaction():` are one together. How a study is owned, and transactions, are in `owning`.
"""

import hashlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select

from autodropout.search import schema
from autodropout.search.errors import StateError
from autodropout.search.owning import Owned
from autodropout.search.protocols import Proposal
from autodropout.search.reading import chunks
from autodropout.search.records import MAX_SEED, Curve, Failure, Outcome, Trial, Update, trial_seed
from autodropout.search.rows import failure_values, outcome_values, trial_values, update_record, update_values
from autodropout.search.states import TRANSITIONS, FailureKind, State

KEPT_EVERY = 64
"""Beside the last two, each checkpoint whose version is a multiple of this is kept."""

TICK = 2e-6
"""Seconds between two outcomes at least, so that they differ as `datetime` too, which counts in millionths."""

INTERRUPTED = Failure(FailureKind.INTERRUPTED, "its driver ended while it ran")


class Writer(Owned):
    """A study as its driver has it: every way from one state of a trial to another."""

    _latest: float | None = None  # when the last outcome was recorded; None: not looked up yet

    def propose(self, proposals: Sequence[Proposal]) -> list[Trial]:
        """Enter new trials, WAITING, numbered on from the last."""
        sizes = [len(token.values) for token in self.info.space.tokens]
        for proposal in proposals:
            self._check_proposal(proposal, sizes)
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
                    seed=trial_seed(self.info.seed, number) if proposal.seed is None else proposal.seed,
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
            now = self._after_all_others(time.time())
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

    def _check_proposal(self, proposal: Proposal, sizes: Sequence[int]) -> None:
        if len(proposal.tokens) != len(sizes) or not all(
            type(token) is int and 0 <= token < size for token, size in zip(proposal.tokens, sizes, strict=True)
        ):
            raise ValueError(f"{proposal.tokens} is no token string of this {self.info.space.describe()}")
        if proposal.log_prob is not None and not math.isfinite(proposal.log_prob):
            raise ValueError(f"a log-probability must be finite, got {proposal.log_prob!r}")
        if proposal.version < 0:
            raise ValueError(f"a proposer cannot have seen {proposal.version} updates")
        if proposal.seed is not None and not 0 <= proposal.seed <= MAX_SEED:
            raise ValueError(f"a child's seed is an integer in 0..2^63-1, got {proposal.seed!r}")

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

    def _after_all_others(self, now: float) -> float:
        """Now, or later where the clock was set back: a driver that resumes learns from outcomes in their order."""
        if self._latest is None:
            table = schema.trial.c
            query = select(func.max(table.finished)).where(table.study == self._study)
            self._latest = self._connection.execute(query).scalar() or 0.0
        self._latest = max(now, self._latest + TICK)
        return self._latest

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
