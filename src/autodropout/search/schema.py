"""The tables of a ledger, their version, and the way from an older one to the present.

    study 1--* trial        one row per trial, written at proposal, start, outcome and update
    study 1--* update       one row per update of the proposer; `trial.update` points back
    study 1--* checkpoint   the proposer's bytes: the last two versions and every 64th
    study 1--1 lease        who drives the study; its `token` fences off everybody else

To change a table: raise `VERSION` and add the step from the version before it to `UPGRADES`. A step runs in the same
transaction that records the new version.
"""

from collections.abc import Callable

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    inspect,
    select,
    text,
)

from autodropout.search.errors import BadSchema
from autodropout.search.states import State

VERSION = 1
UPGRADES: dict[int, Callable[[Connection], None]] = {}
"""By version: the step from it to the next."""

metadata = MetaData()


def _any_of(*states: State) -> str:
    return ", ".join(str(state.value) for state in states)


schema_version = Table("autodropout_schema", metadata, Column("version", Integer, nullable=False))

study = Table(
    "autodropout_study",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("space", Text, nullable=False),  # JSON
    Column("proposer", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("capacity", Integer, nullable=False),
    Column("minibatch", Integer, nullable=False),
    Column("floor", Double, nullable=False),
    Column("created", Double, nullable=False),  # seconds since 1970, as all times here
    Column("versions", Text, nullable=False),  # JSON
    Column("attributes", Text, nullable=False),  # JSON
)

lease = Table(
    "autodropout_lease",
    metadata,
    Column("study", ForeignKey(study.c.id), primary_key=True),
    Column("token", Integer, nullable=False),
    Column("owner", String(32)),  # NULL: nobody
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("scope", Text, nullable=False),  # where the pid has its meaning: one boot of one machine, one namespace
    Column("birth", Text, nullable=False),  # when the process started, so that a reused pid is seen
    Column("since", Double, nullable=False),
    Column("expires", Double, nullable=False),
)

update = Table(
    "autodropout_update",
    metadata,
    Column("study", ForeignKey(study.c.id), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("trials", Text, nullable=False),  # JSON; the order matters to the bit
    Column("metrics", Text, nullable=False),  # JSON
    Column("finished", Double, nullable=False),
)

trial = Table(
    "autodropout_trial",
    metadata,
    Column("study", ForeignKey(study.c.id), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", SmallInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("log_prob", Double),
    Column("value", Double),
    Column("stopped", Boolean, nullable=False),
    Column("update", Integer),
    Column("started", Double),
    Column("finished", Double),
    Column("tokens", LargeBinary, nullable=False),  # one byte each
    Column("worker", Text),
    Column("failure", Text),
    # Long columns last: SQLite reads no further into a row than it is asked to.
    Column("message", Text),
    Column("traceback", Text),
    Column("curve", Text),  # JSON
    ForeignKeyConstraint(["study", "update"], [update.c.study, update.c.number]),
    CheckConstraint(f"state IN ({_any_of(*State)})", name="autodropout_known_state"),
    CheckConstraint(f'(state = {State.APPLIED.value}) = ("update" IS NOT NULL)', name="autodropout_applied_once"),
    CheckConstraint(
        f"(state IN ({_any_of(State.FINISHED, State.APPLIED, State.STOPPED)})) = (value IS NOT NULL)",
        name="autodropout_scored",
    ),
)

checkpoint = Table(
    "autodropout_checkpoint",
    metadata,
    Column("study", ForeignKey(study.c.id), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("sha256", String(64), nullable=False),
    Column("state", LargeBinary, nullable=False),
)


def stored_version(connection: Connection) -> int | None:
    """The version of the schema, or None where there is none."""
    if not inspect(connection).has_table(schema_version.name):
        return None
    return int(connection.execute(select(schema_version.c.version)).scalar_one())


def check_version(connection: Connection) -> bool:
    """Whether there is a ledger to read; BadSchema when this autodropout cannot read it."""
    version = stored_version(connection)
    if version is None:
        return False
    if version > VERSION:
        raise BadSchema(f"the ledger has schema {version}, this autodropout knows up to {VERSION}: upgrade autodropout")
    if version < VERSION:
        raise BadSchema(
            f"the ledger has schema {version}, this autodropout reads {VERSION}; resuming a study in it upgrades it"
        )
    return True


def create_or_upgrade(connection: Connection, driven: Callable[[Connection], str | None]) -> None:
    """Bring the schema to the present version, inside the caller's transaction, unless somebody is using it."""
    version = stored_version(connection)
    if version is None:
        metadata.create_all(connection)
        if connection.dialect.name == "postgresql":  # checkpoints do not compress: do not try at every update
            connection.execute(text(f"ALTER TABLE {checkpoint.name} ALTER COLUMN state SET STORAGE EXTERNAL"))
        connection.execute(schema_version.insert().values(version=VERSION))
        return
    if version < VERSION:
        if owner := driven(connection):
            raise BadSchema(
                f"the ledger must be upgraded from schema {version} to {VERSION}, but {owner}: end it first"
            )
        for step in range(version, VERSION):
            UPGRADES[step](connection)
        connection.execute(schema_version.update().values(version=VERSION))
    check_version(connection)
