"""Ownership: one driver per study.

    driver A    acquire (token 7) ---- beat ---- beat ---- [suspended, or dead] ............ write: refused, token is 8
    driver B                     acquire: refused ......... A's lease ends, acquire (token 8) ---- write ----

The lease row holds the owner and a token that grows with every change of owner. Each write transaction of a driver
begins by checking its token, so one that was suspended and replaced can do no harm when it wakes up.

- SQLite: a lease holds until it expires, unless its process is known to be gone: same boot of the same machine, same
  pid namespace, and no process with that pid and time of birth. Told on Linux; elsewhere one waits for the expiry.
- PostgreSQL: an advisory lock on the connection through which the driver writes. The server frees it when that
  connection ends, and a connection that ended cannot write: the row only says who it is.
"""

import os
import socket
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, Row, bindparam, select, text

from autodropout.search import schema
from autodropout.search.errors import LostLease, StudyOwned
from autodropout.search.records import Owner

LEASE_SECONDS = 30.0
"""How long a driver that says nothing keeps its study. It speaks three times as often."""

GRACE_SECONDS = 2.0
"""How long a PostgreSQL server may take to notice that a driver's connection has ended."""

GONE_SECONDS = 60.0
"""The same where the driver let go of the study, or is known to be gone: a busy server comes to it when it can."""

_LOCK = text("SELECT pg_try_advisory_lock(CAST(CAST(CAST(:table AS regclass) AS oid) AS int), :study)")
_HELD = text(
    "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND objid = CAST(:study AS oid)"
    " AND classid = CAST(:table AS regclass)"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_OURS = (
    select(schema.lease.c.study)
    .where(schema.lease.c.study == bindparam("study_"), schema.lease.c.token == bindparam("token_"))
    .where(schema.lease.c.owner == bindparam("owner_"))
)
_MINE = schema.lease.update().where(
    schema.lease.c.study == bindparam("study_"),
    schema.lease.c.token == bindparam("token_"),
    schema.lease.c.owner == bindparam("owner_"),
)


@dataclass(frozen=True, slots=True)
class Lease:
    """A driver's hold on a study. Every method runs inside a transaction of its connection."""

    study: int
    name: str
    token: int
    seconds: float
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)

    def check(self, connection: Connection) -> None:
        """LostLease unless the study is still ours."""
        if connection.execute(_OURS, self._key()).first() is None:
            now = _present(connection, self.study)
            by = f"{_owner(now)} has taken it over" if now is not None and now.owner else "somebody has released it"
            raise LostLease(f"study {self.name!r} is not driven by this process any more: {by}. Nothing was written")

    def beat(self, connection: Connection) -> None:
        """Say that we are alive."""
        connection.execute(_MINE.values(expires=time.time() + self.seconds), self._key())

    def release(self, connection: Connection) -> None:
        connection.execute(_MINE.values(owner=None, expires=time.time()), self._key())

    def _key(self) -> dict[str, object]:
        return {"study_": self.study, "token_": self.token, "owner_": self.owner}


def lock(connection: Connection, study: int) -> bool:
    """Take PostgreSQL's lock for as long as the connection lives; SQLite has the lease row alone."""
    if connection.dialect.name != "postgresql":
        return True
    begun = time.monotonic()
    while not connection.execute(_LOCK, {"table": schema.lease.name, "study": study}).scalar_one():
        row = _present(connection, study)
        driven = row is not None and row.owner and not _gone(row)
        if time.monotonic() - begun > (GRACE_SECONDS if driven else GONE_SECONDS):
            return False
        time.sleep(0.05)
    return True


def acquire(connection: Connection, study: int, name: str, seconds: float) -> Lease:
    """Own the study, or StudyOwned with who does. To be called in a write transaction."""
    locked = lock(connection, study)
    row = _present(connection, study)
    if not locked or (row is not None and row.owner and connection.dialect.name == "sqlite" and _lives(row)):
        who = str(_owner(row)) if row is not None and row.owner else "a process that is just starting"
        until = f"; if it is dead, wait until {_owner(row).expires:%H:%M:%S} UTC" if locked and row is not None else ""
        raise StudyOwned(f"study {name!r} is being driven by {who}. A study has one driver at a time{until}")
    lease = Lease(study, name, 1 if row is None else row.token + 1, seconds)
    now = time.time()
    values = {
        "token": lease.token,
        "owner": lease.owner,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "scope": _scope(),
        "birth": _birth(os.getpid()) or "",
        "since": now,
        "expires": now + seconds,
    }
    if row is None:
        connection.execute(schema.lease.insert().values(study=study, **values))
    else:
        connection.execute(schema.lease.update().where(schema.lease.c.study == study).values(**values))
    return lease


def owner_of(connection: Connection, study: int) -> Owner | None:
    """Who drives the study now, if anybody does."""
    row = _present(connection, study)
    if row is None or not row.owner:
        return None
    if connection.dialect.name == "postgresql":
        held = connection.execute(_HELD, {"table": schema.lease.name, "study": study}).first()
        return _owner(row) if held and not _gone(row) else None
    return _owner(row) if _lives(row) else None


def driven(connection: Connection) -> str | None:
    """In words, a study of this ledger that is being driven."""
    for study, name in connection.execute(select(schema.study.c.id, schema.study.c.name)).all():
        if owner := owner_of(connection, study):
            return f"study {name!r} is being driven by {owner}"
    return None


def _present(connection: Connection, study: int) -> "Row[tuple[object, ...]] | None":
    return connection.execute(schema.lease.select().where(schema.lease.c.study == study)).first()


def _owner(row: "Row[tuple[object, ...]]") -> Owner:
    since, expires = (datetime.fromtimestamp(seconds, UTC) for seconds in (row.since, row.expires))
    return Owner(row.host, row.pid, since, expires, row.token)


def _lives(row: "Row[tuple[object, ...]]") -> bool:
    return bool(row.expires >= time.time()) and not _gone(row)


def _gone(row: "Row[tuple[object, ...]]") -> bool:
    """Whether the owner is known to be gone: on another machine, or in another namespace, nobody knows."""
    return bool(row.scope == _scope() and row.birth) and _birth(row.pid) != row.birth


def _scope() -> str:
    """Names the boot and the pid namespace of this process; on other systems nothing that could be equal elsewhere."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return uuid.uuid4().hex


def _birth(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None when it is gone, or only waits for its parent to notice."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name before may hold spaces
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
