"""The command line with a recipe that takes no time: `python tiny_recipe.py search tiny`.

SECONDS in the environment is how long a child takes, LOADED a file that workers wait for while they load it, BROKEN
makes it raise.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import small_study
from autodropout import recipes
from autodropout.data import Reads
from autodropout.spaces import Policy, Space
from autodropout.training.run import Run, Scores

SCRIPT = __file__


@dataclass(frozen=True)
class Training:
    """Its score is a function of the policy."""

    reads = Reads("digits")

    def space(self) -> Space:
        return small_study.SPACE

    def fit(self, regularizer: Policy | None, rate: float, seed: int, run: Run) -> Scores:
        time.sleep(float(os.environ.get("SECONDS", "0")))
        if "BROKEN" in os.environ:
            raise KeyError("no such column")
        if run.folder is not None:
            run.folder.mkdir(parents=True, exist_ok=True)
        score = 0.5 if regularizer is None else small_study.score(regularizer)
        return Scores(score, {"validation_accuracy": score})

    def smoke(self) -> "Training":
        return self

    def __reduce__(self) -> object:
        return _loaded, ()


def _loaded() -> Training:
    while "LOADED" in os.environ and not os.path.exists(os.environ["LOADED"]):
        time.sleep(0.05)
    return Training()


TINY = recipes.Recipe(
    name="tiny",
    what="nothing is trained",
    proxy=Training(),
    final=Training(),
    rate=0.2,
    trials=8,
    workers=2,
    capacity=4,
    minibatch=4,
    floor=0.0,
    on_cpu=True,
)


def install(set_attribute: Callable[[object, str, object], None] = setattr) -> None:
    """Let it be the only recipe, under two names."""
    set_attribute(recipes, "RECIPES", ("tiny", "other"))
    set_attribute(recipes, "get", {"tiny": TINY, "other": replace(TINY, name="other")}.__getitem__)


if __name__ == "__main__":
    from autodropout.cli import app

    install()
    app(prog_name="autodropout")
