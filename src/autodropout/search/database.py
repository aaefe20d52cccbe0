"""Connections to the two databases, set up for what a ledger needs, and their errors in words.

SQLite: a write-ahead log, so that readers and the writer never wait for each other; `synchronous=FULL`, so that what
was committed survives a power cut; write transactions that take the lock when they begin, since one that only
discovers later that it must write can fail for no fault of its own. PostgreSQL: psycopg 3, and keepalives on both
sides, so that the server gives a vanished driver's lock back after about a minute instead of two hours.
"""

import importlib.util
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from autodropout.search import errors
from autodropout.search.filesystems import network_file_system
from autodropout.search.url import Address

BUSY_SECONDS = 60.0
"""How long SQLite waits for another process's write transaction."""

RETRY_SECONDS = 0.02
"""Between two attempts at what SQLite itself does not wait for."""

KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}

LOG_PAGES = 4000
"""Pages of the log before SQLite copies it into the file: a few updates with their checkpoints, about 16 MB."""


def write_engine(address: Address) -> Engine:
    """For the one connection of a driver. Creates SQLite's file."""
    if address.path is None:
        return _postgresql(address, poolclass=NullPool)
    _check_place(address, address.path)
    engine = _sqlite(f"{address.path.absolute().as_uri()}?mode=rwc", "BEGIN IMMEDIATE", NullPool)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        mode = _set_journal(connection, address)
        if mode != address.journal:
            raise errors.BadAddress(f"{address}: the file system allows no write-ahead log; add ?journal=delete")
        # Without the log, a commit is the removal of a file: EXTRA flushes the folder too.
        connection.execute(f"PRAGMA synchronous={'FULL' if address.journal == 'wal' else 'EXTRA'}")
        connection.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
        connection.execute("PRAGMA foreign_keys=ON")

    return engine


def read_engine(address: Address) -> Engine:
    """For readers: cannot write, never blocks a driver; a transaction sees one state of the database throughout."""
    if address.path is None:
        engine = _postgresql(address, poolclass=QueuePool, pool_pre_ping=True)
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    if not address.path.is_file():
        raise errors.NoSuchStudy(f"{address}: there is no file {address.path}")
    _check_place(address, address.path)
    engine = _sqlite(f"{address.path.absolute().as_uri()}?{_reading_mode(address.path)}", "BEGIN", QueuePool)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA query_only=ON")

    return engine


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """Errors of the database leave as ours: one type for each cause, what to do about it, no password."""
    try:
        yield
    except DBAPIError as error:
        kind, advice = _sqlite_cause(error) if address.path else _postgresql_cause(error)
        lines = (" ".join(line.split()) for line in str(error.orig).splitlines())  # libpq writes several
        problem = "; ".join(filter(None, lines))
        ours = kind(address.mask(f"{address}: {problem}{advice}"))
        try:
            raise ours
        finally:
            ours.__context__ = None  # psycopg's error holds the parameters of its connection, the password among them


def _sqlite(uri: str, begin: str, pool: type[NullPool | QueuePool]) -> Engine:
    def connect() -> sqlite3.Connection:
        # isolation_level=None: Python's module begins no transactions of its own; the event below does.
        return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    engine = create_engine("sqlite://", creator=connect, poolclass=pool, hide_parameters=True)

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _set_journal(connection: sqlite3.Connection, address: Address) -> str:
    """Set how SQLite keeps its journal, and return what it is then. To change it, SQLite must have the file alone for a
    moment, and does not wait until others, who may be creating the same ledger, are done."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            (mode,) = connection.execute(f"PRAGMA journal_mode={address.journal}").fetchone()
            return str(mode)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # without what kind of busy
                raise
            if time.monotonic() > until:
                raise errors.StorageBusy(
                    f"{address}: {error}: it is open elsewhere, so that its journal cannot become {address.journal!r}. "
                    "Close it there, this process's own studies among them, or leave the journal as it is"
                ) from None
        time.sleep(RETRY_SECONDS)


def _postgresql(address: Address, **options: Any) -> Engine:
    if importlib.util.find_spec("psycopg") is None:
        raise errors.BadAddress("PostgreSQL is reached through psycopg 3: pip install 'autodropout[postgresql]'")
    arguments: dict[str, object] = {"connect_timeout": 30, "application_name": "autodropout", **KEEPALIVE}
    given = {key: value for key, value in arguments.items() if key not in address.url.query}
    engine = create_engine(address.url, hide_parameters=True, connect_args=given, **options)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            for name, value in KEEPALIVE.items():
                cursor.execute(f"SET tcp_{name} = {value}")
        connection.commit()

    return engine


def _check_place(address: Address, path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise errors.BadAddress(f"{address}: there is no folder {path.absolute().parent}")
    if path.exists() and not path.is_file():
        raise errors.BadAddress(f"{address}: {path} is not a file")
    if address.journal == "wal" and (kind := network_file_system(path)):
        raise errors.BadAddress(
            f"{address}: {path} is on a network file system ({kind}), where SQLite can lose what it wrote. Put it on a "
            "local disk or use PostgreSQL; where the file system's locks work, ?journal=delete is safe and slower"
        )


def _reading_mode(path: Path) -> str:
    """Even a reader writes beside the file, to tell the writer what it still needs; a copy on read-only ground is read
    as it stands."""
    if os.access(path.absolute().parent, os.W_OK) and os.access(path, os.W_OK):
        return "mode=rw"
    log = path.with_name(path.name + "-wal")
    return "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"


def _sqlite_cause(error: DBAPIError) -> tuple[type[errors.LedgerError], str]:
    name: str = getattr(error.orig, "sqlite_errorname", "")
    match name.split("_")[1:2]:
        case ["FULL"]:
            return errors.StorageFull, ". Nothing of this write was kept; what was written before is intact"
        case ["BUSY" | "LOCKED"]:
            return errors.StorageBusy, f": another process has been writing for {BUSY_SECONDS:.0f} s"
        case ["NOTADB"]:
            return errors.BadAddress, ": the file is something else; name another"
        case ["CORRUPT"]:
            return errors.StorageDamaged, ". Restore a copy, or save what is left with `sqlite3 FILE .recover`"
        case ["CANTOPEN" | "READONLY" | "PERM" | "AUTH"]:
            return errors.StorageError, ": check that the file and its folder may be written"
        case _:
            return errors.StorageError, f" ({name})" if name else ""


def _postgresql_cause(error: DBAPIError) -> tuple[type[errors.LedgerError], str]:
    code: str | None = getattr(error.orig, "sqlstate", None)
    if code is None or error.connection_invalidated or code.startswith(("08", "28", "3D", "57P")):
        return errors.StorageLost, ""
    if code.startswith("53"):
        return errors.StorageFull, ". Nothing of this write was kept; what was written before is intact"
    if code.startswith("XX"):
        return errors.StorageDamaged, ""
    return errors.StorageError, f" ({code})"
