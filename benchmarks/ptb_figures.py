"""The figures of `ptb_report.py`: the best policy so far, and the final table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

METHOD_COLORS = {"random": "#d08030", "controller-paper": "#8070b0", "controller": "#2060b0"}
COLORS = {"none": "0.55"} | {f"policy of {method}": color for method, color in METHOD_COLORS.items()}
OTHER = "#50906a"

Record = dict[str, Any]
"""A JSON file of the study."""


def draw_search(record: Record, axes: Axes) -> None:
    """Perplexity of the best so far over trials, one line and its band a method."""
    for row in record["rows"]:
        best, high, low = (
            [float("nan") if value is None else value for value in row["curve"][name]]
            for name in ("best", "high", "low")
        )
        trials = range(1, len(best) + 1)
        color = METHOD_COLORS.get(row["method"], OTHER)
        axes.step(trials, best, where="post", label=row["method"], linewidth=1.8, color=color)
        axes.fill_between(trials, low, high, step="post", alpha=0.15, color=color, linewidth=0)
    axes.axhline(record["rows"][0]["best"] or float("nan"), color="0.6", linewidth=1, linestyle=":")
    axes.set(xscale="log", xlabel=f"policies (dotted: the best of {record['rows'][0]['method']})")
    axes.set_ylabel("best validation perplexity so far, one seed")
    axes.legend(frameon=False)


def draw_honest(record: Record, axes: Axes) -> None:
    """Every final training a dot, their mean a bar; the best on top."""
    rows = sorted(record["tables"]["test_perplexity, from none"], key=lambda row: -row["mean"])
    for place, row in enumerate(rows):
        color = COLORS.get(row["method"], OTHER)
        axes.plot(row["values"], [place] * len(row["values"]), "o", color=color, alpha=0.4, markersize=4)
        axes.plot([row["mean"]], [place], "|", color=color, markersize=18, markeredgewidth=2.5)
    axes.set_yticks(range(len(rows)), [f"{row['method']} at {row['rate']:g}" for row in rows])
    axes.set_xlabel("test perplexity; a dot a seed, a bar their mean")


def figures(found: Mapping[str, Mapping[Path, Record]], docs: Path) -> None:
    """Of the first search, which the final table is of, and of that table, where they were run."""
    for stage, draw in (("search", draw_search), ("honest", draw_honest)):
        for record in list(found[stage].values())[:1]:
            figure = Figure(figsize=(8, 4.2), layout="constrained")
            axes = figure.subplots()
            draw(record, axes)
            axes.grid(color="0.92")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            figure.savefig(docs / f"ptb-{stage}.png", dpi=150)
