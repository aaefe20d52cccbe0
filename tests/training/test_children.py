"""What ends a child of a crowd: in good order without a word, by a mistake with one."""

import logging

import pytest

from autodropout.training.children import goes_on
from autodropout.training.run import Ended, Report


def raising(error: Exception) -> Report:
    def report(step: int, value: float) -> None:
        raise error

    return report


@pytest.mark.parametrize("error", [Ended(), FloatingPointError("nan")])
def test_an_end_in_good_order_is_not_worth_a_word(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autodropout"):
        assert not goes_on([raising(error)], 0, 7, 0.5)
    assert not caplog.records


def test_a_mistake_of_a_report_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It ends the child, whose score would otherwise look like that of one that diverged."""
    reports = [lambda step, value: None, raising(KeyError("no such column"))]
    assert goes_on(reports, 0, 7, 0.5)
    assert not goes_on(reports, 1, 7, 0.5)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == "child 1 of the crowd has no score: at step 7 its report raised KeyError('no such column')"
