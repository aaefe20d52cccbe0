"""Successive halving: who is stopped, and what a stopped child scores."""

import pytest

from autodropout.search.halving import Halving


def finished(halving: Halving, *runs: tuple[float, float]) -> None:
    """Children that had the first value at step 10 and ended with the second."""
    for number, (early, final) in enumerate(runs, start=100):
        assert not halving(number, 10, early)
        halving.finished(number, ((10, early), (30, final)), final)


def test_nobody_is_stopped_before_enough_have_finished() -> None:
    halving = Halving(first=10, factor=3)
    assert not any(halving(number, 10, -number) for number in range(10))


def test_the_best_third_goes_on() -> None:
    halving = Halving(first=10, factor=3)
    finished(halving, (0.1, 0.5), (0.2, 0.6), (0.3, 0.7))
    assert halving(1, 10, 0.05), "worse than all"
    assert not halving(2, 10, 0.4), "better than all"
    assert halving(3, 10, 0.2)
    assert not halving(4, 10, 0.35), "second of seven"


def test_equals_go_on_together() -> None:
    """At an early rung nobody may have learned anything yet."""
    halving = Halving(first=10, factor=3)
    finished(halving, (0.1, 0.5), (0.1, 0.6), (0.1, 0.7))
    assert not any(halving(number, 10, 0.1) for number in range(20))


def test_only_the_first_report_at_a_rung_counts() -> None:
    halving = Halving(first=10, factor=3)
    finished(halving, (0.1, 0.5), (0.2, 0.6), (0.3, 0.7))
    assert not halving(1, 9, -5.0), "before the first rung"
    assert not halving(1, 12, 0.9)
    assert not halving(1, 13, -5.0), "judged at this rung already"
    assert not halving(1, 31, 0.9), "nobody else came to the second rung but those that finished"


def test_a_stopped_child_is_credited_with_the_usual_gain_but_never_beyond_the_middle() -> None:
    halving = Halving(first=10, factor=3)
    finished(halving, (0.1, 0.5), (0.2, 0.6), (0.3, 0.7))
    assert halving(1, 10, 0.05)
    assert halving.reward(1, ((10, 0.05),)) == pytest.approx(0.45)
    assert halving(2, 10, 0.29)
    assert halving.reward(2, ((10, 0.29),)) == pytest.approx(0.6)


def test_a_resumed_study_judges_as_before() -> None:
    halving, resumed = Halving(first=10, factor=3), Halving(first=10, factor=3)
    finished(halving, (0.1, 0.5), (0.2, 0.6), (0.3, 0.7))
    assert halving(1, 10, 0.05)
    halving.reward(1, ((10, 0.05),))
    for early, final in ((0.1, 0.5), (0.2, 0.6), (0.3, 0.7)):
        resumed.resumed(((10, early), (30, final)), final)
    resumed.resumed(((10, 0.05),), None)
    for value in (0.04, 0.31, 0.2, 0.25, 0.5):
        assert halving(int(value * 100), 10, value) == resumed(int(value * 100), 10, value)


def test_a_child_that_died_is_judged_again_and_counts_once() -> None:
    halving, fresh = Halving(first=10, factor=3), Halving(first=10, factor=3)
    assert not halving(7, 10, 0.05), "nobody has finished yet"
    assert not halving(7, 30, 0.15)
    halving.lost(7)
    for judge in (halving, fresh):
        finished(judge, (0.1, 0.5), (0.2, 0.6), (0.3, 0.7))
    assert halving(7, 10, 0.05), "hopeless by now"
    assert fresh(7, 10, 0.05)
    halving.reward(7, ((10, 0.05),))
    for number, value in enumerate((0.04, 0.31, 0.2, 0.25, 0.5)):
        assert halving(number, 10, value) == fresh(number, 10, value)
    assert [seen for seen in halving._rungs if seen] == fresh._rungs


@pytest.mark.parametrize(("first", "factor", "message"), [(0, 3, "got 0"), (5, 1, "got 1")])
def test_mistakes(first: int, factor: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Halving(first, factor)
