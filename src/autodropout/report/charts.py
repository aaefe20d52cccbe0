"""Charts as HTML and inline SVG, for a page that needs no script and no other file.

The SVG holds lines and dots and stretches with the page; all text around it is HTML. So a chart is as readable on a
phone as on a wide screen, and takes its colours from the page's style sheet, light or dark.
"""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Literal

import matplotlib.image
import numpy as np
import numpy.typing as npt
from matplotlib.ticker import MaxNLocator

from autodropout.report.history import Floats

WIDTH, HEIGHT = 1000, 500  # of a chart's coordinates: finer than any screen will show it
LARGEST = 1e300  # values are drawn as if they were no larger, so that no difference of two overflows


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart; where `y` is not finite it has a gap."""

    name: str
    x: Floats
    y: Floats
    tone: int = 1  # which colour of the style sheet
    mark: Literal["line", "steps", "dots"] = "line"


def chart(title: str, series: Sequence[Series], x_label: str, y_range: tuple[float, float] | None = None) -> str:
    """A chart of one or more series; what lies outside `y_range` is drawn on its edge."""
    xs = np.concatenate([line.x[np.isfinite(line.y)] for line in series])
    ys = np.concatenate([line.y[np.isfinite(line.y)] for line in series]).clip(-LARGEST, LARGEST)
    caption = escape(title) if len(series) == 1 else f"{escape(title)} {_legend(series)}"
    if not len(xs):
        return (
            f'<figure class="chart"><figcaption>{caption}</figcaption><p class="none">nothing finite yet</p></figure>'
        )
    x_low, x_high = _widened(float(xs.min()), float(xs.max()), margin=0.0)
    y_low, y_high = _widened(*(y_range or (float(ys.min()), float(ys.max()))), margin=0.05)
    x_ticks, y_ticks = _ticks(x_low, x_high, 6, whole=True), _ticks(y_low, y_high, 4)
    across = [(_share(tick, x_low, x_high), text) for tick, text in x_ticks]
    up = [(_share(tick, y_low, y_high), text) for tick, text in y_ticks]
    grid = "".join(f"M0 {HEIGHT * (1 - share):.1f}H{WIDTH}" for share, _ in up)
    paths = "".join(_path(line, (x_low, x_high), (y_low, y_high)) for line in series)
    widest = max(len(text) for _, text in y_ticks)
    return (
        f'<figure class="chart"><figcaption>{caption}</figcaption><div class="plot">'
        f'<div class="y" style="width:{widest}ch">'
        + "".join(f'<span style="bottom:{100 * share:.1f}%">{text}</span>' for share, text in up)
        + f'</div><svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">'
        f'<path class="grid" d="{grid}"/>{paths}</svg><div class="x">'
        + "".join(f'<span style="left:{100 * share:.1f}%">{text}</span>' for share, text in across)
        + f'</div><div class="label">{escape(x_label)}</div></div></figure>'
    )


def picture(opacity: npt.NDArray[np.float64], tone: tuple[float, float, float], alt: str) -> str:
    """An (H, W) array in 0..1 as an image of H times W cells in one colour, for any background."""
    pixels = np.empty((*opacity.shape, 4))
    pixels[..., :3], pixels[..., 3] = tone, opacity
    file = io.BytesIO()
    matplotlib.image.imsave(file, np.round(255 * pixels).astype(np.uint8), format="png")
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img class="cells" src="data:image/png;base64,{data}" alt="{escape(alt)}">'


def _path(line: Series, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    heights = np.clip(np.where(np.isfinite(line.y), line.y, np.nan), *y_range)
    places = np.stack(
        (
            np.round(WIDTH * (line.x - x_range[0]) / (x_range[1] - x_range[0])),
            np.round(HEIGHT * (y_range[1] - heights) / (y_range[1] - y_range[0])),
        )
    )  # (2, points), y NaN where there is no point
    if line.mark == "dots":
        finite = places[:, ~np.isnan(heights)].astype(int)
        d = "".join(f"M{x} {y}h0" for x, y in np.unique(finite, axis=1).T)  # thousands of dots share a few places
    else:
        parts: list[str] = []
        for (_, before), (x, y) in pairwise([(0.0, math.nan), *places.T.tolist()]):
            if math.isnan(y):
                continue
            if math.isnan(before):
                parts.append(f"M{x:.0f} {y:.0f}h0")
            elif line.mark == "line":
                parts.append(f"L{x:.0f} {y:.0f}")
            elif y != before:
                parts.append(f"H{x:.0f}V{y:.0f}")
        if line.mark == "steps" and parts:
            parts.append(f"H{places[0, -1]:.0f}")
        d = "".join(parts)
    return f'<path class="{line.mark} tone{line.tone}" d="{d}"/>'


def _legend(series: Sequence[Series]) -> str:
    return " ".join(f'<span class="key tone{line.tone}">{escape(line.name)}</span>' for line in series)


def _widened(low: float, high: float, margin: float) -> tuple[float, float]:
    if low == high == 0:
        return 0.0, 1.0  # most often a share or a count: they have no negative values
    if low == high:
        half = abs(low) / 2 or 0.5  # half of the smallest number is none
        return low - half, high + half
    return low - margin * (high - low), high + margin * (high - low)


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low)


def _ticks(low: float, high: float, most: int, whole: bool = False) -> list[tuple[float, str]]:
    """Round numbers in the range, with their texts."""
    found = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10], integer=whole).tick_values(low, high)
    inside = [float(tick) for tick in found if low <= tick <= high and (not whole or tick == round(tick))] or [low]
    step = min((b - a for a, b in pairwise(inside)), default=abs(low) or 1.0)
    if max(map(abs, inside)) >= 1e6 or step < 1e-6:
        return [(tick, f"{tick:.4g}") for tick in inside]
    decimals = 0 if whole else next((n for n in range(7) if math.isclose(round(step, n), step, rel_tol=1e-6)), 7)
    return [(tick, f"{tick:.{decimals}f}") for tick in inside]
