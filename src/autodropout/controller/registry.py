"""Proposers by name, as `--proposer` and `ad.search(proposer=...)` take them.

The names alone need no torch; the proposers are imported when one is made.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from autodropout.search.protocols import Proposer
    from autodropout.spaces import Space

PROPOSERS = ("controller", "controller-paper", "random", "evolution", "tpe")
"""The names: `controller` learns by our setting `FAST`, `controller-paper` by the paper's."""


def make_proposer(name: str, space: "Space", seed: int) -> "Proposer":
    """A new proposer for a study with this seed."""
    return _kind(name)(space, seed)


def load_proposer(name: str, space: "Space", seed: int, state: bytes) -> "Proposer":
    """The proposer that saved these bytes; ValueError when they are damaged, another's, or of another space."""
    return _kind(name).load(space, seed, state)


class _Kind(Protocol):
    """A class of proposers."""

    def __call__(self, space: "Space", seed: int) -> "Proposer": ...

    def load(self, space: "Space", seed: int, state: bytes) -> "Proposer": ...


def _kind(name: str) -> _Kind:
    if name not in PROPOSERS:
        raise ValueError(f"{name!r} is not a proposer; there are {', '.join(PROPOSERS)}")
    from autodropout.controller.controller import Controller, PaperController
    from autodropout.controller.evolution import Evolution
    from autodropout.controller.optuna_bridge import TPE
    from autodropout.controller.random import RandomSearch

    kinds: dict[str, _Kind] = {kind.name: kind for kind in (Controller, PaperController, RandomSearch, Evolution, TPE)}
    return kinds[name]
