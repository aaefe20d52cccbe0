"""What the driver makes of answers that look like scores, and what it says of the floor."""

import math
from pathlib import Path

import pytest
from driver_tools import SPACE, InlineEngine, by_number, check_study, states, url

import autodropout as ad
from autodropout.controller import make_proposer
from autodropout.search import engines
from autodropout.search.halving import Halving
from autodropout.search.ledger import Ledger
from autodropout.search.records import StudyInfo
from autodropout.search.states import FailureKind, State
from autodropout.study import search


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """And no processes."""
    monkeypatch.setattr(engines, "LocalEngine", InlineEngine)
    return url(tmp_path / "study.db")


def score(policy: ad.Policy, seed: int) -> float:
    return seed / 2**31


@pytest.mark.parametrize("proposer", ["controller", "controller-paper", "evolution"])
def test_a_score_beyond_all_reason_has_diverged(storage: str, proposer: str) -> None:
    """The negative perplexity, say, of a training that exploded: finite, and its square is not."""
    child = by_number({1: lambda: -1e160, 2: lambda: 1e101}, lambda number: 1.0 + number)
    study = search(SPACE, child, 12, minibatch=4, capacity=4, proposer=proposer, storage=storage)
    for number, text in ((1, "-1e+160"), (2, "1e+101")):
        trial = study.trials[number]
        assert (trial.record.value, trial.failure.kind) == (0.0, FailureKind.DIVERGED)
        assert f"the child's score is {text}" in trial.failure.message
    check_study(storage)


def test_a_study_with_such_a_score_from_before_goes_on(storage: str) -> None:
    with Ledger(storage) as ledger, ledger.drive(StudyInfo("study", SPACE, "controller", 0, 4, 4, 0.0)) as study:
        numbers = [trial.number for trial in study.propose(make_proposer("controller", SPACE, 0).propose(range(4)))]
        study.start(numbers)
        for number in numbers:
            study.finish(number, -1e160 if number == 1 else -5.0)
    search(SPACE, score, 12, minibatch=4, capacity=4, storage=storage)
    assert states(storage) == {State.APPLIED: 12}
    check_study(storage)


def test_a_stopped_childs_curve_beyond_all_reason_has_diverged(storage: str) -> None:
    def child(policy: ad.Policy, seed: int, report) -> float:
        for step in range(1, 10):
            report(step, -1e200 if seed % 3 == 0 else seed / 2**31 * step / 9)
        return seed / 2**31

    study = search(SPACE, child, 20, minibatch=4, proposer="random", storage=storage, halving=Halving(first=3))
    records = [trial.record for trial in study.trials]
    exploded = [trial for trial in records if len(trial.curve) == 3 and trial.seed % 3 == 0]
    assert exploded
    assert all(trial.failure.kind is FailureKind.DIVERGED and trial.value == 0.0 for trial in exploded)
    assert all(abs(trial.value) <= 1 for trial in records)


@pytest.mark.parametrize(("floor", "told"), [(0.0, 1), (-3.0, 1), (-3.5, 0)])
def test_a_floor_that_is_a_reward_is_said_once(
    storage: str, floor: float, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    child = by_number({0: lambda: math.nan}, lambda number: -2.0 - number % 2)
    search(SPACE, child, 6, proposer="random", storage=storage, floor=floor)
    words = f"scored -3, no more than the floor, {floor:g}, which a child that diverges counts as"
    assert [words in message for message in caplog.messages] == [True] * told
    assert all("the argument floor= of ad.search" in message for message in caplog.messages), "how to change it"
