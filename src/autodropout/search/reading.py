"""Reading a study: what `status`, `report` and a resuming driver ask. Takes no lease and makes nobody wait."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import ARRAY, Connection, Engine, Integer, Select, any_, func, literal, select

from autodropout.search import lease, schema
from autodropout.search.database import translated
from autodropout.search.errors import NoSuchStudy, StorageDamaged
from autodropout.search.protocols import Scored
from autodropout.search.records import Checkpoint, Ended, Owner, StudyInfo, Trial, Update
from autodropout.search.rows import DECODERS, study_info, trial_record, update_record
from autodropout.search.states import State
from autodropout.search.url import Address
from autodropout.spaces import canonical

CHUNK = 1000
"""How many numbers one query names: every database takes that many parameters."""

RATE_SECONDS = 600.0
"""How far back the present rate looks."""


class Reader:
    """One study of a ledger. Each call sees one state of the database; two calls may see two."""

    def __init__(self, address: Address, engine: Engine, name: str) -> None:
        self._address = address
        self._engine = engine
        with self._reading() as connection:
            self._study, self.info = find_study(connection, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.info.name!r}, {str(self._address)!r})"

    def trial(self, number: int) -> Trial:
        found = self.trials(first=number, stop=number + 1)
        if not found:
            raise ValueError(f"study {self.info.name!r} has no trial {number}")
        return found[0]

    def trials(
        self, states: Collection[State] = (), first: int = 0, stop: int | None = None, limit: int | None = None
    ) -> list[Trial]:
        """Trials by number: of these states (of all, when none is named), numbered `first` to `stop - 1`."""
        query = self._select(schema.trial.select(), states, first, stop, limit)
        with self._reading() as connection:
            return [trial_record(row) for row in connection.execute(query)]

    def columns(
        self,
        names: Sequence[str],
        states: Collection[State] = (),
        first: int = 0,
        stop: int | None = None,
        limit: int | None = None,
    ) -> dict[str, list[Any]]:
        """The same as columns, reading no others: for tables and plots over many trials."""
        unknown = [name for name in names if name not in DECODERS]
        if unknown or not names:
            raise ValueError(f"a trial's columns are {', '.join(DECODERS)}; got {', '.join(unknown) or 'none'}")
        wanted = [DECODERS[name] for name in names]
        query = self._select(select(*(column for column, _ in wanted)), states, first, stop, limit)
        with self._reading() as connection:
            columns = list(zip(*connection.execute(query).all(), strict=True)) or [()] * len(names)
        return {
            name: list(stored if decode is None else map(decode, stored))
            for name, (_, decode), stored in zip(names, wanted, columns, strict=True)
        }

    def best(self) -> Trial | None:
        """The trial with the highest score; the earliest of equals."""
        return next(iter(self.top(1)), None)

    def top(self, count: int) -> list[Trial]:
        """The best trials first. Neither those stopped early nor those that diverged, whose value is not their own."""
        table = schema.trial.c
        done = table.state.in_([State.FINISHED.value, State.APPLIED.value])
        query = schema.trial.select().where(table.study == self._study, done, table.failure.is_(None), ~table.stopped)
        with self._reading() as connection:
            rows = connection.execute(query.order_by(table.value.desc(), table.number).limit(count))
            return [trial_record(row) for row in rows]

    def distinct(self, count: int) -> list[Trial]:
        """The same, one for each policy that does something else; a policy that drops nothing is none."""
        if type(count) is not int:
            raise ValueError(f"how many trials is asked for by an integer, got {count!r}")
        if count < 1:
            raise ValueError(f"at least one trial must be asked for, got {count}")
        wanted, space = count, self.info.space
        while True:
            trials = self.top(wanted)
            found: dict[tuple[int, ...], Trial] = {}
            for trial in trials:
                found.setdefault(canonical(space, trial.tokens), trial)
            kept = [trial for trial in found.values() if not space.decode(trial.tokens).drops_nothing]
            if len(kept) >= count or len(trials) < wanted:
                return kept[:count]
            wanted *= 2

    def counts(self) -> dict[State, int]:
        """How many trials are in each state."""
        state = schema.trial.c.state
        query = select(state, func.count()).where(schema.trial.c.study == self._study).group_by(state)
        with self._reading() as connection:
            found = {State(value): count for value, count in connection.execute(query)}
        return {state: found.get(state, 0) for state in State}

    def ended(self) -> Ended:
        """How many trials have a value, and whose it is."""
        table = schema.trial.c
        failed = table.failure.is_not(None)
        query = select(table.stopped, failed, func.count()).where(table.study == self._study, table.value.is_not(None))
        with self._reading() as connection:
            found = connection.execute(query.group_by(table.stopped, failed)).all()
        counts = {(bool(stopped), bool(diverged)): count for stopped, diverged, count in found}
        return Ended(counts.get((False, False), 0), counts.get((True, False), 0), counts.get((False, True), 0))

    def per_minute(self) -> float | None:
        """Scored trials a minute, over the last ten minutes in which there were any; None before the first."""
        table = schema.trial.c
        scored = (table.study == self._study) & table.value.is_not(None)
        ends = select(func.min(table.started), func.max(table.finished)).where(scored)
        with self._reading() as connection:
            first, last = connection.execute(ends).one()
            if last is None:
                return None
            first = max(first, last - RATE_SECONDS)
            recent = select(func.count()).where(scored, table.finished >= first)
            count: int = connection.execute(recent).scalar_one()
        return None if last <= first else 60.0 * count / (last - first)

    def updates(self, first: int = 0, stop: int | None = None) -> list[Update]:
        """Updates in their order, numbered `first` to `stop - 1`."""
        table = schema.update.c
        query = schema.update.select().where(table.study == self._study, table.number >= first).order_by(table.number)
        if stop is not None:
            query = query.where(table.number < stop)
        with self._reading() as connection:
            return [update_record(row) for row in connection.execute(query)]

    def batches(self, after: int = 0) -> Iterator[tuple[Update, tuple[Scored, ...]]]:
        """What the proposer learned from, once it had seen `after` updates: feed it again to get the same proposer."""
        while updates := self.updates(first=after, stop=after + 64):
            with self._reading() as connection:
                trials = self._by_number(connection, [number for update in updates for number in update.trials])
            for update in updates:
                yield update, tuple(trials[number].scored() for number in update.trials)
            after = updates[-1].version

    def checkpoint(self) -> Checkpoint:
        """The newest proposer whose bytes are those that were stored, and which newer ones are not."""
        table = schema.checkpoint.c
        versions = select(table.version, table.sha256).where(table.study == self._study).order_by(table.version.desc())
        damaged: list[int] = []
        with self._reading() as connection:
            known = connection.execute(versions).all()
        for version, digest in known:
            state = self._checkpoint_bytes(version)
            if state is not None and hashlib.sha256(state).hexdigest() == digest:
                return Checkpoint(version, state, tuple(damaged))
            damaged.append(version)
        return Checkpoint(0, None, tuple(damaged))

    def owner(self) -> Owner | None:
        """Who drives the study now, if anybody does."""
        with self._reading() as connection:
            return lease.owner_of(connection, self._study)

    def _reading(self) -> AbstractContextManager[Connection]:
        return reading(self._address, self._engine)

    def _select(
        self,
        query: Select[Any],
        states: Collection[State],
        first: int,
        stop: int | None,
        limit: int | None,
    ) -> Select[Any]:
        table = schema.trial.c
        query = query.where(table.study == self._study, table.number >= first).order_by(table.number)
        if stop is not None:
            query = query.where(table.number < stop)
        if states:
            query = query.where(table.state.in_(sorted(state.value for state in states)))
        return query if limit is None else query.limit(limit)

    def _by_number(self, connection: Connection, numbers: Sequence[int]) -> dict[int, Trial]:
        rows = (connection.execute(schema.trial.select().where(self._among(chunk))).all() for chunk in chunks(numbers))
        return {row.number: trial_record(row) for found in rows for row in found}

    def _among(self, numbers: Sequence[int]) -> Any:
        """The condition that a row is one of these trials, so written that each is looked up in the primary key."""
        table = schema.trial.c
        if self._engine.dialect.name == "sqlite":
            return (table.study == self._study) & table.number.in_(numbers)
        # PostgreSQL has no statistics of a young table and would read the whole study: hence the range. The numbers are
        # one array, because it plans for milliseconds around hundreds of parameters.
        within = table.number.between(min(numbers), max(numbers))
        return (table.study == self._study) & within & (table.number == any_(literal(list(numbers), ARRAY(Integer))))

    def _checkpoint_bytes(self, version: int) -> bytes | None:
        table = schema.checkpoint.c
        query = select(table.state).where(table.study == self._study, table.version == version)
        try:
            with self._reading() as connection:
                state = connection.execute(query).scalar()
        except StorageDamaged:  # the database itself cannot read it
            return None
        return None if state is None else bytes(state)


@contextmanager
def reading(address: Address, engine: Engine) -> Iterator[Connection]:
    """A connection that sees one state of the database."""
    with translated(address), engine.connect() as connection:
        yield connection


def find_study(connection: Connection, name: str) -> tuple[int, StudyInfo]:
    """Its number in the database, and what it is."""
    row = connection.execute(schema.study.select().where(schema.study.c.name == name)).first()
    if row is None:
        names = connection.execute(select(schema.study.c.name).order_by(schema.study.c.name)).scalars().all()
        raise NoSuchStudy(f"there is no study {name!r} here; there are {', '.join(map(repr, names)) or 'none yet'}")
    return row.id, study_info(row)


def chunks(numbers: Iterable[int]) -> Iterator[list[int]]:
    listed = sorted(numbers)  # so that each chunk lies close together
    for start in range(0, len(listed), CHUNK):
        yield listed[start : start + CHUNK]
