"""Packed sequence masks (see `patterns/sequence.py` for what is computed, `patterns/bits.py` for the layout).

One kernel. A program is one warp that walks along the tokens of one row, that is of one sample, or of one head of it. A
lane makes the bits of 32 neighbouring channels, or of 8 where lines are no multiple of 32 channels.
1. A hash of 64 bits serves four channels, and from one hash to the next the counter advances by an addition. With
   comparing, packing and counting, a value takes 10 instructions of compute capability 9.0, of which 7 are for its
   integer pipe; 17 where lanes make 8 bits, 22 where lines are no multiple of 4 and a hash serves two of them.
2. Whether a token is covered, and which run it lies in, is one division a token and lane.
3. Shared along channels, a token is hashed once a lane; a pattern of size 0 hashes nothing.
"""

from collections.abc import Sequence
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from autodropout.patterns.kernels.hash import GOLDEN, mix, ones, threshold

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
        UNIT=unit, ALIGNED=channels % 4 == 0, HIGH=high, WIDE=wide, num_warps=1,
    )  # fmt: skip
    return bits, kept


@triton.jit
def _push(packed, draw, limit):
    """Another bit in the lowest place: the sign of a difference, which a shift takes up."""
    return (packed << 1) | ((draw.to(tl.int16).to(tl.int32) - limit).to(tl.uint32) >> 31)


@triton.jit
def _channels(counter, skipped, limit, UNIT: tl.constexpr, ALIGNED: tl.constexpr):
    """Of UNIT neighbouring draws, a bit for each that is below `limit`.

    They begin behind the lowest `skipped` bits of `counter`'s hash: none where lines are ALIGNED, multiples of 4 long.
    """
    packed = tl.zeros(counter.shape, tl.uint32)
    counter += tl.full((), UNIT // 4, tl.uint64) * GOLDEN
    following = mix(counter)
    for _ in tl.static_range(UNIT // 4):  # from the last to the first
        counter -= GOLDEN
        word = mix(counter)
        four = word
        if not ALIGNED:
            four = (word >> skipped) | (following << 1 << (63 - skipped))  # never shifted by 64, which is undefined
            following = word
        packed = _push(packed, four >> 48, limit)
        packed = _push(packed, four >> 32, limit)
        packed = _push(packed, four >> 16, limit)
        packed = _push(packed, four, limit)
    return packed


# Without specialization: addresses that happen to be multiples of 16 would compile a second kernel for the same shape.
@triton.jit(do_not_specialize=["tokens", "rate", "seed", "kept", "stream", "rows", "length", "channels", "steps"])
def _draw(
    tokens, rate, seed, bits, kept, stream: tl.int64, rows, length, channels, steps,
    UNIT: tl.constexpr, ALIGNED: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A tile is HIGH tokens by WIDE units of UNIT channels; a program makes `steps` of them, one below the other."""
    child = tl.program_id(0) // rows
    row = tl.program_id(0) - child * rows
    size = tl.load(tokens + child * 4)
    stride = tl.load(tokens + child * 4 + 1)
    share_t = tl.load(tokens + child * 4 + 2) != 0
    share_c = tl.load(tokens + child * 4 + 3) != 0
    limit = ((threshold(tl.load(rate + child)) + 32768) >> 16).to(tl.int32) - 32768  # draws are read as signed numbers
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
    advance = (unit * (UNIT // 4)).to(tl.uint64) * GOLDEN
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
        counter = key + (index >> 2).to(tl.uint64) * GOLDEN
        skipped = ((index & 3) * 16).to(tl.uint64)[:, None]
        packed = tl.zeros((HIGH, WIDE), tl.uint32)
        if share_c:
            draw = (mix(counter)[:, None] >> skipped).to(tl.int16)
            packed = tl.where(draw.to(tl.int32) < limit, packed - 1, packed)
        elif size > 0:
            packed = _channels(counter[:, None] + advance[None, :], skipped, limit, UNIT, ALIGNED)
        packed = tl.where(covered[:, None], packed & inside[None, :], 0)
        dropped += ones(packed)
        tl.store(line + token[:, None] * units + unit[None, :], packed, mask=(token < length)[:, None] & (room > 0))
    count = tl.sum(dropped)
    tl.atomic_add(kept + child, -count.to(tl.int64), mask=count > 0, sem="relaxed")
