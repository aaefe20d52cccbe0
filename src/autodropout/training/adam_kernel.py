"""One step of Adam for one parameter of K children, in Triton: `stacked.descend`, in one pass over memory.

Compiled by torch it would be fused as well, but for sizes it must not know (else each is compiled anew): on an H200 it
then took twice the time of its reads and writes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES = 1024  # of a program


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
