"""The command `recipes`: what there is to search and to train."""

import shutil
import textwrap
from typing import TYPE_CHECKING

import typer

from autodropout.cli.options import AsJson
from autodropout.cli.shell import print_json

if TYPE_CHECKING:
    from autodropout.recipes import Recipe

FIGURES = (
    "The paper's figures are percent of accuracy (on ImageNet top-1 / top-5), perplexity (validation / test) or BLEU; "
    "those marked (cited) it took from others' papers."
)


def recipes(as_json: AsJson = False) -> None:
    """List the experiments that `search` and `train` know.

    What each reproduces, the paper's figure, its cost, what was measured here.

    \b
    Examples:
      autodropout recipes
      autodropout recipes --json
    """
    from autodropout import recipes as known

    found = [known.get(name) for name in known.RECIPES]
    if as_json:
        print_json({"recipes": [_facts(recipe) for recipe in found]})
        return
    width = min(shutil.get_terminal_size().columns, 120)
    for recipe in found:
        typer.echo(f"{typer.style(recipe.name, bold=True)}  {recipe.what}")
        figures = ", ".join(f"{method} {figure}" for method, figure in recipe.paper.items())
        for label, text in (
            ("reproduces", recipe.reproduces),
            ("paper", figures),
            ("policy", recipe.policy_from and f"from {recipe.policy_from}"),
            ("methods", ", ".join(recipe.methods)),
            ("cost", recipe.cost),
            ("measured", recipe.measured),
        ):
            if text:
                first, rest = f"    {label:<11}", " " * 15
                typer.echo(textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest))
    typer.echo(textwrap.fill(FIGURES, width))


def _facts(recipe: "Recipe") -> dict[str, object]:
    names = ("name", "what", "reproduces", "cost", "measured", "policy_from", "rate", "trials", "capacity", "minibatch")
    return (
        {name: getattr(recipe, name) for name in names}
        | {"paper": dict(recipe.paper), "rates": list(recipe.rates)}
        | {"methods": list(recipe.methods)}
    )
