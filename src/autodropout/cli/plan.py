"""The plan of a study that `search` began: what it needs to go on, beside what its ledger fixes.

It is kept as the study's attributes, so that `resume` needs no arguments; every run of the study may change it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from autodropout.recipes import Recipe
from autodropout.search.records import StudyInfo

PER_CHILD = ("cpus_per_child", "gpus_per_child")
"""What a child takes of a cluster's nodes: said to one engine, and no other's business."""

FIXED = ("proposer", "seed", "capacity", "minibatch", "floor")
"""What the ledger keeps of a study; of these only the capacity may change."""

RESUME = "run the program that began it once more, the same call to ad.search resumes it"


def settings_of(info: StudyInfo) -> dict[str, Any]:
    """What is fixed of a study, and its capacity as it was asked for: the last run may have raised that for its
    workers, and the next one may have fewer."""
    return {what: getattr(info, what) for what in FIXED} | {"capacity": info.attributes.get("capacity", info.capacity)}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of a recipe, and how it is run."""

    recipe: str
    trials: int
    workers: int | None  # None: the recipe's on this machine, all that fit into a cluster
    out: str
    data: str | None = None  # the folder of datasets; None: where they are looked for unasked
    engine: str = "local"
    cpus_per_child: float = 1.0
    gpus_per_child: float = 0.0
    deadline: float | None = None
    early_stopping: bool = False
    rung: int = 1

    @classmethod
    def of_recipe(cls, recipe: Recipe, study: str) -> Self:
        """That of a new study."""
        return cls(recipe.name, recipe.trials, workers=None, out=f"out/{study}")

    @classmethod
    def of_study(cls, info: StudyInfo, instead: str = RESUME) -> Self:
        """As the last run of a study left it; `instead` is what to do with a study that has no plan."""
        known = {field.name: info.attributes[field.name] for field in fields(cls) if field.name in info.attributes}
        if not known.keys() >= {"recipe", "trials", "workers", "out"}:
            raise ValueError(f"study {info.name!r} was not begun by `autodropout search`: {instead}")
        return cls(**known)

    def changed(self, given: Mapping[str, Any]) -> Self:
        """With what was given on the command line; None was not. Another engine starts with the usual resources."""
        changes = {name: value for name, value in given.items() if value is not None}
        if changes.get("engine", self.engine) != self.engine:
            changes = {field.name: field.default for field in fields(self) if field.name in PER_CHILD} | changes
        return replace(self, **changes)
