"""The ledger: a database of studies, the one place where a search keeps what it must not lose.

    with Ledger("sqlite:///study.db") as ledger:
        ledger.read("mine").counts()                       # anybody, at any time
        with ledger.drive(StudyInfo("mine", space, ...)) as study:   # one driver: creates the study, or resumes it
            (trial,) = study.propose([proposal])
            study.start([trial.number])
            study.finish(trial.number, 0.93)

- `url`, `filesystems`, `database`: which database, and connections to it
- `schema`, `rows`: its tables, and the way to the records of `records` and `states`
- `lease`, `owning`: who may write, and the driver's transactions; `reading`, `writing`: what readers and the driver do
"""

import time
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine, text

from autodropout.search import lease, schema
from autodropout.search.database import read_engine, translated, write_engine
from autodropout.search.errors import NoSuchStudy, StudyMismatch
from autodropout.search.reading import Reader, find_study, reading
from autodropout.search.records import StudyInfo
from autodropout.search.rows import study_info, study_values, write_json
from autodropout.search.url import parse_url
from autodropout.search.writing import Writer

_CREATION_LOCK = int.from_bytes(b"autodrop", "big")


class Ledger:
    """A database of studies. Opening it touches nothing; a file or tables are made by the first `drive`."""

    def __init__(self, url: str) -> None:
        self._address = parse_url(url)
        self._readers: Engine | None = None

    def __repr__(self) -> str:
        return f"Ledger({str(self._address)!r})"

    def studies(self) -> list[StudyInfo]:
        """Every study in the ledger, by name."""
        with reading(self._address, self._reading_engine()) as connection:
            return [study_info(row) for row in connection.execute(schema.study.select().order_by(schema.study.c.name))]

    def read(self, name: str) -> Reader:
        """A study, to be read."""
        return Reader(self._address, self._reading_engine(), name)

    def drive(self, info: StudyInfo, lease_seconds: float = lease.LEASE_SECONDS) -> Writer:
        """Own a study: the one of this name, which must be the same study, or a new one.

        Capacity and attributes may change: from now on an existing study has those of `info`, and the attributes that
        `info` does not name as they were.
        """
        engine = write_engine(self._address)
        with translated(self._address):
            connection = engine.connect()
            try:
                with connection.begin():
                    _prepare(connection)
                    study = _create_or_check(connection, info)
                with connection.begin():  # on its own: it may wait a little, and others may want to create theirs
                    held = lease.acquire(connection, study, info.name, lease_seconds)
                    _change(connection, info)
                return Writer(self._address, self._reading_engine(), engine, connection, info.name, held)
            except BaseException:
                connection.close()
                engine.dispose()
                raise

    def close(self) -> None:
        if self._readers is not None:
            self._readers.dispose()
            self._readers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reading_engine(self) -> Engine:
        if self._readers is None:
            engine = read_engine(self._address)
            try:
                with reading(self._address, engine) as connection:
                    if not schema.check_version(connection):
                        raise NoSuchStudy(f"{self._address}: there is no ledger here yet")
            except BaseException:
                engine.dispose()
                raise
            self._readers = engine
        return self._readers


def _prepare(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":  # SQLite's write transactions exclude each other anyway
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
    schema.create_or_upgrade(connection, lease.driven)


def _create_or_check(connection: Connection, info: StudyInfo) -> int:
    try:
        study, existing = find_study(connection, info.name)
    except NoSuchStudy:
        insert = schema.study.insert().values(**study_values(info, time.time())).returning(schema.study.c.id)
        return int(connection.execute(insert).scalar_one())
    if differences := existing.differences(info):
        raise StudyMismatch(
            f"study {info.name!r} exists with {'; '.join(differences)}: choose another name, or ask for what it has, "
            "to resume it"
        )
    return study


def _change(connection: Connection, info: StudyInfo) -> None:
    study, existing = find_study(connection, info.name)
    attributes = write_json({**existing.attributes, **info.attributes})
    same = schema.study.c.id == study
    connection.execute(schema.study.update().where(same).values(capacity=info.capacity, attributes=attributes))
