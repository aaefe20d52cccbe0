"""What an answer comes to: a score of the child's own, one that it is given, or none, and its trial is tried again."""

import math

from autodropout.search.halving import Halving
from autodropout.search.jobs import Answer
from autodropout.search.records import Failure, Outcome, StudyInfo
from autodropout.search.states import FailureKind, State


class Outcomes:
    """The outcomes of a study's trials; `halving`: its judge of early stopping, if it has one."""

    def __init__(self, info: StudyInfo, halving: Halving | None) -> None:
        self._info, self._halving = info, halving

    def of(self, answer: Answer) -> Outcome | None:
        """The score of a trial, its own or one given to it; None when it has to be tried again."""
        number, curve = answer.number, answer.curve
        if answer.stopped:
            assert self._halving is not None, "only a judge stops a child"
            return Outcome(number, State.STOPPED, self._halving.reward(number, curve), curve)
        if answer.value is not None and math.isfinite(answer.value):
            if self._halving is not None:
                self._halving.finished(number, curve, answer.value)
            return Outcome(number, State.FINISHED, answer.value + 0.0, curve)  # no -0.0: a ledger has one zero
        failure = failure_of(answer)
        if failure.kind is FailureKind.DIVERGED:
            return Outcome(number, State.FINISHED, self._info.floor, curve, failure)
        return None


def failure_of(answer: Answer) -> Failure:
    """Why there is no score. Workers see that a score is not finite, but this is the last gate before a ledger."""
    if answer.failure is None:
        return Failure(FailureKind.DIVERGED, f"the child's score is {answer.value}")
    return answer.failure
