"""A study that is opened to be read."""

import os
from pathlib import Path

import pytest

import autodropout as ad
import small_study
from autodropout.search.errors import NoSuchStudy
from autodropout.search.ledger import Ledger
from autodropout.search.records import StudyInfo


def test_a_name_that_is_not_there_leaves_no_connection_open(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    with Ledger(f"sqlite:///{file}") as ledger:
        ledger.drive(StudyInfo("there", small_study.SPACE, "random", 0, 4, 4, 0.0)).close()
    before = connections(file)
    with pytest.raises(NoSuchStudy, match="missing"):
        ad.Study(f"sqlite:///{file}", "missing")
    assert connections(file) == before == 0
    study = ad.Study(f"sqlite:///{file}", "there")
    assert connections(file) > 0
    del study
    assert connections(file) == 0


def connections(file: Path) -> int:
    """How often this process has a file open."""
    return sum(os.path.realpath(f"/proc/self/fd/{number}") == str(file) for number in os.listdir("/proc/self/fd"))
