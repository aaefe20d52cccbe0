"""`confirm`: the best policies of a study once more, with seeds that the search did not use."""

from pathlib import Path
from typing import Annotated

import typer

from autodropout.cli.options import (
    STORAGE,
    AsJson,
    Bfloat16,
    Compile,
    DataFolder,
    Device,
    FirstSeed,
    RunFolder,
    SearchedRate,
    Seeds,
    StorageUrl,
    StudyName,
    Together,
)
from autodropout.cli.shell import is_first_rank, print_json
from autodropout.cli.training import Place, as_data, train_all

Top = Annotated[int, typer.Option(min=1, metavar="N", help="How many of the study's best policies.")]
Final = Annotated[bool, typer.Option("--final", help="The full-size training, not that of the search's children.")]


def confirm(
    study: StudyName = None,
    storage: StorageUrl = STORAGE,
    top: Top = 10,
    seeds: Seeds = 5,
    first_seed: FirstSeed = 400,
    rate: SearchedRate = None,
    final: Final = False,
    out: RunFolder = None,
    data: DataFolder = None,
    device: Device = None,
    bfloat16: Bfloat16 = False,
    compiled: Compile = None,
    together: Together = 1,
    as_json: AsJson = False,
) -> None:
    """Train the best policies of a study again, with new seeds.

    The best of many scores is partly luck. Each policy is trained as in the search, beside no policy at all; the one
    with the best mean is left in out/STUDY/confirm/policy.json. Where none is better than no policy, or all diverge, no
    file is left, not that of an earlier run either.

    \b
    Examples:
      autodropout confirm digits --top 5 --seeds 5
      autodropout confirm ptb-small --together 48
    """
    from autodropout import recipes
    from autodropout.cli.plan import Plan
    from autodropout.cli.studies import opened
    from autodropout.recipes.comparison import table
    from autodropout.recipes.confirmation import Confirmation, nothing_to_confirm, variants_of
    from autodropout.search.study import StudyTrial, unscored

    with opened(study, storage) as found:
        info = found.reader.info
        if found.reader.best() is None:
            raise unscored(found.reader)
        trials = {f"trial {trial.number}": StudyTrial(trial, info) for trial in found.reader.distinct(top)}
    again = (
        "`ad.confirm(study, child)` in Python trains its best policies again, by the child that it was searched with"
    )
    plan = Plan.of_study(info, instead=again)
    if not trials:
        raise nothing_to_confirm(info.name)
    recipe = recipes.get(plan.recipe)
    training = (recipe.tuning or recipe.final) if final else recipe.proxy
    searched_at = recipe.rate if info.drop_rate is None else info.drop_rate  # the recipe may have changed since
    rates = dict.fromkeys(trials, searched_at if rate is None else rate)
    if not final:  # as its children were: a small one on the CPU, crowds in bfloat16
        device = device or ("cpu" if recipe.on_cpu else None)
        bfloat16 = bfloat16 or (device != "cpu" and recipe.child.train_many is not None)
    data = data or (Path(plan.data) if plan.data else None)
    place = Place(out or Path(plan.out) / "confirm", data, device, bfloat16, compiled)
    path = place.out / "policy.json"
    place.run(training)  # raises where nothing can be trained: then all stays as it is
    _forget(path)
    rows = train_all(training, variants_of(trials, rates), range(first_seed, first_seed + seeds), place, together)
    if not rows:
        return
    told = Confirmation(rows, trials, rates, as_searched=not final)
    if told.policy is not None:
        told.policy.save(path)
    if as_json:
        best = told.best and {
            "trial": trials[told.best].number,
            "in_search": trials[told.best].value,
            "mean": told.means[told.best].mean,
        }
        left = None if told.policy is None else str(path)
        print_json({"study": info.name, **as_data(rows, place), "best": best, "policy": left})
    else:
        typer.echo(table(rows) if told.best is None else str(told))
        if told.best is not None:
            typer.echo("no policy is written" if told.policy is None else f"  policy  {path}")
    if told.best is None:
        raise FloatingPointError(*told.conclusion())


def _forget(path: Path) -> None:
    """Remove an earlier run's policy: it would be taken for the best of this one, however this one ends."""
    if is_first_rank():
        path.unlink(missing_ok=True)
