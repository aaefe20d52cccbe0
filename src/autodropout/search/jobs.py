"""Work, as it travels between a driver and an engine: a job of one or more trials out, one answer a trial back.

A worker gets a policy and a seed and returns a score; it holds no database credentials. Proposers, children and
engines are protocols, so that none of them needs to know another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autodropout.search.records import Curve, Failure
from autodropout.spaces import Policy

Report = Callable[[int, float], None]
"""`report(step, value)`: what a child may call while it trains. Raises `Stopped` when nobody waits for its score."""


class Stopped(Exception):
    """Raised inside a child by `report`: its curve is hopeless, its training may end."""


class Child(Protocol):
    """The user's training: a policy and a seed in, a validation score out; higher is better.

    It may also offer `train_many(policies, seeds, reports) -> scores`, to train several children in one job on one GPU.
    That has to catch what a report raises, `Stopped` or, for a value that is not finite, `FloatingPointError`: it ends
    one of the children. The score of that one does not matter; nan is a good choice. How many it likes to train at once
    it may say as `crowd`, an integer: that many trials make a job where there is a GPU.
    """

    def __call__(self, policy: Policy, seed: int, report: Report) -> float: ...


@dataclass(frozen=True, slots=True)
class Task:
    """One trial, as a worker sees it."""

    number: int
    policy: str  # JSON
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a task: a score, or why there is none. `stopped`: `report` told the child to stop."""

    number: int
    value: float | None = None
    curve: Curve = ()
    failure: Failure | None = None
    stopped: bool = False


Judge = Callable[[int, int, float], bool]
"""`judge(trial, step, value)`: whether that trial should stop. Called from an engine's threads, one at a time."""


class Engine(Protocol):
    """Where children run. A job it has taken is answered in full, whatever happens to the worker."""

    def free(self) -> int:
        """How many more jobs it can take now; this may change as workers come and go."""
        ...

    def submit(self, job: Sequence[Task]) -> None:
        """Start a job."""
        ...

    def answers(self, timeout: float) -> list[Answer]:
        """The answers that have come in; waits for one, for `timeout` seconds at most."""
        ...

    def close(self) -> None:
        """End every worker, at once. Jobs under way are lost."""
        ...
