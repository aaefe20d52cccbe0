"""A small study for tests of the ledger, and a proposer whose state shows everything it ever learned from."""

import hashlib
from collections.abc import Sequence

from autodropout.search.protocols import Proposal, Scored
from autodropout.search.records import Failure, StudyInfo
from autodropout.search.states import FailureKind
from autodropout.search.writing import Writer
from autodropout.spaces import ConvSpace

SPACE = ConvSpace(groups=((32, 32), (16, 16)))
MINIBATCH = 4
CRASH = Failure(FailureKind.CRASH, "killed by signal 9", "Traceback ...")


def info(name: str = "mine", **changes) -> StudyInfo:
    fields = {"space": SPACE, "proposer": "random", "seed": 7, "capacity": 16, "minibatch": MINIBATCH, "floor": 0.0}
    return StudyInfo(name=name, **(fields | changes))


def proposal(number: int, version: int = 0) -> Proposal:
    """What the tests propose as trial `number`."""
    return Proposal(SPACE.encode(SPACE.sample(number)), -0.1 * number, version)


def proposals(count: int, first: int = 0) -> list[Proposal]:
    return [proposal(number) for number in range(first, first + count)]


def value(number: int) -> float:
    """What trial `number` scores."""
    return int.from_bytes(hashlib.sha256(str(number).encode()).digest()[:6], "big") / 2**48


def learned(state: bytes, batch: Sequence[Scored]) -> bytes:
    """The state of a proposer after one more update: it depends on every bit of every batch, and on their order."""
    return hashlib.sha256(state + repr(tuple(batch)).encode()).digest()


def replayed(study: Writer, state: bytes = b"", after: int = 0) -> bytes:
    for _, batch in study.batches(after):
        state = learned(state, batch)
    return state


def finish(study: Writer, count: int) -> list[int]:
    """Propose, run and finish so many trials."""
    numbers = [trial.number for trial in study.propose(proposals(count))]
    study.start(numbers)
    for number in numbers:
        assert study.finish(number, value(number))
    return numbers


def update(study: Writer, state: bytes = b"", numbers: Sequence[int] | None = None) -> bytes:
    """Finish M trials, unless they are given, and apply them; the proposer's new state."""
    numbers = finish(study, MINIBATCH) if numbers is None else list(numbers)
    state = learned(state, [study.trial(number).scored() for number in numbers])
    version = len(study.updates()) + 1
    study.apply(numbers, version, {"loss": 0.5}, state)
    return state
