"""`add_rows` in Triton: a program for each word of each child. The first of its kind adds up all of them."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def add_rows(gradient: Tensor, rows: Tensor, words: Tensor) -> None:
    """See there. Rows of the gradient may lie apart: compiled code pads them."""
    children, _, channels = gradient.shape
    child, row, channel = gradient.stride()
    assert channel == 1
    count = len(words)
    with torch.cuda.device_of(gradient):
        _add_rows[(count, children)](
            gradient, rows.contiguous(), words.contiguous(), child, row, channels, count,
            COUNT=triton.next_power_of_2(count), CHANNELS=triton.next_power_of_2(channels), num_warps=4,
        )  # fmt: skip


@triton.jit
def _add_rows(
    gradient, rows, words, child_stride, row_stride, channels, count, COUNT: tl.constexpr, CHANNELS: tl.constexpr
):
    place = tl.program_id(0)
    child = tl.program_id(1).to(tl.int64)
    word = tl.load(words + place)
    other = tl.arange(0, COUNT)
    same = tl.load(words + other, mask=other < count, other=-1) == word
    if tl.min(tl.where(same, other, COUNT)) == place:
        channel = tl.arange(0, CHANNELS)
        inside = channel < channels
        row = rows + child * count * channels + channel
        own = gradient + child * child_stride + word * row_stride + channel
        total = tl.zeros((CHANNELS,), tl.float32)
        while place < COUNT:
            total += tl.load(row + place * channels, mask=inside, other=0)
            place = tl.min(tl.where(same & (other > place), other, COUNT))
        total += tl.load(own, mask=inside, other=0).to(tl.float32)
        tl.store(own, total.to(gradient.dtype.element_ty), mask=inside)
