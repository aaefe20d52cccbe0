"""Shared by all tests: one thread, so that tests side by side do not wait for each other, and a fixed seed before each test."""

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def pytest_configure() -> None:
    torch.set_num_threads(1)
