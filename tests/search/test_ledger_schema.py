"""Ledgers of other versions: a newer one is refused, an older one upgraded by its first driver, as a whole."""

import pytest
from ledger_tools import finish, info, proposals
from sqlalchemy import Connection, inspect, text

from autodropout.search import schema
from autodropout.search.errors import BadSchema
from autodropout.search.ledger import Ledger
from autodropout.search.writing import Writer


def set_version(study: Writer, version: int) -> None:
    with study.transaction():
        study._connection.execute(schema.schema_version.update().values(version=version))


def test_a_newer_ledger_is_refused(ledger: Ledger, url: str) -> None:
    with ledger.drive(info()) as study:
        finish(study, 2)
        set_version(study, schema.VERSION + 1)
    with Ledger(url) as again:
        for call in (again.studies, lambda: again.read("mine"), lambda: again.drive(info())):
            with pytest.raises(
                BadSchema, match=rf"schema {schema.VERSION + 1}, .* up to {schema.VERSION}: upgrade autodropout"
            ):
                call()


def add_column(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE autodropout_trial ADD COLUMN colour TEXT"))


def add_column_and_fail(connection: Connection) -> None:
    add_column(connection)
    raise ZeroDivisionError


def columns(study: Writer) -> list[str]:
    with study._reading() as connection:
        return [column["name"] for column in inspect(connection).get_columns("autodropout_trial")]


def test_an_older_ledger_is_upgraded_by_its_first_driver(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(url) as ledger, ledger.drive(info()) as study:
        finish(study, 2)
        before = study.trials()
        monkeypatch.setattr(schema, "VERSION", 3)
        monkeypatch.setattr(schema, "UPGRADES", {1: add_column_and_fail, 2: lambda connection: None})
        with Ledger(url) as newer:
            with pytest.raises(BadSchema, match="has schema 1, this autodropout reads 3; resuming"):
                newer.read("mine")
            with pytest.raises(BadSchema, match=r"'mine' is being driven by process .*: end it first"):
                newer.drive(info())
    with Ledger(url) as newer:
        with pytest.raises(ZeroDivisionError):
            newer.drive(info())
        with pytest.raises(BadSchema, match="has schema 1"):  # the failed upgrade left it as it was
            newer.read("mine")
        monkeypatch.setattr(schema, "UPGRADES", {1: add_column, 2: lambda connection: None})
        with newer.drive(info()) as study:
            assert "colour" in columns(study)
            assert study.trials() == before
            study.propose(proposals(1))
        with newer.drive(info()) as study:  # once is enough
            assert len(study.trials()) == 3


def test_every_upgrade_is_there() -> None:
    assert sorted(schema.UPGRADES) == list(range(1, schema.VERSION))


def test_the_tables_of_version_1_are_what_they_were() -> None:
    """Whoever changes a table must raise the version: studies of last month have the old one."""
    found = {table.name: [column.name for column in table.columns] for table in schema.metadata.sorted_tables}
    assert found == {
        "autodropout_schema": ["version"],
        "autodropout_study": [
            "id", "name", "space", "proposer", "seed", "capacity", "minibatch", "floor", "created", "versions",
            "attributes",
        ],
        "autodropout_lease": ["study", "token", "owner", "host", "pid", "scope", "birth", "since", "expires"],
        "autodropout_update": ["study", "number", "trials", "metrics", "finished"],
        "autodropout_trial": [
            "study", "number", "state", "attempts", "version", "seed", "log_prob", "value", "stopped", "update",
            "started", "finished", "tokens", "worker", "failure", "message", "traceback", "curve",
        ],
        "autodropout_checkpoint": ["study", "version", "sha256", "state"],
    }  # fmt: skip
