"""The full configuration of one experiment."""

from collections.abc import Callable
from dataclasses import dataclass

from autodropout.search.jobs import Child
from autodropout.spaces import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is searched, by which training, and with how much of it; the numbers are defaults that a user may change."""

    name: str
    what: str  # in one line
    space: Callable[[], Space]
    child: Child  # pickles, so that workers and clusters can have it
    rate: float  # at which the child puts a policy on its model
    trials: int
    workers: int
    capacity: int
    minibatch: int
    floor: float  # what a child that diverges scores

    def __post_init__(self) -> None:
        for name in ("trials", "workers", "capacity", "minibatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"recipe {self.name!r}: {name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"recipe {self.name!r}: rate must lie in [0, 1], got {self.rate}")
