"""Plots as files, by matplotlib."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from autodropout.report.history import History
from autodropout.report.suffixes import checked_suffix
from autodropout.spaces.atomic import write_atomically

FORMATS = ("png", "svg", "pdf")


def draw_comparison(studies: Mapping[str, History], path: str | os.PathLike[str] | IO[bytes]) -> None:
    """Best so far over the trials that have ended, one line a study; the format follows the file's suffix."""
    if not studies:
        raise ValueError("there is no study to compare")
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, history in studies.items():
        best = history.best_so_far()
        ended = np.arange(1, len(best) + 1)
        last = f"{best[-1]:.4g} after {len(best)}" if len(best) and np.isfinite(best[-1]) else "no score yet"
        label = f"{last}: {name} ({history.info.proposer})"  # the name not first: matplotlib hides those with a _
        (line,) = axes.step(ended, best, where="post", label=label, linewidth=1.8)
        axes.plot(ended[-1:], best[-1:], "o", markersize=4, color=line.get_color())  # a single trial is seen, too
    axes.set_xlabel("trials, in the order in which they ended")
    axes.set_ylabel("best score so far")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    legend = figure.legend(frameon=False, loc="outside upper left")
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name may have a $
    save_figure(figure, path, dpi=150)


def save_figure(figure: Figure, path: str | os.PathLike[str] | IO[bytes], dpi: int) -> None:
    """Write a figure in the format of the file's suffix, whole or not at all; or as PNG into an open file."""
    if not isinstance(path, str | os.PathLike):
        figure.savefig(path, dpi=dpi, bbox_inches="tight", facecolor="white")
        return
    suffix = checked_suffix(path, FORMATS, "a picture is a .png, .svg or .pdf")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi, bbox_inches="tight", facecolor="white", format=suffix)
    write_atomically(Path(path), drawn.getvalue())
