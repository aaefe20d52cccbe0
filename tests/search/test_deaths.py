"""Children that die before the first score: their search ends soon, unless it was a machine's fault."""

from collections.abc import Callable
from pathlib import Path

import pytest
from driver_tools import SPACE, DeadlyEngine, states, url

import autodropout as ad
from autodropout.search import engines
from autodropout.search.errors import ChildError
from autodropout.search.ledger import Ledger
from autodropout.search.states import State
from autodropout.study import search


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return url(tmp_path / "study.db")


def score(policy: ad.Policy, seed: int) -> float:
    return seed / 2**31


def deadly(monkeypatch: pytest.MonkeyPatch, dies: Callable[[int, int], bool | None]) -> type[DeadlyEngine]:
    engine = type("Engine", (DeadlyEngine,), {"dies": staticmethod(dies)})
    monkeypatch.setattr(engines, "LocalEngine", engine)
    return engine


@pytest.mark.parametrize("workers", [1, 4])
def test_a_study_gives_up_soon_when_all_children_die(
    storage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    """Each death may have taken ten minutes."""
    deadly(monkeypatch, lambda given, number: True)
    died = "3 times in a row all children under way died, and none ever gave a score; the last: the worker's process"
    with pytest.raises(ChildError, match=died):
        search(SPACE, score, 50, workers=workers, proposer="random", storage=storage)
    with Ledger(storage) as ledger:
        attempts = sum(trial.attempts for trial in ledger.read("study").trials())
    assert 3 <= attempts <= 4 * workers
    told = "study 'study': trial 0 failed in attempt 1 of 3: the worker's process exited with code 3"
    assert [told in message for message in caplog.messages] == [True], "once"


def test_machines_that_die_before_the_first_score_do_not_end_a_study(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly(monkeypatch, lambda given, number: given < 8)
    search(SPACE, score, 10, workers=4, proposer="random", storage=storage)
    assert states(storage) == {State.FINISHED: 10}


def test_one_bad_machine_does_not_end_a_study_while_others_are_at_work(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly(monkeypatch, lambda given, number: (False if given > 6 else None) if number == 0 else given < 7)
    search(SPACE, score, 10, workers=2, proposer="random", storage=storage)
    assert states(storage) == {State.FINISHED: 10}


def test_crowds_that_die_are_tried_alone_before_anybody_gives_up(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Many:
        def __call__(self, policy: ad.Policy, seed: int) -> float:
            return 0.5

        train_many = None

    deadly(monkeypatch, lambda given, number: given < 5)
    search(SPACE, Many(), 10, job=2, capacity=10, proposer="random", storage=storage)
    assert states(storage) == {State.FINISHED: 10}
