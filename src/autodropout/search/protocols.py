"""What the search asks of those it works with, and the records that pass between them. No torch here.

proposer --Proposal--> ledger --Job--> engine --> child --score--> ledger --Scored x M--> proposer.update
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from autodropout.spaces import Space


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that a proposer wants tried, with what an importance weight needs later."""

    tokens: tuple[int, ...]
    log_prob: float | None  # of the tokens under the proposer that wrote them; None where that has no meaning
    version: int  # how many updates the proposer had seen
    seed: int | None = None  # the child's; None: it follows from the study's and the trial's number


@dataclass(frozen=True, slots=True)
class Scored:
    """A finished trial, as a proposer sees it."""

    number: int  # the trial's number in its study, from 0
    tokens: tuple[int, ...]
    log_prob: float | None
    version: int
    value: float  # finite; higher is better


class Proposer(Protocol):
    """Who proposes. All state is in the object; it saves itself as bytes that need no pickle to load."""

    version: int  # how many updates it has seen

    def propose(self, numbers: Sequence[int]) -> list[Proposal]:
        """One proposal for each trial number: a function of the study's seed, the number and the present state."""
        ...

    def update(self, batch: Sequence[Scored]) -> dict[str, float]:
        """Learn from one minibatch; returns what is worth recording about the update."""
        ...

    def save(self) -> bytes:
        """Everything needed to go on, to the bit."""
        ...

    @classmethod
    def load(cls, space: Space, seed: int, state: bytes) -> Self:
        """The proposer that was saved; ValueError when the bytes are damaged or belong to another space."""
        ...
