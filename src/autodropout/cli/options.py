"""The arguments that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

from autodropout.cli.shell import one_of, study_names
from autodropout.controller import PROPOSERS
from autodropout.study import ENGINES

STORAGE = "sqlite:///autodropout.db"


def _recipes() -> tuple[str, ...]:
    from autodropout import recipes  # here, since only two commands need it

    return recipes.RECIPES


def _engines() -> tuple[str, ...]:
    return ENGINES


def _proposers() -> tuple[str, ...]:
    return PROPOSERS


StorageUrl = Annotated[
    str,
    typer.Option(
        "--storage",
        envvar="AUTODROPOUT_STORAGE",
        metavar="URL",
        help="The ledger: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE. Passwords are never shown.",
    ),
]
StudyName = Annotated[
    str | None,
    typer.Argument(
        metavar="STUDY",
        autocompletion=study_names,
        help="Its name, or URL#NAME for one in another ledger. Not needed where there is only one.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Children at the same time.")]
EngineName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Where children run: {', '.join(ENGINES)}.",
        callback=one_of(_engines),
        autocompletion=_engines,
    ),
]
Deadline = Annotated[float | None, typer.Option(metavar="SECONDS", help="End a child after so long and try it again.")]
OutFolder = Annotated[Path | None, typer.Option(metavar="DIR", file_okay=False, help="Where to leave the results.")]
Picture = Annotated[Path, typer.Option(metavar="FILE", dir_okay=False, help="A .png, .svg or .pdf.")]
RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="The problem: digits.", callback=one_of(_recipes), autocompletion=_recipes),
]
ProposerName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"Who proposes: {', '.join(PROPOSERS)}.",
        callback=one_of(_proposers),
        autocompletion=_proposers,
    ),
]
