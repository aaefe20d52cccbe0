"""The arguments that several commands take, and what the shell can complete for them."""

import math
from pathlib import Path
from typing import Annotated

import typer

from autodropout.cli.shell import one_of
from autodropout.controller import PROPOSERS

STORAGE = "sqlite:///autodropout.db"
LAST_SEED = 2**63 - 1  # of those that torch takes


def _recipes() -> tuple[str, ...]:
    from autodropout import recipes

    return recipes.RECIPES


def _engines() -> tuple[str, ...]:
    from autodropout.search.engines import ENGINES

    return ENGINES


def _proposers() -> tuple[str, ...]:
    return PROPOSERS


def _positive_seconds(value: float | None) -> float | None:
    """As engines have it, but before anything is written."""
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"it must be a positive number of seconds, got {value}")
    return value


def _studies(ctx: typer.Context, incomplete: str) -> list[str]:
    """The studies of the ledger that the line names so far."""
    from autodropout.cli.studies import names_in
    from autodropout.search.errors import LedgerError

    try:
        names = names_in(ctx.params.get("storage") or STORAGE)
    except LedgerError:
        return []
    return [name for name in names if name.startswith(incomplete)]


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
        autocompletion=_studies,
        show_default=False,
        help="Its name, or URL#NAME for one in another ledger. Not needed where there is only one.",
    ),
]
StudyNames = Annotated[
    list[str], typer.Argument(metavar="STUDY", autocompletion=_studies, help="Names, or URL#NAME for other ledgers.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
Trials = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="How many scored trials the study shall have in all.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Jobs at the same time, of one child each, or of a crowd on a GPU. Unless given: the recipe's; one for "
        "each GPU, for crowds; on ray all that fit.",
    ),
]
Cpus = Annotated[float | None, typer.Option(metavar="N", help="On ray: CPUs for each child; 1 in a new study.")]
Gpus = Annotated[
    float | None, typer.Option(metavar="N", help="On ray: GPUs for each child, or a share; 0 in a new study.")
]
Capacity = Annotated[
    int | None,
    typer.Option(min=1, metavar="C", help="Trials proposed and not yet finished; twice the workers is a good choice."),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Where children run: local (processes on this machine) or ray (the cluster at RAY_ADDRESS).",
        callback=one_of(_engines),
        autocompletion=_engines,
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="End a child that takes longer, and try it again.", callback=_positive_seconds
    ),
]
OutFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", file_okay=False, help="Where to leave the results; out/STUDY in a new study."),
]
Picture = Annotated[Path, typer.Option(metavar="FILE", dir_okay=False, help="A .png, .svg or .pdf.")]
RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="The experiment: digits, which needs no download, or another that `autodropout recipes` lists.",
        callback=one_of(_recipes),
        autocompletion=_recipes,
    ),
]
ProposerName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Who proposes: {', '.join(PROPOSERS)}. The first, which a new study has, is for hundreds of trials, the "
        "second, the paper's own, for thousands.",
        callback=one_of(_proposers),
        autocompletion=_proposers,
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="AUTODROPOUT_DATA",
        metavar="DIR",
        file_okay=False,
        help="The folder of all datasets; autodropout/ in the user's cache if not given.",
    ),
]

_POLICY = typer.Option("--policy", metavar="POLICY", help="A policy's file, or a name.")
PolicyFile = Annotated[str, _POLICY]
MaybePolicy = Annotated[str | None, _POLICY]
BaselineName = Annotated[
    str | None, typer.Option("--baseline", metavar="NAME", help="A classical method: dropout, ...")
]
MethodName = Annotated[
    str | None, typer.Option(metavar="NAME", help="The recipe's training with another method: mixup, randaugment, ...")
]
Rate = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        metavar="RATE",
        help="The drop rate; when left out, the policy's own if it has one, else the recipe's.",
    ),
]
RecipeRate = Annotated[
    float | None, typer.Option(min=0, max=1, metavar="RATE", help="The drop rate; the recipe's when left out.")
]
SearchedRate = Annotated[
    float | None, typer.Option(min=0, max=1, metavar="RATE", help="The drop rate; the search's when left out.")
]
Rates = Annotated[str | None, typer.Option(metavar="R,R,...", help="The rates to try; the recipe's when left out.")]
Seed = Annotated[int, typer.Option(min=0, max=LAST_SEED, metavar="N", help="Of the training.")]
Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Trainings of each variant.")]
FirstSeed = Annotated[
    int,
    typer.Option(
        min=0,
        max=LAST_SEED // 2,
        metavar="N",
        help="Their seeds are N, N + 1, ... Commands have different ones, so that luck by which one has chosen a "
        "policy does not help it in the next.",
    ),
]
Smoke = Annotated[
    bool,
    typer.Option(
        "--smoke",
        help="The same at a tiny size, to see that it runs: under a minute. In place of ImageNet it reads Imagenette, "
        "of IWSLT'14 and WMT'14 Multi30k.",
    ),
]
Proxy = Annotated[bool, typer.Option("--proxy", help="The training of the search's children, not the full-size one.")]
RunFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", file_okay=False, help="Checkpoints, logs and scores; in out/RECIPE when left out."),
]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1; a GPU if there is one.")]
Bfloat16 = Annotated[bool, typer.Option("--bfloat16", help="Compute in bfloat16.")]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile", help="Compile with torch.compile; long trainings of ConvNets on a GPU do unasked."
    ),
]
Together = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="Train so many at once on one GPU, compiled, where the training can. They leave scores only: no weights, "
        "and no checkpoint to go on from.",
    ),
]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard too.")]
Test = Annotated[bool, typer.Option("--test", help="Judge on the test set too. Do so once, when all is chosen.")]
