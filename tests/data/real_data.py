"""The real datasets, for the tests that need one: from AUTODROPOUT_DATA, or the test is skipped."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autodropout.data import MissingData


def folder_of(where: Callable[[Path], Path]) -> Path:
    """The folder of datasets, if one of them is there."""
    named = os.environ.get("AUTODROPOUT_DATA")
    if not named:
        pytest.skip("needs real data: set AUTODROPOUT_DATA to a folder of datasets")
    try:
        where(Path(named))
    except MissingData as missing:
        pytest.skip(f"needs real data: {missing}")
    return Path(named)


def present(data: Path, *names: str) -> Path:
    """For data that no dataset of ours describes."""
    for name in names:
        if not (data / name).is_dir():
            raise MissingData(f"no {data / name}")
    return data
