"""The report of a study: one HTML file with everything in it, for a colleague, an archive or a phone.

    autodropout report mine --out report.html

No script, no font, no link to anything outside; a content security policy says so to the browser, since the page also
shows what children wrote: names, messages and tracebacks are escaped and can do nothing.
"""

import importlib.resources
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import numpy as np

from autodropout.report.charts import LARGEST, Series, chart
from autodropout.report.history import Floats, History, read_history
from autodropout.report.sections import failures_section, policies_section, tokens_section
from autodropout.report.suffixes import checked_suffix
from autodropout.search.reading import Reader
from autodropout.search.records import StudyInfo, Update
from autodropout.search.states import PENDING, State, in_words
from autodropout.search.url import Address
from autodropout.spaces import software_versions
from autodropout.spaces.atomic import write_atomically

_SECURITY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_CURVES = (  # title, and the metrics it shows with their names
    ("Score", {"mean_value": "mean of the trials", "baseline": "baseline"}),
    ("Entropy of a proposal, in nats", {"entropy": "entropy"}),
    ("Effective sample size", {"effective_size": "effective sample size"}),
    ("Share of clipped importance weights", {"clip_share": "clip share"}),
    ("Policy lag, in updates", {"lag": "lag"}),
)


FEW = 5
"""With fewer updates than this, curves over updates are a dash each: they are folded."""


def write_report(study: Reader, path: str | os.PathLike[str], address: Address | None = None) -> None:
    """Write the report; the file is replaced as a whole. `address` says where the study is, without its password."""
    checked_suffix(path, ("html", "htm"), "a report is an .html")
    write_atomically(Path(path), report_html(study, address).encode("utf-8", "backslashreplace"))


def report_html(study: Reader, address: Address | None = None) -> str:
    """The page of a study as it stands now; a driver may be at work."""
    history, updates = read_history(study), study.updates()
    style = importlib.resources.files("autodropout.report").joinpath("report.css").read_text()
    body = (
        _head(study, history, address),
        _best_section(history),
        policies_section(study, history),
        _proposer_section(updates),
        tokens_section(history),
        failures_section(study, history, address),
        _versions_section(study),
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_SECURITY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(study.info.name)} - autodropout</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _head(study: Reader, history: History, address: Address | None) -> str:
    info, best, rate, owner = study.info, study.best(), study.per_minute(), study.owner()
    ended, diverged = len(history.scored), int(np.count_nonzero(history.failed[history.scored]))
    wanted = info.attributes.get("trials")
    numbers = {
        "best score": "-" if best is None else f"{best.value:.6g}",
        "median score": f"{np.median(history.values[history.own]):.6g}" if history.own.any() else "-",
        "trials ended": f"{ended:,} of {wanted:,}" if isinstance(wanted, int) and wanted >= ended else f"{ended:,}",
        "of them diverged": f"{diverged:,}",
        "waiting or running": f"{history.count(*PENDING):,}",
        "failed": f"{history.count(State.FAILED):,}",
        "ended a minute": "-" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}",
    }
    complete = isinstance(wanted, int) and ended >= wanted
    counts = {state: history.count(state) for state in State}
    states = in_words(counts, driven=owner is not None, complete=complete)
    facts = (
        ("space", info.space.describe()),
        ("proposer", info.proposer),
        ("seed", str(info.seed)),
        ("drop rate", "" if info.drop_rate is None else f"{info.drop_rate:g}, of the children"),
        ("capacity", f"at most {info.capacity:,} trials are proposed and not yet finished"),
        ("minibatch", f"the proposer learns from {info.minibatch:,} trials at a time"),
        ("floor", f"a child that diverges counts as {info.floor:g}"),
        ("trials", states),
        ("driven by", str(owner) if owner else "nobody, it has all its trials" if complete else "nobody at the moment"),
        ("created", "-" if info.created is None else f"{info.created:%Y-%m-%d %H:%M} UTC"),
        ("ledger", "" if address is None else str(address)),
        ("begun with", ", ".join(f"{name}: {value}" for name, value in _settings(info).items())),
    )
    cards = "".join(f"<div><b>{escape(text)}</b><span>{escape(what)}</span></div>" for what, text in numbers.items())
    rows = "".join(f"<dt>{escape(what)}</dt><dd>{escape(text)}</dd>" for what, text in facts if text)
    said = "no trial has a score yet"
    if best is not None:
        nothing = ", whose policy drops nothing: no dropout was best" if info.policy(best).drops_nothing else ""
        said = f"best score {best.value:.6g}, by trial {best.number}{nothing}"
    return (
        f'<h1>{escape(info.name)}</h1>\n<p class="lead">A search for dropout patterns: {said}.</p>\n'
        f'<p class="dim">Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.</p>\n'
        f'<div class="big">{cards}</div>\n<dl>{rows}</dl>'
    )


def _settings(info: StudyInfo) -> dict[str, str]:
    """What else is kept with the study: what its user has put there; of what a command has, what has an effect."""
    kept = dict(info.attributes)
    hidden = {"trials", "capacity", "drop_rate" if info.drop_rate is not None else ""}  # these are said elsewhere
    if kept.get("engine") == "local":
        hidden |= {"cpus_per_child", "gpus_per_child"}
    if kept.get("early_stopping") is False:
        hidden |= {"rung"}
    return {
        name.replace("_", " "): f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in kept.items()
        if name not in hidden and value not in (None, False)
    }


def _best_section(history: History) -> str:
    order = history.scored
    if not len(order):
        return '<h2>Best so far</h2>\n<p class="none">No trial has a score yet.</p>'
    x = np.arange(1, len(order) + 1, dtype=np.float64)
    own, stopped = history.own[order], history.stopped[order]
    values = history.values[order].clip(-LARGEST, LARGEST)
    series = [Series("a trial", x, np.where(own, values, np.nan), 1, "dots")]
    if stopped.any():
        series.append(
            Series("stopped early, with the score it is credited", x, np.where(stopped, values, np.nan), 2, "dots")
        )
    series.append(Series("best so far", x, history.best_so_far(), 3, "steps"))
    shown = values[own] if own.any() else values
    low, high = _range(shown)
    below = int(np.count_nonzero(shown < low))
    diverged = int(np.count_nonzero(~own & ~stopped))
    notes = [
        f"On the lower edge: {below} that scored lower still." if below else "",
        f"Left out: {diverged} that diverged." if diverged else "",
    ]
    drawn = chart("Score", series, "trials, in the order in which they ended", (low, high))
    return f'<h2>Best so far</h2>\n<div class="wide">{drawn}</div>\n<p class="dim">{" ".join(filter(None, notes))}</p>'


def _range(values: Floats) -> tuple[float, float]:
    """What to show: all, unless a few lie so low that the others would be squeezed into a line."""
    lower, upper = np.quantile(values, (0.25, 0.75))
    usual = values[values >= lower - 3 * (upper - lower)]
    return float(usual.min()), float(values.max())


def _proposer_section(updates: Sequence[Update]) -> str:
    """Its curves over updates: those we know first, then whatever else it recorded."""
    title = "<h2>The proposer, update by update</h2>\n"
    if not updates:
        return f'{title}<p class="none">It has not learned yet.</p>'
    known = {name for _, names in _CURVES for name in names}
    recorded = list(dict.fromkeys(name for update in updates for name in update.metrics))
    curves = [*_CURVES, *((_title(name), {name: name}) for name in recorded if name not in known)]
    x = np.array([update.version for update in updates], dtype=np.float64)
    drawn = []
    for caption, names in curves:
        series = [
            Series(said, x, np.array([update.metrics.get(name, np.nan) for update in updates]), tone)
            for tone, (name, said) in enumerate(names.items(), start=1)
            if name in recorded
        ]
        if series:
            drawn.append(chart(caption, series, "update"))
    if not drawn:
        return f'{title}<p class="none">It records nothing.</p>'
    charts = f'<div class="charts">{"".join(drawn)}</div>'
    if len(updates) >= FEW:
        return title + charts
    count = "1 update" if len(updates) == 1 else f"{len(updates)} updates"
    said = f"{count} so far, too few for curves to say much ({len(drawn)} of them)"
    return f"{title}<details><summary>{said}</summary>{charts}</details>"


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _versions_section(study: Reader) -> str:
    then, now = dict(study.info.versions), software_versions()
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(then.get(name, '-'))}</td><td>{escape(now.get(name, '-'))}</td></tr>"
        for name in dict.fromkeys([*then, *now])
    )
    heads = "<tr><th>software</th><th>when the study began</th><th>when this was written</th></tr>"
    return f"<h2>Versions</h2>\n<table>{heads}{rows}</table>"
