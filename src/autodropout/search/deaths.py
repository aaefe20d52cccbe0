"""When to give up on children that die or hang, and never give a score: another death may come an hour later.

What counts are rounds: a round is over when all that was under way at its first death has died. So a machine that takes
all its workers with it, once, is one round; and children that die young again and again on one bad machine have no say
while others are at work on good ones.
"""

from collections.abc import Iterable, Sequence

from autodropout.search.errors import ChildError
from autodropout.search.records import Failure, Trial
from autodropout.search.states import FailureKind

ROUNDS = 3
"""So many in a row, and a driver gives up."""


class Deaths:
    """Of one driver, until its first score. `alone`: jobs carry one trial each."""

    def __init__(self, alone: bool) -> None:
        self.over = False  # a child gave a score
        self._alone = alone
        self._rounds = 0
        self._left: set[int] | None = None  # of the present round: what has not ended yet

    def count(self, trials: Sequence[Trial], failure: Failure, running: Iterable[int]) -> ChildError | None:
        """These have failed, those are still running: the error, when that is enough."""
        if self.over or failure.kind is FailureKind.USER_ERROR:
            return None
        if self._left is None:
            if not self._alone and not any(map(has_failed, trials)):
                return None  # the crowd may have been too large: alone, as they are tried again, they may live
            self._left = set(running)
        self._left -= {trial.number for trial in trials}
        if self._left:
            return None
        self._left = None
        self._rounds += 1
        if self._rounds < ROUNDS:
            return None
        return child_error(
            f"{ROUNDS} times in a row all children under way died, and none ever gave a score; the last", failure
        )


def has_failed(trial: Trial) -> bool:
    """Whether a trial waits for another attempt: it goes alone, as it may be what ended all that were in its job, and
    those shall not fail with it again. That its driver ended was no fault of theirs."""
    return trial.attempts > 0 and trial.failure is not None and trial.failure.kind is not FailureKind.INTERRUPTED


def child_error(what: str, failure: Failure) -> ChildError:
    message = f"{what}: {failure.message}"
    return ChildError(f"{message}\n\n{failure.traceback}" if failure.traceback else message)
