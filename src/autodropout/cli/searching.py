"""`search` and `resume`: run a study with a display, then leave its best policy, a picture of it and the report.

autodropout search digits --trials 96 --out results
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from autodropout.cli.options import (
    STORAGE,
    AsJson,
    Deadline,
    EngineName,
    OutFolder,
    ProposerName,
    RecipeName,
    StorageUrl,
    StudyName,
    Workers,
)
from autodropout.cli.shell import Opened, opened, print_json, study_facts
from autodropout.search.halving import Halving
from autodropout.search.url import parse_url
from autodropout.study import StudyTrial
from autodropout.study import search as run_search


@dataclass(frozen=True, slots=True)
class Plan:
    """What a study needs to go on, beside what its ledger fixes; kept as the study's attributes."""

    recipe: str
    trials: int
    workers: int
    engine: str
    deadline: float | None
    early_stopping: bool
    rung: int
    out: str


def search(
    recipe: RecipeName,
    trials: Annotated[int | None, typer.Option(min=1, metavar="N", help="Scored trials to reach.")] = None,
    workers: Workers = None,
    capacity: Annotated[int | None, typer.Option(min=1, metavar="C", help="Trials proposed and not finished.")] = None,
    proposer: ProposerName = "controller",
    engine: EngineName = "local",
    storage: StorageUrl = STORAGE,
    name: Annotated[str | None, typer.Option(metavar="STUDY", help="The study's name, if not the recipe's.")] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the study: all others follow from it.")] = 0,
    out: OutFolder = None,
    deadline: Deadline = None,
    early_stopping: Annotated[bool, typer.Option(help="Stop hopeless children by halving.")] = False,
    rung: Annotated[int, typer.Option(min=1, metavar="STEP", help="Where early stopping first compares children.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Search for a policy. The same command again goes on where it was.

    Leaves the best policy, a picture of its masks and a report in out/NAME, or in --out. Numbers that are left out
    are the recipe's. Ctrl-C ends the search when the children under way have finished, a second one at once; nothing
    is lost either way.
    """
    from autodropout import recipes

    chosen, name = recipes.get(recipe), name or recipe
    plan = Plan(
        recipe=recipe,
        trials=trials or chosen.trials,
        workers=workers or chosen.workers,
        engine=engine or "local",
        deadline=deadline,
        early_stopping=early_stopping,
        rung=rung,
        out=str(out or Path("out") / name),
    )
    settings = {
        "capacity": capacity or chosen.capacity,
        "minibatch": chosen.minibatch,
        "floor": chosen.floor,
        "proposer": proposer,
        "seed": seed,
    }
    _search(plan, storage, name, settings, as_json)


def resume(
    study: StudyName = None,
    storage: StorageUrl = STORAGE,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Scored trials to reach, if not as begun.")
    ] = None,
    workers: Workers = None,
    engine: EngineName = None,
    deadline: Deadline = None,
    out: OutFolder = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a study that `search` began.

    What is left out is as it was begun.
    """
    with opened(study, storage) as found:
        info, url = found.reader.info, found.url
    changed = {"trials": trials, "workers": workers, "engine": engine, "deadline": deadline, "out": out and str(out)}
    if not info.attributes.keys() >= Plan.__dataclass_fields__.keys():
        raise ValueError(
            f"study {info.name!r} was not begun by `autodropout search`: run the program that began it once more, "
            "the same call to ad.search resumes it"
        )
    known = {what: info.attributes[what] for what in Plan.__dataclass_fields__}
    plan = Plan(**(known | {what: value for what, value in changed.items() if value is not None}))
    settings = {what: getattr(info, what) for what in ("capacity", "minibatch", "floor", "proposer", "seed")}
    _search(plan, url, info.name, settings, as_json)


def _search(plan: Plan, storage: str, name: str, settings: Mapping[str, Any], as_json: bool) -> None:
    """Search with a display, leave the results, say where they are."""
    from autodropout import recipes
    from autodropout.report.display import progress_display

    recipe, out = recipes.get(plan.recipe), Path(plan.out)
    out.mkdir(parents=True, exist_ok=True)  # now, not after a night's search
    again = f"to go on: autodropout resume {name} --storage {parse_url(storage)}"
    try:
        with progress_display(name, Console(stderr=True)) as display:
            run_search(
                recipe.space(),
                recipe.child,
                plan.trials,
                workers=plan.workers,
                storage=storage,
                name=name,
                engine=plan.engine,
                deadline=plan.deadline,
                halving=Halving(plan.rung) if plan.early_stopping else None,
                attributes=asdict(plan),
                watch=display.update,
                **settings,
            )
    except KeyboardInterrupt:
        typer.echo(f"interrupted at once; {again}", err=True)
        raise
    with opened(name, storage) as found:
        facts = study_facts(found)
        files = _leave(found, out, recipe.rate)
    if as_json:
        print_json(facts | {"files": files})
    else:
        best = facts["best"]
        said = (
            "no trial has a score yet" if best is None else f"best score {best['value']:.6g}, by trial {best['trial']}"
        )
        typer.echo(f"study {name!r} in {facts['storage']}: {said}")
        for what, path in files.items():
            typer.echo(f"  {what:<7} {path}")
    if facts["scored"] < plan.trials:  # only Ctrl-C ends a search before
        typer.echo(f"interrupted; {again}", err=True)
        raise typer.Exit(130)


def _leave(found: Opened, out: Path, rate: float) -> dict[str, str]:
    """Write policy, picture and report, as far as there is something to write; returns which."""
    from autodropout.report.html import write_report
    from autodropout.report.masks import draw_masks

    files, trial = {}, found.reader.best()
    if trial is not None:
        policy = StudyTrial(trial, found.reader.info).policy
        files = {"policy": out / "policy.json", "masks": out / "masks.png"}
        policy.save(files["policy"])
        draw_masks(policy, files["masks"], rate=rate)
    files["report"] = out / "report.html"
    write_report(found.reader, files["report"], found.address)
    return {what: str(path) for what, path in files.items()}
