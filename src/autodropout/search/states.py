"""The states of a trial, and every way from one to another.

    WAITING ---start---> RUNNING ---finish---> FINISHED --apply--> APPLIED
       ^                  | | |                                       ^
       +-----requeue------+ | +------stop-----> STOPPED ----apply-----+
                            +------fail-----> FAILED

A trial never leaves APPLIED or FAILED. STOPPED is a child that was ended early: it has a value, which a proposer may
learn from, and is never the best.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum


class State(Enum):
    """Where a trial stands. The values are stored in ledgers: do not renumber."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    APPLIED = 3
    STOPPED = 4
    FAILED = 5


TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING}),
    State.RUNNING: frozenset({State.WAITING, State.FINISHED, State.STOPPED, State.FAILED}),
    State.FINISHED: frozenset({State.APPLIED}),
    State.STOPPED: frozenset({State.APPLIED}),
    State.APPLIED: frozenset(),
    State.FAILED: frozenset(),
}

OUTCOMES = frozenset({State.FINISHED, State.STOPPED, State.FAILED})
"""What can become of a running trial, other than to run again."""

PENDING = frozenset({State.WAITING, State.RUNNING})
"""Proposed and not yet finished: what the capacity C counts."""

SCORED = frozenset({State.FINISHED, State.STOPPED, State.APPLIED})
"""With a value: what `trials=` counts."""

WORDS = {  # for those who have not read the code
    State.WAITING: "waiting",
    State.RUNNING: "running",
    State.FINISHED: "finished and not yet learned from",  # not "scored": some may have diverged
    State.APPLIED: "learned from",
    State.STOPPED: "stopped early and not yet learned from",
    State.FAILED: "failed",
}
LEFT_RUNNING = "cut short when the driver ended (run again when the study is resumed)"
"""What a RUNNING trial is where nobody drives the study: its driver was killed, and could not give it back."""


AT_THE_END = {  # where no update will come that learns from them
    State.FINISHED: "finished after the last update",
    State.STOPPED: "stopped early after the last update",
}
ALONE = {State.FINISHED: "finished", State.STOPPED: "stopped early"}  # where none came at all


def in_words(counts: Mapping[State, int], driven: bool, complete: bool = False) -> str:
    """How many trials are in each state, for people; `complete`: the study has all its trials."""
    said = WORDS if driven else WORDS | {State.RUNNING: LEFT_RUNNING}
    if complete and not driven:
        applied = {State.APPLIED: WORDS[State.APPLIED]}  # first, as it was
        said = applied | said | (AT_THE_END if counts[State.APPLIED] else ALONE)
    return ", ".join(f"{counts[state]:,} {words}" for state, words in said.items() if counts[state]) or "none yet"


class FailureKind(StrEnum):
    """Why a child gave no score of its own."""

    CRASH = "crash"  # its process died
    TIMEOUT = "timeout"  # it passed its deadline
    OUT_OF_MEMORY = "out of memory"
    DIVERGED = "diverged"  # a non-finite loss or score; the trial is FINISHED with the study's floor
    USER_ERROR = "user error"  # the child raised, or returned what is not a score
    INTERRUPTED = "interrupted"  # its driver died
