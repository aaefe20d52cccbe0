"""What an answer comes to: a score, the child's own or one it is given; or a reason for which its trial is tried again.

This is the last gate before a ledger: what a worker calls a score is looked at once more.
"""

import logging

from autodropout.search.halving import Halving
from autodropout.search.jobs import Answer
from autodropout.search.records import GREATEST_SCORE, Failure, Outcome, StudyInfo
from autodropout.search.states import FailureKind, State

log = logging.getLogger("autodropout")


class Outcomes:
    """The outcomes of a study's trials; `halving`: its judge of early stopping, if it has one."""

    def __init__(self, info: StudyInfo, halving: Halving | None) -> None:
        self._info, self._halving = info, halving
        self._told = False  # that the floor is not below all scores

    def of(self, answer: Answer) -> Outcome | Failure:
        """The outcome of a trial; a failure when it has to be tried again."""
        number, value, curve = answer.number, answer.value, answer.curve
        if answer.stopped:
            assert self._halving is not None, "only a judge stops a child"
            value = self._halving.reward(number, curve)
        if value is None or not abs(value) <= GREATEST_SCORE:  # nan is not
            failure = answer.failure or Failure(FailureKind.DIVERGED, f"the child's score is {value}")
            if failure.kind is FailureKind.DIVERGED:
                return Outcome(number, State.FINISHED, self._info.floor, curve, failure)
            if self._halving is not None:
                self._halving.lost(number)
            return failure
        if answer.stopped:
            return Outcome(number, State.STOPPED, value, curve)
        if self._halving is not None:
            self._halving.finished(number, curve, value)
        self._compare_with_floor(number, value)
        return Outcome(number, State.FINISHED, value + 0.0, curve)  # no -0.0: a ledger has one zero

    def _compare_with_floor(self, number: int, value: float) -> None:
        """Say once that the floor, which shall be a punishment, is none."""
        if value <= self._info.floor and not self._told:
            self._told = True
            told = (
                "study %r: trial %d scored %g, no more than the floor, %g, which a child that diverges counts as: the "
                "search may learn to diverge. Begin a study of another name, whose floor is below all scores: the "
                "argument floor= of ad.search"
            )
            log.warning(told, self._info.name, number, value, self._info.floor)
