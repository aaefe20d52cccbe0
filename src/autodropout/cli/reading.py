"""The commands that look at a study or a policy, and disturb nobody: while a search runs, too."""

import json
from pathlib import Path
from typing import Annotated

import typer

from autodropout.cli.options import LAST_SEED, STORAGE, AsJson, Picture, StorageUrl, StudyName, StudyNames
from autodropout.cli.shell import load_policy, print_json


def status(study: StudyName = None, storage: StorageUrl = STORAGE, as_json: AsJson = False) -> None:
    """Say where a study stands.

    Trials by state, the best of them, how fast it goes, who drives it. Reads only: a search may be running.

    \b
    Examples:
      autodropout status
      watch autodropout status digits --storage sqlite:///studies.db
    """
    from autodropout.cli.studies import best_in_words, command_for, ended_in_words, opened, study_facts
    from autodropout.search.states import State, in_words

    with opened(study, storage) as found:
        facts, url = study_facts(found), found.url
        owner, attributes = found.reader.owner(), found.reader.info.attributes
    if as_json:
        print_json(facts)
        return
    best, rate, wanted, scored = facts["best"], facts["per_minute"], facts["wanted"], facts["scored"]
    counts = {state: facts["trials"][state.name.lower()] for state in State}
    left = f", about {(wanted - scored) / rate:.0f} min to go" if owner and rate and (wanted or 0) > scored else ""
    lines = {
        "study": f"{facts['study']} in {facts['storage']}",
        "space": facts["space"],
        "proposer": f"{facts['proposer']}, {facts['updates']} update{'' if facts['updates'] == 1 else 's'}",
        "ended": f"{_of(scored, wanted)}{ended_in_words(facts)}",
        "trials": in_words(counts, driven=owner is not None, complete=wanted is not None and scored >= wanted),
        "best": "no score yet" if best is None else best_in_words(best),
        "rate": "-" if rate is None else f"{rate:.3g} a minute{left}",
    }
    if owner is not None:
        lines["driven by"] = str(owner)
    elif wanted is not None and scored >= wanted:
        lines["running"] = "no, it has all its trials"
    else:
        begun_here = "recipe" in attributes
        again = command_for("resume", facts["study"], url) if begun_here else "the same call of ad.search"
        lines["running"] = f"no ({again} goes on)"
    for what, text in lines.items():
        typer.echo(f"{what:<10}{text}")


def _of(scored: int, wanted: int | None) -> str:
    if wanted is None:
        return str(scored)
    return f"{scored} of {wanted}" if wanted >= scored else f"{scored}, {wanted} were asked for"


def best(
    study: StudyName = None,
    storage: StorageUrl = STORAGE,
    out: Annotated[Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write it here instead.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the policy with the best score.

    As a file that `ad.load` takes; with --json, together with its trial and score. One score is partly luck: `confirm`
    trains the best again, with other seeds.

    \b
    Examples:
      autodropout best > policy.json
      autodropout best digits --out policy.json
    """
    from autodropout.cli.studies import opened
    from autodropout.search.study import unscored

    with opened(study, storage) as found:
        trial = found.reader.best()
        if trial is None:
            raise unscored(found.reader)
        policy, name = found.reader.info.policy(trial), found.reader.info.name
    if policy.drops_nothing:
        typer.echo(f"the best policy, of trial {trial.number}, drops nothing: no dropout was best", err=True)
    if out is not None:
        policy.save(out)
        typer.echo(f"{out}: trial {trial.number} of {name!r}, score {trial.value:.6g}", err=True)
    if as_json:
        print_json({"study": name, "trial": trial.number, "value": trial.value, "policy": json.loads(policy.to_json())})
    elif out is None:
        typer.echo(policy.to_json(), nl=False)


def show(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="A policy's file, or the name of a bundled one.")],
    out: Picture = Path("masks.png"),
    rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="RATE",
            help="At which a Transformer's positions are dropped; when left out, the policy's own if it has one, else "
            "0.3.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LAST_SEED, metavar="N", help="Which masks are drawn.")] = 0,
) -> None:
    """Tell a policy in words, and draw its masks.

    \b
    Example:
      autodropout show policy.json --out masks.svg
    """
    from autodropout.cli.telling import policy_lines
    from autodropout.report.masks import draw_masks

    loaded = load_policy(policy)
    draw_masks(loaded, out, rate=rate, seed=seed)
    for line in (*policy_lines(loaded, policy, whole=True), out):
        typer.echo(line)


def policies(as_json: AsJson = False) -> None:
    """List the policies that come with the package.

    Each can be named wherever a POLICY is asked for. What else is known of them: --json.

    \b
    Examples:
      autodropout policies
      autodropout policies --json
    """
    from autodropout.cli.telling import policy_lines
    from autodropout.policies import bundled
    from autodropout.spaces import load

    found = {name: load(name) for name in bundled()}
    if as_json:
        print_json({"policies": {name: json.loads(policy.to_json()) for name, policy in found.items()}})
        return
    for name, policy in found.items():
        head, *lines = policy_lines(policy, name)
        typer.echo(f"{typer.style(name, bold=True)}  {head}")
        for line in lines:
            typer.echo(line)
    if not found:
        typer.echo("there are none yet", err=True)


def report(
    study: StudyName = None,
    storage: StorageUrl = STORAGE,
    out: Annotated[Path, typer.Option(metavar="FILE", dir_okay=False, help="The page.")] = Path("report.html"),
) -> None:
    """Write a study's report, one HTML file.

    With everything in it, to be opened anywhere: best score over time, what the proposer learned, the best policies
    with their masks, failures. May be written while the search runs.

    \b
    Example:
      autodropout report digits --out report.html
    """
    from autodropout.cli.studies import opened
    from autodropout.report.html import write_report

    with opened(study, storage) as found:
        write_report(found.reader, out, found.address)
    typer.echo(out)


def compare(
    chosen: StudyNames,
    storage: StorageUrl = STORAGE,
    out: Picture = Path("curves.png"),
    as_json: AsJson = False,
) -> None:
    """Draw the best-so-far curves of several studies.

    Who finds good policies sooner: the learned proposer, or random search with the same number of trials?

    \b
    Examples:
      autodropout compare learned random --out curves.png
      autodropout compare 'sqlite:///one.db#mine' 'sqlite:///other.db#mine'
    """
    from autodropout.cli.studies import ended_in_words, opened, study_facts
    from autodropout.report.history import read_history
    from autodropout.report.plots import draw_comparison

    histories, facts, seen = {}, {}, set()
    for study in chosen:
        with opened(study, storage) as found:
            name = found.reader.info.name
            if (name, str(found.address)) in seen:
                raise ValueError(f"study {name!r} in {found.address} is named twice: each has one curve")
            seen.add((name, str(found.address)))
            label = name if name not in histories else f"{name} in {found.address}"
            histories[label], facts[label] = read_history(found.reader), study_facts(found)
    draw_comparison(histories, out)
    if as_json:
        print_json({"plot": str(out), "studies": list(facts.values())})
        return
    for label, fact in facts.items():
        score = "no score" if fact["best"] is None else f"best {fact['best']['value']:.6g}"
        typer.echo(f"{label}: {score} in {fact['scored']} trials{ended_in_words(fact)} by {fact['proposer']}")
    typer.echo(out)


def export(
    study: StudyName = None,
    storage: StorageUrl = STORAGE,
    out: Annotated[Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write a Parquet table.")] = None,
    optuna: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="Copy into a new Optuna study: in a journal file (about 1,000 trials a second) or a database (30).",
        ),
    ] = None,
    optuna_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The copy's name, if not the study's.")
    ] = None,
) -> None:
    """Take a study's trials to other tools.

    A Parquet table of all trials; or a copy of those that have ended as an Optuna study, for optuna-dashboard.

    \b
    Examples:
      autodropout export --out trials.parquet
      autodropout export --optuna trials.journal; optuna-dashboard trials.journal
    """
    from autodropout.cli.studies import opened
    from autodropout.report.export import write_optuna, write_parquet

    if out is None and optuna is None:
        raise typer.BadParameter("say what to write: --out trials.parquet, --optuna FILE, or both")
    with opened(study, storage) as found:
        if out is not None:
            typer.echo(f"{out}: {write_parquet(found.reader, out)} trials")
        if optuna is not None:
            name = optuna_name or found.reader.info.name
            typer.echo(f"Optuna study {name!r}: {write_optuna(found.reader, optuna, name)} trials")
