"""The command line with a recipe that takes no time: `python tiny_recipe.py search tiny`.

SECONDS in the environment is how long a child takes, BROKEN makes it raise.
"""

import os
import time
from collections.abc import Callable

import small_study
from autodropout import recipes
from autodropout.spaces import Policy

SCRIPT = __file__


def child(policy: Policy, seed: int, report: object) -> float:
    time.sleep(float(os.environ.get("SECONDS", "0")))
    if "BROKEN" in os.environ:
        raise KeyError("no such column")
    return small_study.score(policy)


TINY = recipes.Recipe(
    name="tiny",
    what="nothing is trained",
    space=lambda: small_study.SPACE,
    child=child,
    rate=0.2,
    trials=8,
    workers=2,
    capacity=4,
    minibatch=4,
    floor=0.0,
)


def install(set_attribute: Callable[[object, str, object], None] = setattr) -> None:
    """Let it be the only recipe."""
    set_attribute(recipes, "RECIPES", ("tiny",))
    set_attribute(recipes, "get", {"tiny": TINY}.__getitem__)


if __name__ == "__main__":
    from autodropout.cli import app

    install()
    app(prog_name="autodropout")
