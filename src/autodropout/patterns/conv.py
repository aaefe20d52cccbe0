"""ConvNet masks: tiled rectangles, rotated and sheared (paper: "Search Space for Dropout Patterns in ConvNets",
appendix A).

A draw unit is a (sample, channel), or a sample when the pattern is shared along channels. The pattern hits a unit
with probability `rate`; a unit that is hit draws a centre, an angle and two shears of its own. To decide about a
cell, map it back through the rotation and the shears, round to a cell of the plane, and ask whether that cell lies in
a rectangle of the tiling:

    cell (y, x) --inverse map--> cell (v, u) of the plane --minus the tiling's first cell--> profile_y[v] and
    profile_x[u]

Coordinates are fixed-point integers, so that one seed gives one mask on every backend, bit for bit. The coefficients
of the inverse map carry 12 fractional bits: on maps of up to 512 cells float32 would hold every value exactly too,
which a GPU kernel may use. `oracle.py` says the same in plain loops; departures from the paper are listed in
docs/semantics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autodropout.patterns.caching import cache_on_cpu
from autodropout.patterns.draws import below, threshold, words

FRACTION = 12  # fractional bits of the inverse map's coefficients
_Q = 28  # fractional bits while they are computed
_CHUNK = 1 << 22  # cells computed at once on a CPU, which bounds the temporaries


@dataclass(frozen=True)
class Tiling:
    """The geometry of a pattern on one map, in cells: (height, width) where the axes may differ."""

    size: tuple[int, int]
    stride: tuple[int, int]
    repeat: int
    share_c: bool = False
    rotate: float = 0.0  # largest angle, degrees
    shear_x: float = 0.0
    shear_y: float = 0.0

    @property
    def extent(self) -> tuple[int, int]:
        """Cells from the first rectangle's first cell to the last one's last, per axis."""
        height, width = (self.repeat * s + (self.repeat - 1) * t for s, t in zip(self.size, self.stride, strict=True))
        return height, width


def conv_mask(
    tiling: Tiling, shape: Sequence[int], rate: Tensor, seed: Tensor, *, channels_last: bool = False
) -> tuple[Tensor, Tensor]:
    """The mask of a pattern: True where a cell is kept.

    Args:
        tiling: the pattern's geometry on this map.
        shape: (N, C, H, W) of the tensor to mask.
        rate: the probability that the pattern hits a draw unit; a 0-d tensor.
        seed: a 0-d int64 tensor, of which the mask is a pure function; the mask is made on its device.
        channels_last: the mask's memory format.

    Returns:
        A boolean mask of `shape`, (N, 1, H, W) when shared along channels; and how many of the N*C*H*W cells it keeps,
        a 0-d int64 tensor.
    """
    mask, kept = torch.ops.autodropout.conv_mask(
        seed, rate, list(shape), list(tiling.size), list(tiling.stride), tiling.repeat, tiling.share_c,
        float(tiling.rotate), float(tiling.shear_x), float(tiling.shear_y), channels_last,
    )  # fmt: skip
    return mask, kept


# An operator of its own: `torch.compile` sees one node, compiled code draws the very masks of eager code, and the CPU
# may visit only the units that are hit, though their number depends on data.
@torch.library.custom_op("autodropout::conv_mask", mutates_args=())
def _conv_mask(
    seed: Tensor, rate: Tensor, shape: Sequence[int], size: Sequence[int], stride: Sequence[int], repeat: int,
    share_c: bool, rotate: float, shear_x: float, shear_y: float, channels_last: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tiling = Tiling((size[0], size[1]), (stride[0], stride[1]), repeat, share_c, rotate, shear_x, shear_y)
    n, c, h, w = shape
    mask = _empty_mask(seed, shape, share_c, channels_last).fill_(True)
    draws = words(seed, torch.arange(n * mask.shape[1], device=seed.device), 6)  # (units, 6)
    hit = draws[:, 0] < threshold(rate)  # (units,)
    if seed.device.type == "cpu":
        dropped = torch.zeros((), dtype=torch.int64)
        for units in hit.nonzero().flatten().split(max(1, _CHUNK // max(1, h * w))):
            cells = covered(tiling, draws[units, 1:], h, w)  # (hit units, H, W)
            mask[units // mask.shape[1], units % mask.shape[1]] = ~cells
            dropped += cells.count_nonzero()
    else:  # a host that waits for the number of hits would stall the device, and break CUDA graphs
        cells = covered(tiling, draws[:, 1:], h, w) & hit[:, None, None]
        mask.copy_(~cells.view(mask.shape))
        dropped = cells.count_nonzero()
    return mask, n * c * h * w - dropped * (c if share_c else 1)


@_conv_mask.register_fake
def _(
    seed: Tensor, rate: Tensor, shape: Sequence[int], size: Sequence[int], stride: Sequence[int], repeat: int,
    share_c: bool, rotate: float, shear_x: float, shear_y: float, channels_last: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _empty_mask(seed, shape, share_c, channels_last), torch.empty_like(seed)


def _empty_mask(seed: Tensor, shape: Sequence[int], share_c: bool, channels_last: bool) -> Tensor:
    n, c, h, w = shape
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty((n, 1 if share_c else c, h, w), dtype=torch.bool, device=seed.device, memory_format=layout)


def covered(tiling: Tiling, draws: Tensor, h: int, w: int) -> Tensor:
    """The cells that each unit's pattern covers: (units, 5) draws of 32 bits -> (units, H, W) booleans."""
    inverse = _inverse_map(tiling, draws[:, 2:])  # each (units,)
    x = torch.arange(w, dtype=torch.int32, device=draws.device) * 2 - (w - 1)  # half cells from the map's centre
    y = torch.arange(h, dtype=torch.int32, device=draws.device) * 2 - (h - 1)
    inside = []
    for axis, cells, centre in ((0, h, below(draws[:, 0], h)), (1, w, below(draws[:, 1], w))):
        # Rounding to the nearest cell is adding half a cell and flooring: hence `cells` and not `cells - 1` half cells.
        first = centre - (tiling.extent[axis] - 1) // 2
        offset = (cells << FRACTION) - (first << (FRACTION + 1))
        by_row = (inverse[axis][0].int()[:, None] * y + offset.int()[:, None])[:, :, None]  # (units, H, 1)
        by_column = (inverse[axis][1].int()[:, None] * x)[:, None, :]  # (units, 1, W)
        position = (by_row + by_column) >> (FRACTION + 1)  # (units, H, W), from the tiling's first cell
        reach = 2 * (h + w)  # no cell maps further than this beyond the tiling
        profile = _profile(tiling, axis, reach, draws.device)
        inside.append(profile.index_select(0, (position + reach).view(-1)).view(position.shape))
    return inside[0] & inside[1]


@cache_on_cpu
def _profile(tiling: Tiling, axis: int, reach: int, device: torch.device) -> Tensor:
    """The tiling along one axis, from `reach` cells before its first to `reach` cells after its last."""
    size, stride, extent = tiling.size[axis], tiling.stride[axis], tiling.extent[axis]
    cell = torch.arange(-reach, extent + reach, device=device)
    return (cell >= 0) & (cell < extent) & (cell % max(1, size + stride) < size)


def _inverse_map(tiling: Tiling, draws: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Coefficients of (y, x) for v and for u: undo the rotation, then the shear along y, then the one along x."""
    one = 1 << _Q
    symmetric = 2 * draws + 1 - (1 << 32)  # odd, uniform in ±2**32, never biased to a side
    limits = (math.radians(tiling.rotate), tiling.shear_x, tiling.shear_y)
    angle, shear_x, shear_y = ((symmetric[:, i] * round(limit * one)) >> 32 for i, limit in enumerate(limits))
    sin, cos = _sin_cos(angle) if tiling.rotate else (torch.zeros_like(angle), torch.full_like(angle, one))
    both = one + _times(shear_x, shear_y)
    v = (_times(-shear_y, sin) + cos, _times(-shear_y, cos) - sin)
    u = (_times(both, sin) - _times(shear_x, cos), _times(both, cos) + _times(shear_x, sin))
    half = 1 << (_Q - FRACTION - 1)
    return tuple(tuple((c + half) >> (_Q - FRACTION) for c in row) for row in (v, u))  # type: ignore[return-value]


def _times(a: Tensor, b: Tensor) -> Tensor:
    return (a * b) >> _Q


def _sin_cos(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Sine and cosine of a fixed-point angle below two radians, by Taylor's series in integers."""
    one = 1 << _Q
    square = _times(angle, angle)
    sin = cos = torch.full_like(angle, one)
    for k in (8, 6, 4, 2):  # the next terms are below 2**-17, the coefficients' resolution is 2**-12
        sin = one - _times(square, sin) // (k * (k + 1))
        cos = one - _times(square, cos) // (k * (k - 1))
    return _times(angle, sin), cos
