"""Every experiment as a function that returns its full configuration, and a way to get them by name.

    recipe = recipes.get("digits")
    study = ad.search(recipe.space(), recipe.child, recipe.trials, workers=recipe.workers)     # what `search` does
    recipe.final.fit(study.best.policy, rate=0.3, seed=0, run=Run(folder=Path("out")))         # what `train` does

- `catalogue`: the experiments by name, with the paper's figures; `recipe`: what one consists of
- `images`, `language`, `translation`, `digits`: their trainings, every number in sight
- `comparison`: variants trained with the same seeds; `after`: which ones the paper trains once a policy is found;
  `confirmation`: what new seeds say of the best policies of a search
"""

from typing import TYPE_CHECKING

from autodropout.lazy import lazy

if TYPE_CHECKING:
    from autodropout.recipes.recipe import Recipe
else:
    __getattr__, __dir__ = lazy(__name__, {"autodropout.recipes.recipe": ["Recipe"]})

RECIPES = (
    "digits",
    "cifar10",
    "cifar10-4k",
    "resnet50",
    "imagenet-10",
    "efficientnet-b0",
    "efficientnet-b3",
    "efficientnet-b5",
    "efficientnet-b7",
    "ptb",
    "ptb-small",
    "wikitext2",
    "iwslt14",
    "wmt14",
    "multi30k",
)
"""The names; here, because completing one on a command line must not take seconds to import torch."""


def get(name: str) -> "Recipe":
    """The recipe of that name, as its function returns it by default."""
    if name not in RECIPES:
        raise ValueError(f"{name!r} is not a recipe; there are {', '.join(RECIPES)}")
    from autodropout.recipes.catalogue import CATALOGUE

    return CATALOGUE[name]()


__all__ = ["RECIPES", "Recipe", "get"]
