"""Simulated studies by seed: the driver keeps its promises whatever workers do. One alone: `-k "simulation[17]"`."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver_simulation import Simulation

from autodropout.search.ledger import Ledger


@pytest.fixture(scope="module")
def memory() -> Iterator[Ledger]:
    """A ledger in memory where there is a file system of that kind: what is tested is the driver, not the disk."""
    shared = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder,
        Ledger(f"sqlite:///{folder}/studies.db") as ledger,
    ):
        yield ledger


@pytest.mark.parametrize("seed", range(100))
def test_simulation(memory: Ledger, seed: int) -> None:
    Simulation(memory, seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 1000))
def test_more_simulations(memory: Ledger, seed: int) -> None:
    Simulation(memory, seed).run()


@pytest.mark.parametrize("proposer", ["controller", "controller-paper", "evolution"])
@pytest.mark.parametrize("seed", [1001, 1002])
def test_simulation_with_a_proposer_that_learns(memory: Ledger, seed: int, proposer: str) -> None:
    Simulation(memory, seed, proposer).run()
