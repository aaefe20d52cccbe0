"""Every experiment as a function that returns its full configuration, and a way to get them by name.

A recipe's numbers are defaults; whoever starts a search may give others:

    recipe = recipes.get("digits")
    study = ad.search(recipe.space(), recipe.child, recipe.trials, workers=recipe.workers)
"""

from autodropout.recipes import digits
from autodropout.recipes.recipe import Recipe

_BY_NAME = {"digits": digits.digits}
RECIPES = tuple(_BY_NAME)


def get(name: str) -> Recipe:
    """The recipe of that name, as its function returns it by default."""
    if name not in _BY_NAME:
        raise ValueError(f"{name!r} is not a recipe; there are {', '.join(RECIPES)}")
    return _BY_NAME[name]()


__all__ = ["RECIPES", "Recipe", "get"]
