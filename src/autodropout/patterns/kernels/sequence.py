"""Packed sequence masks (see `patterns/sequence.py` for what is computed, `patterns/bits.py` for the layout).

One kernel. A program is one warp that walks along the tokens of one row, that is of one sample, or of one head of it. A
lane makes the bits of 32 neighbouring channels, or of 8 where lines are no multiple of 32 channels.
1. A hash of 64 bits serves two channels, and from one hash to the next the counter advances by an addition. With
   comparing, packing and counting, a value takes 15 instructions of compute capability 9.0, of which 10 are for its
   integer pipe; 19 where lanes make 8 bits, 23 where lines are odd and pairs of draws straddle them.
2. Whether a token is covered, and which run it lies in, is one division a token and lane.
3. Shared along channels, a token is hashed once a lane; a pattern of size 0 hashes nothing.
"""

from collections.abc import Sequence
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from autodropout.patterns.kernels.hash import GOLDEN, mix, threshold

STARTS = tl.constexpr(0x5DEECE66D)  # as in patterns/sequence.py
VALUES = 1024  # of a program, at once: 32 to a lane
PROGRAMS = 4096  # about: they fill a large GPU once, and of a large tensor have enough to do to forget their beginning


def sequence_bits(
    tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """`bits.sequence_bits` on a GPU."""
    *leading, length, channels = shape
    row_bytes = triton.cdiv(channels, 8)
    assert length * row_bytes < 2**31, "a row of more than 16 gigavalues"
    assert prod(leading) * length < 2**31, "a child of more than 2 billion tokens"
    bits = torch.empty((*seed.shape, *leading, length, row_bytes), dtype=torch.uint8, device=seed.device)
    kept = torch.full(seed.shape, prod(shape), dtype=torch.int64, device=seed.device)
    if bits.numel() == 0:
        return bits, kept
    unit = 32 if channels % 32 == 0 else 8
    units = triton.cdiv(channels, unit)
    # Of the widths whose memory traffic is good, the one that leaves the fewest lanes idle behind the last channel.
    wide = min((32, 16, 8), key=lambda w: triton.cdiv(units, w) * w) if units > 8 else triton.next_power_of_2(units)
    high = VALUES // unit // wide
    rows, blocks, tiles = seed.numel() * prod(leading), triton.cdiv(units, wide), triton.cdiv(length, high)
    steps = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // (rows * blocks))))
    _draw[(rows, triton.cdiv(tiles, steps), blocks)](
        tokens.contiguous(), rate.contiguous(), seed.contiguous(),
        bits.view(torch.int32) if unit == 32 else bits, kept, stream, prod(leading), length, channels, steps,
        UNIT=unit, ODD=channels % 2 == 1, HIGH=high, WIDE=wide, num_warps=1,
    )  # fmt: skip
    return bits, kept


@triton.jit
def _ones(word):
    """How many bits of a uint32 are set; the compiler knows this form, and makes one instruction of it."""
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return (((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24


@triton.jit
def _channels(counter, odd, last, UNIT: tl.constexpr, ODD: tl.constexpr):
    """Of UNIT neighbouring draws, a bit for each that is at most `last`.

    The first is the low half of `counter`'s hash; the high half where `odd`, as in every second line of odd length.
    """
    packed = tl.zeros(counter.shape, tl.uint32)
    word = mix(counter)
    for pair in tl.static_range(UNIT // 2):
        first, second = word, word >> 32
        counter += GOLDEN
        word = mix(counter)
        if ODD:
            first, second = tl.where(odd, second, first), tl.where(odd, word, second)
        packed |= (first.to(tl.int32) <= last).to(tl.uint32) << (2 * pair)
        packed |= (second.to(tl.int32) <= last).to(tl.uint32) << (2 * pair + 1)
    return packed


# Without specialization: addresses that happen to be multiples of 16 would compile a second kernel for the same shape.
@triton.jit(do_not_specialize=["tokens", "rate", "seed", "kept", "stream", "rows", "length", "channels", "steps"])
def _draw(
    tokens, rate, seed, bits, kept, stream: tl.int64, rows, length, channels, steps,
    UNIT: tl.constexpr, ODD: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A tile is HIGH tokens by WIDE units of UNIT channels; a program makes `steps` of them, one below the other."""
    child = tl.program_id(0) // rows
    row = tl.program_id(0) - child * rows
    size = tl.load(tokens + child * 4)
    stride = tl.load(tokens + child * 4 + 1)
    share_t = tl.load(tokens + child * 4 + 2) != 0
    share_c = tl.load(tokens + child * 4 + 3) != 0
    limit = threshold(tl.load(rate + child)).to(tl.int64)
    size = tl.where(limit > 0, size, 0)
    last = (limit - 2147483649).to(tl.int32)  # draws are read as signed numbers; this one is the last to be dropped
    seed = (tl.load(seed + child) ^ stream).to(tl.uint64, bitcast=True)
    key = mix(seed)

    period = tl.maximum(size + stride, 1)
    one_run = (stride == 0) & (size >= length)
    start = ((mix(mix(seed ^ STARTS) + row.to(tl.uint64) * GOLDEN) & 0xFFFFFFFF) * period.to(tl.uint64)) >> 32
    before = tl.where(one_run, 0, period - start.to(tl.int32))  # tokens of the period that began before the sequence
    slots = tl.where(one_run, 1, (length + period - 1) // period + 1)
    place = row.to(tl.int64) * tl.where(share_t, slots, length)
    width = tl.where(share_c, 1, channels)

    unit = tl.program_id(2) * WIDE + tl.arange(0, WIDE)  # (WIDE,)
    advance = (unit * (UNIT // 2)).to(tl.uint64) * GOLDEN
    room = tl.minimum(tl.maximum(channels - unit * UNIT, 0), UNIT)  # how many of its channels are there
    inside = ((1 << room.to(tl.uint64)) - 1).to(tl.uint32)
    units = (channels + UNIT - 1) // UNIT
    line = bits + tl.program_id(0).to(tl.int64) * length * units
    dropped = tl.zeros((HIGH, WIDE), tl.uint32)
    for step in range(steps):
        token = (tl.program_id(1) * steps + step) * HIGH + tl.arange(0, HIGH)  # (HIGH,)
        position = (token + before).to(tl.uint32)
        run = position // period.to(tl.uint32)
        covered = (position - run * period.to(tl.uint32) < size.to(tl.uint32)) & (token < length)
        index = (place + tl.where(share_t, run.to(tl.int32), token)) * width  # of the line's first draw
        counter = key + (index >> 1).to(tl.uint64) * GOLDEN
        odd = (index & 1 != 0)[:, None]
        packed = tl.zeros((HIGH, WIDE), tl.uint32)
        if share_c:
            word = mix(counter)[:, None]
            half = tl.where(odd, word >> 32, word).to(tl.int32)
            packed = tl.where(half <= last, packed - 1, packed)
        elif size > 0:
            packed = _channels(counter[:, None] + advance[None, :], odd, last, UNIT, ODD)
        packed = tl.where(covered[:, None], packed & inside[None, :], 0)
        dropped += _ones(packed)
        tl.store(line + token[:, None] * units + unit[None, :], packed, mask=(token < length)[:, None] & (room > 0))
    count = tl.sum(dropped)
    tl.atomic_add(kept + child, -count.to(tl.int64), mask=count > 0, sem="relaxed")
