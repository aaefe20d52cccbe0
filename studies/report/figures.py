"""The figures of a study's report: the best policy so far, and the final table."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.recording import unit_of

METHOD_COLORS = {"random": "#d08030", "controller-paper": "#8070b0", "controller": "#2060b0"}
COLORS = {"none": "0.55"} | {f"policy of {method}": color for method, color in METHOD_COLORS.items()}
OTHER = "#50906a"
NAMES = {
    "policy of controller-paper": "policy, controller as in the paper",
    "policy of controller": "policy, our controller",
    "policy of random": "policy, random search",
    "variational_dropout": "Variational Dropout",
    "dropout": "Dropout",
    "word_dropout": "Word Dropout",
    "spatial_dropout": "Spatial Dropout",
    "dropblock": "DropBlock",
    "stochastic_depth": "Stochastic Depth",
}

Record = dict[str, Any]
"""A JSON file of the study."""


def draw_proposed(record: Record, axes: Axes) -> None:
    """What a method proposes as it learns: the median of each round of policies, and their quartiles."""
    for row in record["rows"]:
        low, middle, high = map(_numbers, zip(*row["rounds"]["quartiles"], strict=True))
        seen = [row["rounds"]["policies"] * (number + 1) for number in range(len(middle))]
        color = METHOD_COLORS.get(row["method"], OTHER)
        axes.plot(seen, middle, label=row["method"], linewidth=1.8, color=color)
        axes.fill_between(seen, low, high, alpha=0.15, color=color, linewidth=0)
    unit = unit_of(record)
    axes.set(xlabel="policies", ylabel=f"validation {unit}, one seed", title="proposed: median and quartiles")


def draw_best(record: Record, axes: Axes) -> None:
    """The best so far, one line and its band a method, from the end of its first round on."""
    for row in record["rows"]:
        first = row["rounds"]["policies"] - 1
        best, high, low = (_numbers(row["curve"][name][first:]) for name in ("best", "high", "low"))
        trials = range(first + 1, first + 1 + len(best))
        color = METHOD_COLORS.get(row["method"], OTHER)
        axes.step(trials, best, where="post", label=row["method"], linewidth=1.8, color=color)
        axes.fill_between(trials, low, high, step="post", alpha=0.15, color=color, linewidth=0)
    axes.axhline(record["rows"][0]["best"] or float("nan"), color="0.6", linewidth=1, linestyle=":")
    axes.set(xlabel=f"policies (dotted: the best of {record['rows'][0]['method']})", title="the best so far")
    axes.legend(frameon=False)


def _numbers(values: Iterable[float | None]) -> list[float]:
    """Those that are missing, of children that diverged, leave a gap."""
    return [float("nan") if value is None else value for value in values]


def draw_honest(record: Record, axes: Axes) -> None:
    """Every final training a dot, their mean a bar; the best on top."""
    rows = sorted(record["rows"], key=lambda row: -row["mean"])
    for place, row in enumerate(rows):
        color = COLORS.get(row["method"].partition(",")[0], OTHER)
        axes.plot(row["values"], [place] * len(row["values"]), "o", color=color, alpha=0.4, markersize=4)
        axes.plot([row["mean"]], [place], "|", color=color, markersize=18, markeredgewidth=2.5)
        error = "" if row["standard_error"] is None else f" ± {row['standard_error']:.2f}"
        told = f"{row['mean']:.2f}{error}"
        axes.annotate(told, (max(row["values"]), place), (8, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
    low, high = (choose(value for row in rows for value in row["values"]) for choose in (min, max))
    axes.set_xlim(low - 0.05 * (high - low), high + 0.3 * (high - low))  # the worst row's mean stands to its right
    axes.set_xlabel(f"test {unit_of(record)}, mean ± standard error; a dot is a seed")


def _label(row: Mapping[str, Any]) -> str:
    """A method, where it acts, its rate and length, in words."""
    name, _, more = row["method"].partition(", ")
    steps = f"{row['steps']:,} steps"
    told = [NAMES.get(name, name), more.removesuffix(steps), f"rate {row['rate']:g}" if row["rate"] else "", steps]
    return ", ".join(filter(None, told))


def finest(honest: Record, later: Iterable[Record]) -> Record:
    """Test scores of the final table; of methods that were trained again afterwards, those of the last time.

    Length by length: a method may have been trained again at one of them. Where another policy of a method was chosen
    later, nothing is left of the one before.
    """
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for record in (honest, *later):
        for exchanged in record.get("chosen", ()):
            rows.pop(f"policy of {exchanged['method']}", None)
        for row in _tested(record):
            rows.setdefault(row["method"], {})[row["steps"]] = row
    return {"rows": [row for by_length in rows.values() for row in by_length.values()], "unit": unit_of(honest)}


def _tested(record: Record) -> Iterator[dict[str, Any]]:
    """Each method's test scores, at the length it was given or at each of several."""
    for steps, part in record.get("by_length", {None: record}).items():
        table = next(table for name, table in part["tables"].items() if name.startswith("test "))
        for row in table:
            length = record["lengths"][row["method"]] if steps is None else int(steps.replace(",", ""))
            yield row | {"steps": length}


DRAWINGS = {"search": (draw_proposed, draw_best), "honest": (draw_honest,)}


def figures(found: Mapping[str, Mapping[Path, Record]], docs: Path, study: str, later: Iterable[Record] = ()) -> None:
    """Of a study's longest search, and of its final table, where they were run."""
    for stage, drawings in DRAWINGS.items():
        for given in sorted(found[stage].values(), key=_policies)[-1:]:
            record = finest(given, later) if stage == "honest" else given
            figure = Figure(figsize=(6 + 2 * len(drawings), 4.2), layout="constrained")
            for draw, axes in zip(drawings, figure.subplots(1, len(drawings), squeeze=False)[0], strict=True):
                draw(record, axes)
                axes.grid(color="0.92")
                axes.set_axisbelow(True)
                axes.spines[["top", "right"]].set_visible(False)
            figure.savefig(docs / f"{study}-{stage}.png", dpi=150)


def _policies(record: Record) -> int:
    """How many a search has tried; of a final table, all are alike."""
    return max(row.get("trials", 0) for row in record.get("rows", [{}]))
