"""Pictures of a policy's masks, after the paper's appendix "Visualization of Good Dropout Patterns".

    python -c "import autodropout as ad; from autodropout.report import draw_masks; draw_masks(ad.load('policy.json'),
    'masks.png')"

A ConvNet policy: one row a group, each panel the mask of one channel of one sample that the pattern hits. A
Transformer policy: one panel a site, tokens to the right and channels down. Dark cells are dropped.
"""

import os
from collections.abc import Sequence
from typing import Literal

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from autodropout.patterns import Runs, Tiling, conv_mask, sequence_mask
from autodropout.spaces import ConvPolicy, Policy, SequencePattern, TransformerPolicy

_PANELS = 8
_TOKENS, _CHANNELS = 70, 24


def draw_masks(policy: Policy, path: str | os.PathLike[str], *, rate: float = 0.3, seed: int = 0) -> None:
    """Write a picture of masks drawn from `seed`; the format follows the file's suffix, as matplotlib's.

    A ConvNet pattern is shown where it hits, whatever the rate; `rate` is that of a Transformer's covered positions.
    """
    figure = _conv(policy, seed) if isinstance(policy, ConvPolicy) else _transformer(policy, rate, seed)
    figure.savefig(path, dpi=110, bbox_inches="tight", facecolor="white")


def _conv(policy: ConvPolicy, seed: int) -> Figure:
    heights = [0.3 if group.pattern.is_none else 1.0 for group in policy.groups]
    figure = Figure(figsize=(1.25 * _PANELS, 1.6 * sum(heights)))
    rows = figure.subfigures(len(policy.groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for number, (row, group) in enumerate(zip(rows, policy.groups, strict=True), start=1):
        height, width = group.at
        row.suptitle(f"group {number}, {height}x{width}: {group.pattern}", x=0.01, ha="left", fontsize=9)
        if group.pattern.is_none:
            continue
        axes: Sequence[Axes] = row.subplots(1, _PANELS)
        row.subplots_adjust(top=0.8, bottom=0.02, left=0.01, right=0.99, wspace=0.08)
        p, cells = group.pattern, group.cells()
        tiling = Tiling(cells.size, cells.stride, p.repeat, p.share_c, p.rotate, p.shear_x, p.shear_y)
        # Shared or not, the panels are draw units: channels of one sample, or samples.
        shape = (_PANELS, 1, height, width) if p.share_c else (1, _PANELS, height, width)
        mask, _ = conv_mask(tiling, shape, torch.tensor(1.0), torch.tensor(seed + number))
        for axis, panel in zip(axes, mask.view(_PANELS, height, width), strict=True):
            _panel(axis, panel, "equal")
    return figure


def _transformer(policy: TransformerPolicy, rate: float, seed: int) -> Figure:
    figure = Figure(figsize=(9, 1.1 * len(policy.sites)))
    axes = figure.subplots(len(policy.sites), 1, squeeze=False)[:, 0]
    figure.subplots_adjust(hspace=0.9)
    for number, (axis, (site, pattern)) in enumerate(zip(axes, policy.sites.items(), strict=True)):
        axis.set_title(f"{site}: {pattern}", loc="left", fontsize=9)
        _panel(axis, _sequence_panel(pattern, rate, seed + number), "auto")
    return figure


def _sequence_panel(pattern: SequencePattern, rate: float, seed: int) -> Tensor:
    if pattern.is_none:
        return torch.ones(_CHANNELS, _TOKENS, dtype=torch.bool)
    runs = Runs(pattern.size, pattern.stride, pattern.share_t, pattern.share_c)
    mask, _ = sequence_mask(runs, (1, _TOKENS, _CHANNELS), torch.tensor(rate), torch.tensor(seed))
    return mask[0].expand(_TOKENS, _CHANNELS).T  # (channels, tokens)


def _panel(axis: Axes, kept: Tensor, aspect: Literal["equal", "auto"]) -> None:
    axis.imshow(kept.float().numpy(), cmap="gray", vmin=-0.25, vmax=1.1, interpolation="nearest", aspect=aspect)
    axis.set_xticks([])
    axis.set_yticks([])
