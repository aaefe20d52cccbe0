"""Every experiment as a function that returns its full configuration, and a way to get them by name.

A recipe's numbers are defaults; whoever starts a search may give others:

    recipe = recipes.get("digits")
    study = ad.search(recipe.space(), recipe.child, recipe.trials, workers=recipe.workers)
"""

import importlib

from autodropout.recipes.recipe import Recipe

_HOMES = {"digits": "autodropout.recipes.digits"}  # modules with a function of that name; the names need no torch
RECIPES = tuple(_HOMES)


def get(name: str) -> Recipe:
    """The recipe of that name, as its function returns it by default."""
    if name not in _HOMES:
        raise ValueError(f"{name!r} is not a recipe; there are {', '.join(RECIPES)}")
    made: Recipe = getattr(importlib.import_module(_HOMES[name]), name)()
    return made


__all__ = ["RECIPES", "Recipe", "get"]
