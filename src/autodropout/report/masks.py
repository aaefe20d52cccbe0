"""Pictures of a policy's masks, after the paper's appendix "Visualization of Good Dropout Patterns".

    autodropout show policy.json --out masks.png

A ConvNet policy: one row a group, each panel the mask of one channel of one sample that the pattern hits. A
Transformer policy: one panel a site, tokens to the right and channels down. Dark cells are dropped.
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
from autodropout.spaces import ConvGroup, ConvPolicy, Policy, SequencePattern, TransformerPolicy

_PANELS = 8
_TOKENS, _CHANNELS = 70, 24
_DRAWS, _NEXT_DRAW = 64, 1000


@dataclass(frozen=True, slots=True)
class Masks:
    """What one group or site of a policy drops."""

    place: str
    pattern: str  # in words
    panels: Tensor  # (panels, height, width) bool, True where kept; no panel where there is no pattern


def policy_masks(policy: Policy, *, rate: float = 0.3, seed: int = 0) -> list[Masks]:
    """Masks drawn from `seed` for each group or site.

    A ConvNet pattern is shown where it hits, whatever the rate; `rate` is that of a Transformer's covered positions,
    shown in the first of a few draws that drops any of them.
    """
    if isinstance(policy, ConvPolicy):
        return [
            Masks(
                f"group {number}, {group.at[0]}x{group.at[1]}", str(group.pattern), _conv_panels(group, seed + number)
            )
            for number, group in enumerate(policy.groups, start=1)
        ]
    return [
        Masks(site, str(pattern), _sequence_panels(pattern, rate, seed + number))
        for number, (site, pattern) in enumerate(policy.sites.items())
    ]


def draw_masks(policy: Policy, path: str | os.PathLike[str] | IO[bytes], *, rate: float = 0.3, seed: int = 0) -> None:
    """Write a picture of `policy_masks`; the format follows the file's suffix, as matplotlib's."""
    places = policy_masks(policy, rate=rate, seed=seed)
    figure = _transformer(places) if isinstance(policy, TransformerPolicy) else _conv(places)
    figure.savefig(path, dpi=110, bbox_inches="tight", facecolor="white")


def _conv(places: Sequence[Masks]) -> Figure:
    heights = [1.0 if len(masks.panels) else 0.3 for masks in places]
    figure = Figure(figsize=(1.25 * _PANELS, 1.6 * sum(heights)))
    rows = figure.subfigures(len(places), 1, squeeze=False, height_ratios=heights)[:, 0]
    for row, masks in zip(rows, places, strict=True):
        row.suptitle(f"{masks.place}: {masks.pattern}", x=0.01, ha="left", fontsize=9)
        if len(masks.panels):
            axes: Sequence[Axes] = row.subplots(1, _PANELS)
            row.subplots_adjust(top=0.8, bottom=0.02, left=0.01, right=0.99, wspace=0.08)
            for axis, panel in zip(axes, masks.panels, strict=True):
                _show(axis, panel, "equal")
    return figure


def _transformer(places: Sequence[Masks]) -> Figure:
    figure = Figure(figsize=(9, 1.1 * len(places)))
    axes = figure.subplots(len(places), 1, squeeze=False)[:, 0]
    figure.subplots_adjust(hspace=0.9)
    for axis, masks in zip(axes, places, strict=True):
        axis.set_title(f"{masks.place}: {masks.pattern}", loc="left", fontsize=9)
        nothing = torch.ones(_CHANNELS, _TOKENS, dtype=torch.bool)
        _show(axis, masks.panels[0] if len(masks.panels) else nothing, "auto")
    return figure


def _show(axis: Axes, kept: Tensor, aspect: Literal["equal", "auto"]) -> None:
    axis.imshow(kept.float().numpy(), cmap="gray", vmin=-0.25, vmax=1.1, interpolation="nearest", aspect=aspect)
    axis.set_xticks([])
    axis.set_yticks([])


def _conv_panels(group: ConvGroup, seed: int) -> Tensor:
    """(panels, H, W)"""
    p, cells, (height, width) = group.pattern, group.cells(), group.at
    if p.is_none:
        return torch.ones(0, height, width, dtype=torch.bool)
    tiling = Tiling(cells.size, cells.stride, p.repeat, p.share_c, p.rotate, p.shear_x, p.shear_y)
    # Shared or not, the panels are draw units: channels of one sample, or samples.
    shape = (_PANELS, 1, height, width) if p.share_c else (1, _PANELS, height, width)
    mask, _ = conv_mask(tiling, shape, torch.tensor(1.0), torch.tensor(seed))
    return mask.view(_PANELS, height, width)


def _sequence_panels(pattern: SequencePattern, rate: float, seed: int) -> Tensor:
    """(1, channels, tokens)"""
    if pattern.is_none:
        return torch.ones(0, _CHANNELS, _TOKENS, dtype=torch.bool)
    runs = Runs(pattern.size, pattern.stride, pattern.share_t, pattern.share_c)
    for further in range(_DRAWS):  # a pattern that is shared by all seldom drops anything: show a draw where it does
        mask, _ = sequence_mask(
            runs, (1, _TOKENS, _CHANNELS), torch.tensor(rate), torch.tensor(seed + _NEXT_DRAW * further)
        )
        if not mask.all():
            break
    return mask[0].expand(_TOKENS, _CHANNELS).T[None]
