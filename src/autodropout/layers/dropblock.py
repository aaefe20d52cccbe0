"""DropBlock (Ghiasi et al. 2018), whose realised rate is the one asked for, on every map.

    rate  --block_density-->  how often a block's corner is drawn  --rare-->  corners  --_spread-->  cells covered

A cell near the border can be covered by fewer blocks than one in the middle, and blocks overlap: with the published
density a small map loses more, or less, than the rate says. Ours solves for the density. Along an axis of `cells` the
block has cells - block + 1 places, and most cells can be covered from min(block, places) of them, the two outermost
from 1, the next two from 2, and so on. A cell that k corners can cover stays with probability (1 - density)**k.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from autodropout.layers.drop import is_channels_last, rescale
from autodropout.layers.given import is_whole, need_map, told
from autodropout.patterns import rare, switch

NEWTON = 10  # steps, of which none of the rates from 0 to 0.9999 takes more than 9
LEAST = 1e-300  # of a share that stays: all is dropped, and its logarithm is finite
MANY = 1 << 14  # kinds of cells, by how many corners could cover them: one program holds no more in its registers


@dataclass(frozen=True)
class DropBlock:
    """Square blocks (Ghiasi et al. 2018), in each channel on its own.

    Departures: blocks of any size, cut to the map where they are larger; and the density of blocks solves for the
    share of cells dropped exactly, blocks overlapping or not, so that `rate` means the same on 7x7 as on 56x56.
    """

    block: int = 7

    def __post_init__(self) -> None:
        if not is_whole(self.block):
            raise TypeError(f"DropBlock's block must be a whole number of cells, got {told(self.block)}")
        if self.block < 1:
            raise ValueError(f"DropBlock's block must be at least 1 cell, got {self.block}")

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        need_map(h, "DropBlock")
        if h.numel() == 0:
            return h
        n, c, height, width = h.shape
        # Branches, as `min` of a size that compiled code takes as variable would be an expression, and all sizes that
        # follow from it: they take ten times as long to compile.
        rows = self.block if self.block < height else height
        columns = self.block if self.block < width else width
        density = block_density(height, width, rows, columns, rate)
        corners = rare((n, c, height - rows + 1, width - columns + 1), density, seed)
        covered = _spread(corners, 3, columns) if columns < width else corners.expand(-1, -1, -1, width)
        covered = _spread(covered, 2, rows) if rows < height else covered.expand(-1, -1, height, -1)
        mask = ~covered  # (N, C, H, W)
        if is_channels_last(h):
            mask = mask.contiguous(memory_format=torch.channels_last)
        return rescale(h, mask, mask.count_nonzero())


def _spread(corners: Tensor, axis: int, size: int) -> Tensor:
    """Cells that blocks of `size` cells cover along an axis: in a few passes over bytes, each as far as all before.

    Max-pooling finds the same, in floats, with `size`**2 comparisons a cell.
    """
    marked = F.pad(corners, (*[0, 0] * (3 - axis), size - 1, size - 1))
    reach = 1
    while reach < size:
        step = min(reach, size - reach)
        length = marked.shape[axis] - step
        marked = marked.narrow(axis, 0, length) | marked.narrow(axis, step, length)
        reach += step
    return marked


@torch.library.custom_op("autodropout::block_density", mutates_args=())
def block_density(height: int, width: int, rows: int, columns: int, rate: Tensor) -> Tensor:
    """The probability of a block's corner that makes the expected share of covered cells `rate`; float32."""
    density = _density(height, width, rows, columns, rate.item())
    return torch.tensor(density, dtype=torch.float32, device=rate.device)


@block_density.register_kernel("cuda")
def _on_gpu(height: int, width: int, rows: int, columns: int, rate: Tensor) -> Tensor:
    """Without waiting for the device, which alone knows the rate; CUDA graphs capture it.

    Its logarithms may round otherwise than a CPU's, and the density be the next float32. It becomes two limits of 16
    bits, which hardly ever tell: so a seed gives one mask here, too, though not by integers alone as elsewhere.
    """
    if not switch.TRITON or _most(height, rows) * _most(width, columns) > MANY:
        solved: Tensor = _solve(torch, *covering(height, width, rows, columns, rate.device), rate.double())
        return solved.float()
    from autodropout.patterns.kernels.block_density import block_density as kernel

    with torch.cuda.device_of(rate):
        return kernel(height, width, rows, columns, rate, NEWTON, LEAST)


@block_density.register_fake
def _(height: int, width: int, rows: int, columns: int, rate: Tensor) -> Tensor:
    return torch.empty_like(rate, dtype=torch.float32)


@lru_cache(maxsize=4096)  # of each site of a network, each rate of a short schedule
def _density(height: int, width: int, rows: int, columns: int, rate: float) -> float:
    counts, shares = covering(height, width, rows, columns, torch.device("cpu"))
    return float(_solve(np, counts.numpy(), shares.numpy(), np.float64(rate)))


def _most(cells: int, block: int) -> int:
    """Along an axis: how many places of a block could cover a cell, of the cell that most could."""
    return min(block, cells - block + 1)


def covering(height: int, width: int, rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """How many corners could cover a cell, and the share of cells of which that is true."""

    def along(cells: int, block: int) -> tuple[Tensor, Tensor]:
        most = _most(cells, block)
        shares = torch.full((most,), 2 / cells, dtype=torch.float64, device=device)
        shares[-1:].fill_((cells - 2 * (most - 1)) / cells)  # an assignment would copy from the host, uncapturable
        return torch.arange(1, most + 1, dtype=torch.float64, device=device), shares

    (down, down_share), (across, across_share) = along(height, rows), along(width, columns)
    return torch.outer(down, across).flatten(), torch.outer(down_share, across_share).flatten()


def _solve(of: Any, counts: Any, shares: Any, rate: Any) -> Any:
    """The density by Newton's method, with NumPy or with torch.

    In t = -log(1 - density) the logarithm of the share that stays is nearly a line, and convex: from t = 0 on every
    step falls short, and the next is better.
    """
    target = of.log((1 - rate).clip(LEAST))
    t = 0 * rate
    for _ in range(NEWTON):
        staying = shares * of.exp(-counts * t)
        stay = staying.sum()
        t = t + (of.log(stay) - target) * stay / (counts * staying).sum()
    return (1 - of.exp(-t)).clip(0)
