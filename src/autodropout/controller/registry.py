"""Proposers by name, as `--proposer` and `ad.search(proposer=...)` take them."""

from collections.abc import Callable

from autodropout.controller.controller import Controller
from autodropout.controller.evolution import Evolution
from autodropout.controller.optuna_bridge import TPE
from autodropout.controller.random import RandomSearch
from autodropout.controller.reinforce import FAST, PAPER
from autodropout.search.protocols import Proposer
from autodropout.spaces import Space

_MAKE: dict[str, Callable[[Space, int], Proposer]] = {
    "controller": lambda space, seed: Controller(space, seed, FAST),
    "controller-paper": lambda space, seed: Controller(space, seed, PAPER),
    "random": RandomSearch,
    "evolution": Evolution,
    "tpe": TPE,
}
_LOAD: dict[str, Callable[[Space, int, bytes], Proposer]] = {
    "controller": Controller.load,
    "controller-paper": Controller.load,
    "random": RandomSearch.load,
    "evolution": Evolution.load,
    "tpe": TPE.load,
}
PROPOSERS = tuple(_MAKE)
"""The names: `controller` learns by our setting `FAST`, `controller-paper` by the paper's."""


def make_proposer(name: str, space: Space, seed: int) -> Proposer:
    """A new proposer for a study with this seed."""
    return _MAKE[_known(name)](space, seed)


def load_proposer(name: str, space: Space, seed: int, state: bytes) -> Proposer:
    """The proposer that saved these bytes; ValueError when they are damaged, another's, or of another space."""
    return _LOAD[_known(name)](space, seed, state)


def _known(name: str) -> str:
    if name not in _MAKE:
        raise ValueError(f"{name!r} is not a proposer; there are {', '.join(PROPOSERS)}")
    return name
