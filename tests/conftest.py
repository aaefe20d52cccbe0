"""Shared by all tests: one thread, so that tests side by side do not wait for each other; a fixed seed; no clock for
Hypothesis; a study, a PostgreSQL server."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch

import small_study

if TYPE_CHECKING:
    from ledger_server import Server

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton: its kernels then run on a CPU


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def pytest_configure() -> None:
    torch.set_num_threads(1)
    too_slow = [hypothesis.HealthCheck.too_slow]  # which a machine may be that has much else to do
    hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=too_slow)
    hypothesis.settings.load_profile("tests")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; all we start would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ledger with the study "small": 32 scored trials of a trivial child, from a real search with two workers."""
    url = f"sqlite:///{tmp_path_factory.mktemp('small') / Path('study.db')}"
    small_study.search(url)
    return url


@pytest.fixture(scope="session")
def _server() -> Iterator["Server | None"]:
    from ledger_server import running_server  # needs psycopg, which other tests do without

    with running_server() as server:
        yield server


@pytest.fixture
def server(_server: "Server | None") -> "Server":
    if _server is None:
        from ledger_server import MISSING

        pytest.skip(MISSING)
    return _server
