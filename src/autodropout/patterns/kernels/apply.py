"""A packed mask put on a tensor, in Triton: `h * Size / Sum`, zero where a bit is set. Backward is the same function.

A byte of the mask is read once, by the thread that has the eight values it holds: the time is that of reading and
writing `h`, plus an eighth of a byte for each value. More of them for a thread, under way at once, made nothing faster.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES = 512  # of a cell's channels or of several cells', that a program of `_apply_last` has at once, eight times
BYTES = 128  # of the mask, that a program of `_apply_rows` has: one a thread


def apply_last(h: Tensor, bits: Tensor, kept: Tensor) -> Tensor:
    """(N, C, H, W) in channels_last under bits of (N, bytes, C)."""
    samples, channels, height, width = h.shape
    out = torch.empty_like(h)
    wide = min(VALUES, triton.next_power_of_2(channels))
    high = VALUES // wide
    unit_bytes = bits.shape[1]
    _apply_last[(triton.cdiv(samples * unit_bytes, high), triton.cdiv(channels, wide))](
        h, bits, kept, out, samples * unit_bytes, unit_bytes, height * width, channels, h.numel(),
        HIGH=high, WIDE=wide, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _scale(size, kept):
    """Size / Sum in float32, correctly rounded: exactly 1 where nothing is dropped."""
    return tl.div_rn(tl.cast(size, tl.float32), tl.maximum(kept, 1).to(tl.float32))


@triton.jit
def _masked(value, bits, scale):
    """A value times `scale`, rounded once; zero, even of an infinity, where the lowest bit is set."""
    return tl.where(bits & 1 != 0, 0.0, value.to(tl.float32) * scale).to(value.dtype)


@triton.jit(do_not_specialize=["kept"])
def _apply_last(h, bits, kept, out, rows, unit_bytes, cells, channels, size, HIGH: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0) * HIGH + tl.arange(0, HIGH)[:, None]  # of (N, bytes)
    channel = tl.program_id(1) * WIDE + tl.arange(0, WIDE)[None, :]
    here = (row < rows) & (channel < channels)
    scale = _scale(size, tl.load(kept))
    byte = tl.load(bits + row.to(tl.int64) * channels + channel, mask=here, other=0)
    sample = row // unit_bytes
    cell = (row - sample * unit_bytes) * 8
    place = (sample * cells + cell).to(tl.int64) * channels + channel
    for bit in tl.static_range(0, 8, 4):  # all reads before the first write, which the compiler could not move up
        value0 = tl.load(h + place + bit * channels, mask=here & (cell + bit < cells), other=0)
        value1 = tl.load(h + place + (bit + 1) * channels, mask=here & (cell + bit + 1 < cells), other=0)
        value2 = tl.load(h + place + (bit + 2) * channels, mask=here & (cell + bit + 2 < cells), other=0)
        value3 = tl.load(h + place + (bit + 3) * channels, mask=here & (cell + bit + 3 < cells), other=0)
        start = out + place + bit * channels
        tl.store(start, _masked(value0, byte >> bit, scale), mask=here & (cell + bit < cells))
        tl.store(start + channels, _masked(value1, byte >> (bit + 1), scale), mask=here & (cell + bit + 1 < cells))
        tl.store(start + 2 * channels, _masked(value2, byte >> (bit + 2), scale), mask=here & (cell + bit + 2 < cells))
        tl.store(start + 3 * channels, _masked(value3, byte >> (bit + 3), scale), mask=here & (cell + bit + 3 < cells))


def apply_rows(h: Tensor, bits: Tensor, kept: Tensor) -> Tensor:
    """Rows of values that lie side by side under bits of (..., bytes): a sequence, or a map that is contiguous.

    `kept` counts for the whole of `h`, or is (K,), each for a K-th of it. What comes back is nobody's view: a ReLU may
    work in place on it.
    """
    row_bytes = bits.shape[-1]
    rows = bits.numel() // row_bytes
    values = h.numel() // rows
    flat = h.contiguous()
    out = torch.empty_like(flat)
    wide = min(BYTES, triton.next_power_of_2(row_bytes))
    high = BYTES // wide
    _apply_rows[(triton.cdiv(rows, high), triton.cdiv(row_bytes, wide))](
        flat, bits, kept, out, rows, rows // kept.numel(), row_bytes, values, HIGH=high, WIDE=wide, num_warps=4
    )
    return out


@triton.jit(do_not_specialize=["kept"])
def _apply_rows(h, bits, kept, out, rows, rows_of_child, row_bytes, values, HIGH: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0) * HIGH + tl.arange(0, HIGH)[:, None, None]
    byte = tl.program_id(1) * WIDE + tl.arange(0, WIDE)[None, :, None]
    here = (row < rows) & (byte < row_bytes)
    scale = _scale(
        tl.cast(rows_of_child, tl.int64) * values, tl.load(kept + row // rows_of_child, mask=row < rows, other=1)
    )
    packed = tl.load(bits + row.to(tl.int64) * row_bytes + byte, mask=here, other=0)
    bit = tl.arange(0, 8)[None, None, :]
    inside = here & (byte * 8 + bit < values)
    place = row.to(tl.int64) * values + byte * 8 + bit
    value = tl.load(h + place, mask=inside, other=0)
    tl.store(out + place, _masked(value, packed >> bit, scale), mask=inside)
