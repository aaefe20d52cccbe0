"""Databases for the ledger's tests: everything runs on SQLite and on a PostgreSQL server of our own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_server import MISSING, Server, running_server
from ledger_tools import info
from ledger_zygote import Zygote

from autodropout.search.ledger import Ledger
from autodropout.search.writing import Writer


@pytest.fixture(scope="session")
def _server() -> Iterator[Server | None]:
    with running_server() as server:
        yield server


@pytest.fixture
def server(_server: Server | None) -> Server:
    if _server is None:
        pytest.skip(MISSING)
    return _server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/study.db"
    return request.getfixturevalue("server").schema()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with Ledger(url) as ledger:
        yield ledger


@pytest.fixture
def study(ledger: Ledger) -> Iterator[Writer]:
    """The study of `ledger_tools`, driven by this process."""
    with ledger.drive(info()) as study:
        yield study


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def second_zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()
