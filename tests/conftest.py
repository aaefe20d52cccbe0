"""Shared by all tests: one thread, so that tests side by side do not wait for each other; a fixed seed; a study."""

from pathlib import Path

import pytest
import torch

import small_study


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def pytest_configure() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ledger with the study "small": 32 scored trials of a trivial child, from a real search with two workers."""
    url = f"sqlite:///{tmp_path_factory.mktemp('small') / Path('study.db')}"
    small_study.search(url)
    return url
