"""Adam for K children in Triton: norms of their gradients, and the step of a parameter, each in one pass over memory.

Compiled by torch, `stacked.descend` would be fused as well, but for sizes it must not know (else each is compiled
anew): on an H200 it then took twice the time of its reads and writes. torch's own norms of a few long rows leave most
of a GPU idle.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES = 1024  # of a program at once
TURNS = 8  # of one that adds up squares


def norms(gradients: Sequence[Tensor]) -> Tensor:
    """Of all gradients together, for each child: tensors of (K, size), contiguous -> (K,), float32."""
    counts = [triton.cdiv(gradient.shape[1], TURNS * VALUES) for gradient in gradients]
    sums = torch.empty((len(gradients[0]), sum(counts)), dtype=torch.float32, device=gradients[0].device)
    with torch.cuda.device_of(sums):
        for gradient, count, part in zip(gradients, counts, sums.split(counts, 1), strict=True):
            _squares[(count, len(gradient))](
                gradient, part, gradient.shape[1], sums.shape[1], TURNS=TURNS, VALUES=VALUES, num_warps=4
            )
        found = torch.empty_like(sums[:, 0])
        _root[(len(sums),)](sums, found, sums.shape[1], VALUES=VALUES, num_warps=4)
    return found


@triton.jit
def _squares(gradient, sums, size, row, TURNS: tl.constexpr, VALUES: tl.constexpr):
    child = tl.program_id(1)
    total = tl.zeros((VALUES,), tl.float32)
    for turn in tl.static_range(TURNS):
        value = (tl.program_id(0) * TURNS + turn) * VALUES + tl.arange(0, VALUES)
        place = gradient + tl.cast(child, tl.int64) * size + value
        found = tl.load(place, mask=value < size, other=0).to(tl.float32)
        total += found * found
    tl.store(sums + child * row + tl.program_id(0), tl.sum(total))


@triton.jit
def _root(sums, found, row, VALUES: tl.constexpr):
    """Of a row's sum, which is the same in every slot: that of torch is rounded otherwise in some."""
    child = tl.program_id(0)
    total = tl.zeros((VALUES,), tl.float32)
    for start in range(0, row, VALUES):
        part = start + tl.arange(0, VALUES)
        total += tl.load(sums + child * row + part, mask=part < row, other=0)
    tl.store(found + child, tl.sqrt(tl.sum(total)))


def descend(
    weight: Tensor, copy: Tensor | None, first: Tensor, second: Tensor, gradient: Tensor, goes: Tensor, factor: Tensor,
    pace: Tensor, root: Tensor, betas: tuple[float, float], epsilon: float,
) -> None:  # fmt: skip
    """Tensors of (K, size), contiguous, and of (K, 1): see there."""
    children, size = weight.shape
    assert all(state is None or state.is_contiguous() for state in (weight, copy, first, second, gradient))
    with torch.cuda.device_of(weight):
        _descend[(triton.cdiv(size, VALUES), children)](
            weight, weight if copy is None else copy, first, second, gradient, goes.view(torch.uint8), factor, pace,
            root, size, COPIES=copy is not None, BETA1=betas[0], BETA2=betas[1], EPSILON=epsilon, VALUES=VALUES,
            num_warps=4,
        )  # fmt: skip


@triton.jit
def _descend(
    weight, copy, first, second, gradient, goes, factor, pace, root, size,
    COPIES: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    child = tl.program_id(1)
    if tl.load(goes + child) != 0:
        value = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
        inside = value < size
        place = tl.cast(child, tl.int64) * size + value
        clipped = tl.load(gradient + place, mask=inside).to(tl.float32) * tl.load(factor + child)
        mean = tl.load(first + place, mask=inside)
        mean += (clipped - mean) * (1.0 - BETA1)
        square = tl.load(second + place, mask=inside) * BETA2 + (1.0 - BETA2) * clipped * clipped
        step = tl.load(pace + child) * mean / (tl.sqrt(square) / tl.load(root + child) + EPSILON)
        new = tl.load(weight + place, mask=inside) - step
        tl.store(first + place, mean, mask=inside)
        tl.store(second + place, square, mask=inside)
        tl.store(weight + place, new, mask=inside)
        if COPIES:
            tl.store(copy + place, new.to(copy.dtype.element_ty), mask=inside)
