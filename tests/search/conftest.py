"""Databases for the ledger's tests: everything runs on SQLite and on a PostgreSQL server of our own."""

from collections.abc import Iterator
from pathlib import Path

import driver_zygote
import ledger_zygote
import pytest
from ledger_tools import info

from autodropout.search.ledger import Ledger
from autodropout.search.writing import Writer
from zygote import Zygote


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
    zygote = Zygote(ledger_zygote.__file__)
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def searches() -> Iterator[Zygote]:
    """Whole searches, in processes of their own."""
    zygote = Zygote(driver_zygote.__file__)
    yield zygote
    zygote.close()
