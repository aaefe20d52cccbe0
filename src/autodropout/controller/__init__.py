"""WHO proposes: the paper's controller, uniform random search, regularized evolution, Optuna's samplers.

- `transformer`: the controller's network: sampling with a cache, log-probabilities
- `reinforce`: how it learns: settings, importance weights, one update (the paper's "Search Algorithm")
- `controller`: the two as a proposer
- `random`, `evolution`, `optuna_bridge`: the others
- `registry`: all of them by name
- `draws`, `state`, `history`: seeded random numbers, saving to bytes
"""

from typing import TYPE_CHECKING

from autodropout.controller.registry import PROPOSERS, load_proposer, make_proposer
from autodropout.lazy import lazy

if TYPE_CHECKING:
    from autodropout.controller.controller import Controller
    from autodropout.controller.evolution import Evolution
    from autodropout.controller.random import RandomSearch
    from autodropout.controller.reinforce import FAST, PAPER, Settings, Weighting
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "autodropout.controller.controller": ["Controller"],
            "autodropout.controller.evolution": ["Evolution"],
            "autodropout.controller.random": ["RandomSearch"],
            "autodropout.controller.reinforce": ["FAST", "PAPER", "Settings", "Weighting"],
        },
    )

__all__ = [
    "FAST",
    "PAPER",
    "PROPOSERS",
    "Controller",
    "Evolution",
    "RandomSearch",
    "Settings",
    "Weighting",
    "load_proposer",
    "make_proposer",
]
