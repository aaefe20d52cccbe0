"""`add_rows` in Triton: the words of a text are linked, each to its next occurrence; then a program for each word of
each child, of which the first of its kind adds up all."""

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
    words, links = words.contiguous(), torch.empty((2, count), dtype=torch.int32, device=words.device)
    with torch.cuda.device_of(gradient):
        _link[(count,)](words, links, count, COUNT=triton.next_power_of_2(count), num_warps=4)
        _add_rows[(count, children)](
            gradient, rows.contiguous(), words, links, child, row, channels, count,
            CHANNELS=triton.next_power_of_2(channels), num_warps=2,
        )  # fmt: skip


@triton.jit
def _link(words, links, count, COUNT: tl.constexpr):
    """Of each word where it occurs next, `count` where nowhere; and where it occurs first."""
    place = tl.program_id(0)
    other = tl.arange(0, COUNT)
    same = tl.load(words + other, mask=other < count, other=-1) == tl.load(words + place)
    tl.store(links + place, tl.min(tl.where(same & (other > place), other, count)))
    tl.store(links + count + place, tl.min(tl.where(same, other, count)))


@triton.jit
def _add_rows(gradient, rows, words, links, child_stride, row_stride, channels, count, CHANNELS: tl.constexpr):
    place = tl.program_id(0)
    child = tl.program_id(1).to(tl.int64)
    if tl.load(links + count + place) == place:
        channel = tl.arange(0, CHANNELS)
        inside = channel < channels
        row = rows + child * count * channels + channel
        own = gradient + child * child_stride + tl.load(words + place) * row_stride + channel
        total = tl.zeros((CHANNELS,), tl.float32)
        while place < count:
            total += tl.load(row + place * channels, mask=inside, other=0)
            place = tl.load(links + place)
        total += tl.load(own, mask=inside, other=0).to(tl.float32)
        tl.store(own, total.to(gradient.dtype.element_ty), mask=inside)
