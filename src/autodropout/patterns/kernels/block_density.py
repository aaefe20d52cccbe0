"""The density of DropBlock's blocks, in one launch: `layers/dropblock.py` says what is solved, and how."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def block_density(height: int, width: int, rows: int, columns: int, rate: Tensor, newton: int, least: float) -> Tensor:
    """For a rate on a GPU, by so many of Newton's steps; `least` is the smallest share that stays."""
    density = torch.empty_like(rate, dtype=torch.float32)
    counted = min(rows, height - rows + 1), min(columns, width - columns + 1)
    down, across = map(triton.next_power_of_2, counted)
    warps = min(16, triton.cdiv(down * across, 512))  # of large blocks a thread could not hold its part
    _solve[(1,)](
        rate, density, *counted, height, width, newton, least, DOWN=down, ACROSS=across, num_warps=warps
    )  # fmt: skip
    return density


@triton.jit
def _shares(counts, most, cells):
    """Along an axis: the share of cells that so many places of a block can cover."""
    share = tl.where(counts < most, 2, cells - 2 * (most - 1)).to(tl.float64) / tl.cast(cells, tl.float64)
    return tl.where(counts <= most, share, 0.0)


@triton.jit(do_not_specialize=["rate", "density", "down", "across", "height", "width", "newton"])
def _solve(
    rate, density, down, across, height, width, newton, least: tl.float64, DOWN: tl.constexpr, ACROSS: tl.constexpr
):
    below = 1 + tl.arange(0, DOWN)[:, None]
    beside = 1 + tl.arange(0, ACROSS)[None, :]
    counts = (below * beside).to(tl.float64)
    shares = _shares(below, down, height) * _shares(beside, across, width)
    target = tl.log(tl.maximum(1.0 - tl.load(rate).to(tl.float64), least))
    t = target * 0.0
    for _ in range(newton):
        staying = shares * tl.exp(-counts * t)
        stay = tl.sum(staying)
        t += (tl.log(stay) - target) * stay / tl.sum(counts * staying)
    tl.store(density, tl.maximum(1.0 - tl.exp(-t), 0.0).to(tl.float32))
