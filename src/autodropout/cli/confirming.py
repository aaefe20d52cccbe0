"""`confirm`: the best policies of a study once more, with seeds that the search did not use."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from autodropout.recipes.comparison import Summary
    from autodropout.search.study import StudyTrial
    from autodropout.spaces import Policy

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
    from autodropout.recipes.comparison import Variant, summaries, table
    from autodropout.search.study import StudyTrial, unscored

    with opened(study, storage) as found:
        info = found.reader.info
        if found.reader.best() is None:
            raise unscored(found.reader)
        trials = {f"trial {trial.number}": StudyTrial(trial, info) for trial in found.reader.distinct(top)}
    again = f"take `study.top({top})` in Python, and train its policies with other seeds"
    plan = Plan.of_study(info, instead=again)
    if not trials:
        raise ValueError(f"no policy that has a score in study {info.name!r} drops anything: none is left to confirm")
    recipe = recipes.get(plan.recipe)
    training = (recipe.tuning or recipe.final) if final else recipe.proxy
    searched_at = recipe.rate if info.drop_rate is None else info.drop_rate  # the recipe may have changed since
    at = searched_at if rate is None else rate
    if not final:  # as its children were: a small one on the CPU, crowds in bfloat16
        device = device or ("cpu" if recipe.on_cpu else None)
        bfloat16 = bfloat16 or (device != "cpu" and recipe.child.train_many is not None)
    data = data or (Path(plan.data) if plan.data else None)
    place = Place(out or Path(plan.out) / "confirm", data, device, bfloat16, compiled)
    variants = [Variant("none", None, 0.0), *(Variant(name, trial.policy, at) for name, trial in trials.items())]
    path = place.out / "policy.json"
    place.run(training)  # raises where nothing can be trained: then all stays as it is
    _forget(path)
    rows = train_all(training, variants, range(first_seed, first_seed + seeds), place, together)
    if not rows:
        return
    means = {summary.variant.name: summary for summary in summaries(rows)}
    steady = [name for name in trials if not means[name].diverged]
    if not steady:
        nothing = {"study": info.name, **as_data(rows, place), "best": None, "policy": None}
        print_json(nothing) if as_json else typer.echo(table(rows))
        raise FloatingPointError(f"each of the {len(trials)} policies diverged with one of the new seeds or more")
    best = max(steady, key=lambda name: means[name].mean)
    # On the seeds that both were trained with to their end; nan where without a policy all diverged.
    better = not means[best].difference <= 0
    if better:
        _confirmed(trials[best], means[best], len(steady), at).save(path)
    if as_json:
        said = {"trial": trials[best].number, "in_search": trials[best].value, "mean": means[best].mean}
        print_json({"study": info.name, **as_data(rows, place), "best": said, "policy": str(path) if better else None})
        return
    typer.echo(table(rows))
    if not final:
        typer.echo(_luck(trials, means))
    typer.echo(f"best: {best}, {means[best].mean:.4f}, {trials[best].value:.4f} in the search")
    if better:
        typer.echo(f"  policy  {path}")
    else:
        without = f"{means['none'].mean:.4f}" + (", where that did not diverge" if means["none"].diverged else "")
        typer.echo(f"with new seeds none of them is better than no policy at all, {without}: no policy is written")


def _forget(path: Path) -> None:
    """Remove an earlier run's policy: it would be taken for the best of this one, however this one ends."""
    if is_first_rank():
        path.unlink(missing_ok=True)


def _luck(trials: "dict[str, StudyTrial]", means: "dict[str, Summary]") -> str:
    """What the search promised, and what came of it."""
    again = [name for name in trials if means[name].values]
    before = [value for name in again if (value := trials[name].value) is not None]
    after = [means[name].mean for name in again]
    had = "1 policy had" if len(again) == 1 else f"{len(again)} policies had on average"
    return f"{had} {statistics.fmean(before):.4f} in the search, {statistics.fmean(after):.4f} with new seeds"


def _confirmed(trial: "StudyTrial", found: "Summary", policies: int, rate: float) -> "Policy":
    """The trial's policy, whose provenance says by what it was chosen."""
    from autodropout.spaces import Provenance

    policy = trial.policy
    assert policy.provenance is not None
    seeds = len(found.values)
    note = f"score: mean of {seeds} new seed{'' if seeds == 1 else 's'}, the best of {policies} such means; "
    note += f"{trial.value:.6g} in the search"
    known = policy.provenance.model_dump() | {"score": found.mean, "rate": rate, "note": note}
    return policy.model_copy(update={"provenance": Provenance.model_validate(known)})
