"""`search` and `resume`: run a study with a display, then leave its best policy, a picture of it and the report.

autodropout search digits --trials 96 --out results
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodropout.cli.options import (
    STORAGE,
    AsJson,
    Capacity,
    Cpus,
    DataFolder,
    Deadline,
    EngineName,
    Gpus,
    OutFolder,
    ProposerName,
    RecipeName,
    StorageUrl,
    StudyName,
    Trials,
    Workers,
)
from autodropout.cli.shell import look_for_data, print_json

if TYPE_CHECKING:
    from autodropout.cli.plan import Plan
    from autodropout.cli.studies import Opened
    from autodropout.recipes import Recipe


def search(
    recipe: RecipeName,
    trials: Trials = None,
    workers: Workers = None,
    capacity: Capacity = None,
    proposer: ProposerName = None,
    engine: EngineName = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    storage: StorageUrl = STORAGE,
    name: Annotated[str | None, typer.Option(metavar="STUDY", help="The study's name, if not the recipe's.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of the study: all others follow from it; 0 in a new one.")
    ] = None,
    out: OutFolder = None,
    data: DataFolder = None,
    deadline: Deadline = None,
    early_stopping: Annotated[
        bool | None,
        typer.Option(
            "--early-stopping/--no-early-stopping", help="Stop children whose curve is hopeless, by successive halving."
        ),
    ] = None,
    rung: Annotated[
        int | None,
        typer.Option(min=1, metavar="STEP", help="The step of a child where early stopping first compares it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search for a policy; the same command again goes on.

    Leaves the best policy, a picture of its masks and a report in out/STUDY, or in --out. What is left out of the
    command is the recipe's, or, where the study exists already, as it was last time.

    Ctrl-C ends the search when the children under way have finished, a second one at once. Either way, and after a
    crash or a kill, nothing is lost.

    \b
    Examples:
      autodropout search digits
      autodropout search digits --trials 512 --workers 8 --name long --proposer evolution
      autodropout search digits --storage postgresql://me:secret@host/studies
      RAY_ADDRESS=head:6379 autodropout search digits --engine ray --capacity 64
    """
    from autodropout import recipes
    from autodropout.cli.plan import FIXED, Plan, settings_of
    from autodropout.cli.studies import existing
    from autodropout.search.records import check_name

    chosen, name = recipes.get(recipe), name or recipe
    check_name(name)  # a folder will be called so
    begun = existing(name, storage)
    if begun is None:
        plan = Plan.of_recipe(chosen, name)
        settings = {"proposer": "controller", "seed": 0} | {what: getattr(chosen, what) for what in FIXED[2:]}
    else:
        plan = Plan.of_study(begun.info)
        settings = settings_of(begun.info)
        if plan.recipe != recipe:
            raise ValueError(f"study {name!r} is of the recipe {plan.recipe!r}, not {recipe!r}: give another --name")
    plan = plan.changed(
        {
            "trials": trials,
            "workers": workers,
            "engine": engine,
            "cpus_per_child": cpus,
            "gpus_per_child": gpus,
            "deadline": deadline,
            "early_stopping": early_stopping,
            "rung": rung,
            "out": out and str(out.absolute()),
            "data": data and str(data.absolute()),
        }
    )
    given = {"proposer": proposer, "seed": seed, "capacity": capacity}
    settings |= {what: value for what, value in given.items() if value is not None}
    _search(plan, storage, name, settings, as_json)


def resume(
    study: StudyName = None,
    storage: StorageUrl = STORAGE,
    trials: Trials = None,
    workers: Workers = None,
    capacity: Capacity = None,
    engine: EngineName = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    deadline: Deadline = None,
    out: OutFolder = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a study that `search` began.

    What is left out of the command is as it was last time; only --cpus and --gpus are as in a new study where another
    --engine is given. To extend a finished study, give it more --trials.

    \b
    Examples:
      autodropout resume
      autodropout resume long --trials 1024
    """
    from autodropout.cli.plan import Plan, settings_of
    from autodropout.cli.studies import opened

    with opened(study, storage) as found:
        info, url = found.reader.info, found.url
    changes = {
        "trials": trials,
        "workers": workers,
        "engine": engine,
        "cpus_per_child": cpus,
        "gpus_per_child": gpus,
        "deadline": deadline,
        "out": out and str(out.absolute()),
        "data": data and str(data.absolute()),
    }
    settings = settings_of(info) | ({"capacity": capacity} if capacity else {})
    _search(Plan.of_study(info).changed(changes), url, info.name, settings, as_json)


def _search(plan: "Plan", storage: str, name: str, settings: dict[str, Any], as_json: bool) -> None:
    """Search with a display, leave the results, say where they are."""
    from rich.console import Console

    from autodropout import recipes
    from autodropout.cli.studies import best_in_words, command_for, existing, opened, study_facts
    from autodropout.report.display import progress_display
    from autodropout.running import crowd_of
    from autodropout.search.halving import Halving
    from autodropout.study import search as run_search

    look_for_data(plan.data)
    recipe, out, begun = recipes.get(plan.recipe), Path(plan.out), existing(name, storage)
    if plan.engine == "local" and (begun is None or begun.scored < plan.trials):
        _check_machine(recipe)
    _check_folder(out)
    crowd, workers = crowd_of(recipe.child, plan.engine, plan.gpus_per_child), plan.workers
    if crowd > 1:
        typer.echo(f"{crowd} children at once on a GPU", err=True)
    elif plan.engine == "local":
        workers = workers or recipe.workers
    with _telling_how_to_go_on(name, storage), progress_display(name, Console(stderr=True)) as display:
        run_search(
            recipe.space(),
            recipe.child,
            plan.trials,
            workers=workers,
            storage=storage,
            name=name,
            engine=plan.engine,
            cpus_per_child=plan.cpus_per_child,
            gpus_per_child=plan.gpus_per_child,
            deadline=plan.deadline,
            halving=Halving(plan.rung) if plan.early_stopping else None,
            attributes=asdict(plan) | {"drop_rate": recipe.rate},
            watch=display.update,
            **settings,
        )
    with opened(name, storage) as found:
        facts = study_facts(found)
        files = _leave(found, out)
    if as_json:
        print_json(facts | {"files": files})
    else:
        best = facts["best"]
        said = "no trial has a score yet" if best is None else f"best score {best_in_words(best)}"
        typer.echo(f"study {name!r} in {facts['storage']}: {said}")
        for what, path in files.items():
            typer.echo(f"  {what:<7} {path}")
        if best is not None:
            typer.echo(f"partly luck, as the best of many is; with new seeds: {command_for('confirm', name, storage)}")
    if facts["scored"] < plan.trials:  # only Ctrl-C ends a search before
        typer.echo(f"interrupted; {_how_to_go_on(name, storage)}", err=True)
        raise typer.Exit(130)


def _check_machine(recipe: "Recipe") -> None:
    """What is better said before a study is begun than by its first child: that data are missing, or a GPU.

    Only of this machine; a cluster's nodes may have both.
    """
    from autodropout.data.fetch.catalogue import DATASETS
    from autodropout.training.run import Run

    reads = recipe.proxy.reads
    DATASETS[reads.dataset].where(reads.data)
    if not recipe.on_cpu and Run().where.type == "cpu":
        typer.echo(
            f"warning: a child of {recipe.name} is meant for a GPU, torch finds none here, and it may take hours; "
            "`autodropout search digits` is for CPUs",
            err=True,
        )


def _check_folder(out: Path) -> None:
    """Make it, and raise OSError where the results could not be left there: now, not after a night's search."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise OSError(error.errno, f"nothing can be written there ({error.strerror})", str(out)) from None


@contextmanager
def _telling_how_to_go_on(name: str, storage: str) -> Iterator[None]:
    """Whatever ends a search before its time, its user learns how to go on."""
    from autodropout.search.errors import ChildError, StorageError
    from autodropout.search.interrupts import followed_by

    try:
        with followed_by("the results are written as they are", "ends it at once"):
            yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted at once; {_how_to_go_on(name, storage)}", err=True)
        raise
    except SystemExit:  # by a signal
        typer.echo(f"terminated; {_how_to_go_on(name, storage)}", err=True)
        raise
    except (ChildError, StorageError) as error:
        error.add_note(_how_to_go_on(name, storage))
        raise


def _how_to_go_on(name: str, storage: str) -> str:
    from autodropout.cli.studies import command_for, existing
    from autodropout.search.errors import LedgerError

    try:
        begun = existing(name, storage) is not None
    except LedgerError:
        begun = True  # it cannot be read at the moment, which is why we are here
    if not begun:
        return "nothing was begun"
    return f"to go on: {command_for('resume', name, storage)}"


def _leave(found: "Opened", out: Path) -> dict[str, str]:
    """Write policy, picture and report, as far as there is something to write; returns which."""
    from autodropout.report.html import write_report
    from autodropout.report.masks import draw_masks

    files, trial = {}, found.reader.best()
    if trial is not None:
        policy = found.reader.info.policy(trial)
        files = {"policy": out / "policy.json", "masks": out / "masks.png"}
        policy.save(files["policy"])
        draw_masks(policy, files["masks"])
    files["report"] = out / "report.html"
    write_report(found.reader, files["report"], found.address)
    return {what: str(path) for what, path in files.items()}
