"""A ledger with one trial of each outcome, and one that is still waiting."""

from made_trials import SPACE

from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposal
from autodropout.search.reading import Reader
from autodropout.search.records import Failure, Outcome, StudyInfo
from autodropout.search.states import FailureKind, State


def write_study(url: str) -> Reader:
    ledger = Ledger(url)
    with ledger.drive(StudyInfo("made", SPACE, "random", 0, 16, 4, 0.0)) as study:
        study.propose([Proposal(SPACE.encode(SPACE.sample(number)), -1.0, 0) for number in range(5)])
        study.start(range(4))
        study.record(
            [
                Outcome(0, State.FINISHED, 0.5, ((1, 0.25), (2, 0.5))),
                Outcome(1, State.FINISHED, 0.0, failure=Failure(FailureKind.DIVERGED, "the score is nan")),
                Outcome(2, State.FAILED, failure=Failure(FailureKind.CRASH, "no memory")),
                Outcome(3, State.STOPPED, 0.25, ((1, 0.25),)),
            ]
        )
    return ledger.read("made")
