"""Pictures of a policy's masks, after the paper's appendix "Visualization of Good Dropout Patterns".

    autodropout show policy.json --out masks.png

A ConvNet policy: one row a group, each panel the mask of one channel of one sample that the pattern hits. A
Transformer policy: one row a site, each panel one sample, tokens to the right and channels down; in most of them a
pattern that is shared by all drops nothing, and in the others everything, which a single one would not show. Dark cells
are dropped. A place without a pattern says so.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Literal

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from autodropout.patterns import Runs, Tiling, conv_mask, sequence_mask
from autodropout.report.plots import save_figure
from autodropout.spaces import ConvGroup, ConvPolicy, Policy, SequencePattern, TransformerPolicy

RATE = 0.3  # at which policies that record none are drawn
_PANELS = 8
_TOKENS, _CHANNELS = 70, 24
_DRAWS, _NEXT_DRAW = 64, 1000
_MANY = 512  # draws that the dropped share is measured on


@dataclass(frozen=True, slots=True)
class Masks:
    """What one group or site of a policy drops."""

    place: str
    pattern: str  # in words
    panels: Tensor  # (panels, height, width) bool, True where kept; no panel where there is no pattern


def policy_masks(policy: Policy, *, rate: float | None = None, seed: int = 0) -> list[Masks]:
    """Masks drawn from `seed` for each group or site.

    A ConvNet pattern is shown where it hits, whatever the rate; `rate` is that of a Transformer's covered positions,
    shown in the first of a few draws of all samples that drops any of them. None: the policy's own if it records one,
    else 0.3.
    """
    if rate is None:
        rate = RATE if policy.recorded_rate is None else policy.recorded_rate
    if isinstance(policy, ConvPolicy):
        return [
            Masks(
                f"group {number}, {group.at[0]}x{group.at[1]}", _conv_words(group), _conv_panels(group, seed + number)
            )
            for number, group in enumerate(policy.groups, start=1)
        ]
    return [
        Masks(site, _sequence_words(pattern, rate), _sequence_panels(pattern, rate, seed + number))
        for number, (site, pattern) in enumerate(policy.sites.items())
    ]


def draw_masks(
    policy: Policy, path: str | os.PathLike[str] | IO[bytes], *, rate: float | None = None, seed: int = 0
) -> None:
    """Write a picture of `policy_masks`; the format follows the file's suffix: .png, .svg or .pdf."""
    places = policy_masks(policy, rate=rate, seed=seed)
    figure = _transformer(places) if isinstance(policy, TransformerPolicy) else _conv(places)
    save_figure(figure, path, dpi=110)


def _conv(places: Sequence[Masks]) -> Figure:
    heights = [1.0 if len(masks.panels) else 0.45 for masks in places]
    figure = Figure(figsize=(1.25 * _PANELS, 1.6 * sum(heights)))
    rows = figure.subfigures(len(places), 1, squeeze=False, height_ratios=heights)[:, 0]
    for row, height, masks in zip(rows, heights, places, strict=True):
        row.suptitle(f"{masks.place}: {masks.pattern}", x=0.01, y=1 - 0.13 / height, ha="left", va="center", fontsize=9)
        axes: Sequence[Axes] = row.subplots(1, max(1, len(masks.panels)), squeeze=False)[0]
        row.subplots_adjust(top=1 - 0.2 / height, bottom=0.02 / height, left=0.01, right=0.99, wspace=0.08)
        if not len(masks.panels):
            _show_nothing(axes[0])
        for axis, panel in zip(axes, masks.panels, strict=False):
            _show(axis, panel, "equal")
    _note(figure, places, 0.01, 0.0, "Each panel is the map of one channel of one sample that the pattern hits.")
    return figure


def _transformer(places: Sequence[Masks]) -> Figure:
    heights = [1.0 if len(masks.panels) else 0.6 for masks in places]
    figure = Figure(figsize=(1.5 * _PANELS, 0.85 * sum(heights)))
    rows = figure.subfigures(len(places), 1, squeeze=False, height_ratios=heights)[:, 0]
    for row, height, masks in zip(rows, heights, places, strict=True):
        row.suptitle(f"{masks.place}: {masks.pattern}", x=0.01, y=1 - 0.2 / height, ha="left", va="center", fontsize=9)
        axes: Sequence[Axes] = row.subplots(1, max(1, len(masks.panels)), squeeze=False)[0]
        row.subplots_adjust(top=1 - 0.34 / height, bottom=0.06 / height, left=0.01, right=0.99, wspace=0.06)
        if not len(masks.panels):
            _show_nothing(axes[0])
        for axis, panel in zip(axes, masks.panels, strict=False):
            _show(axis, panel, "auto")
    _note(figure, places, 0.01, 0.0, "Each panel is one sample, tokens to the right and channels down.")
    return figure


def _note(figure: Figure, places: Sequence[Masks], left: float, bottom: float, panels: str) -> None:
    """A line under the picture: how to read it."""
    drops = any(len(masks.panels) for masks in places)
    text = f"{panels} Dark cells are dropped." if drops else "This policy drops nothing."
    figure.text(left, bottom - 0.12 / figure.get_figheight(), text, fontsize=8, color="0.4", va="top")


def _show(axis: Axes, kept: Tensor, aspect: Literal["equal", "auto"]) -> None:
    axis.imshow(kept.float().numpy(), cmap="gray", vmin=-0.25, vmax=1.1, interpolation="nearest", aspect=aspect)
    axis.set_xticks([])
    axis.set_yticks([])


def _show_nothing(axis: Axes) -> None:
    axis.set_facecolor("0.96")
    axis.text(0.5, 0.5, "nothing is dropped here", ha="center", va="center", fontsize=9, color="0.45")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_color("0.8")


def _conv_words(group: ConvGroup) -> str:
    if group.pattern.is_none:
        return "no pattern"
    kept = _conv_draws(group, seed=0, units=_MANY).float().mean().item()
    return f"{group.pattern}; drops {_percent(1 - kept)} of a map it hits"


def _sequence_words(pattern: SequencePattern, rate: float) -> str:
    if pattern.is_none:
        return "no pattern"
    return f"{pattern}; drops {_percent(rate * _covered(pattern))} at rate {rate:g}"


def _covered(pattern: SequencePattern) -> float:
    """The share of positions that can be dropped."""
    return pattern.size / (pattern.size + pattern.stride)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 or share == 0 else "less than 1%"


def _conv_panels(group: ConvGroup, seed: int) -> Tensor:
    """(panels, H, W)"""
    return _conv_draws(group, seed, units=0 if group.pattern.is_none else _PANELS)


def _conv_draws(group: ConvGroup, seed: int, units: int) -> Tensor:
    """So many draw units that are hit, (units, H, W): channels of one sample, or samples where it is shared."""
    p, cells, (height, width) = group.pattern, group.cells(), group.at
    if not units:
        return torch.ones(0, height, width, dtype=torch.bool)
    tiling = Tiling(cells.size, cells.stride, p.repeat, p.share_c, p.rotate, p.shear_x, p.shear_y)
    shape = (units, 1, height, width) if p.share_c else (1, units, height, width)
    mask, _ = conv_mask(tiling, shape, torch.tensor(1.0), _seed(seed))
    return mask.view(units, height, width)


def _sequence_panels(pattern: SequencePattern, rate: float, seed: int) -> Tensor:
    """(panels, channels, tokens)"""
    if pattern.is_none:
        return torch.ones(0, _CHANNELS, _TOKENS, dtype=torch.bool)
    runs = Runs(pattern.size, pattern.stride, pattern.share_t, pattern.share_c)
    shape = (_PANELS, _TOKENS, _CHANNELS)
    for further in range(_DRAWS):  # a pattern that is shared by all seldom drops anything: show a draw where it does
        mask, _ = sequence_mask(runs, shape, torch.tensor(rate), _seed(seed + _NEXT_DRAW * further))
        if not mask.all():
            break
    return mask.expand(shape).mT


def _seed(number: int) -> Tensor:
    """A seed that was counted on, which after the last that torch takes goes on from 0."""
    return torch.tensor(number % 2**63)
