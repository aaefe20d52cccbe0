"""Packed sequence masks (see `patterns/sequence.py` for what is computed, `patterns/bits.py` for the layout).

One kernel. A lane makes a unit of some neighbouring bytes of one line, that is of one token's channels; units are
counted through a child's lines one after another, so that short lines leave no lane idle.
1. How long a unit is depends on the line: long enough for what a unit takes at once to be small beside its values, and
   such that little is computed behind the line's last channel. A line of 38 channels is one unit of 5 bytes. Of a large
   tensor's long lines a lane makes several units in turn, and finds once where in its row the line is.
2. A hash of 64 bits serves four channels, and from one hash to the next the counter advances by an addition. Where
   lines are no multiple of 4 channels, a hash serves two of them: by halves where they are a multiple of 2, else by
   shifts. All in all a value takes 10 instructions of compute capability 9.0 in lines of 1024 channels, 12 in lines of
   140 or 900, 14 in lines of 38; and a program takes 270 before its first.
3. Whether a token is covered, and which run it lies in, is found for each unit, and so is where its row's runs start.
4. Shared along channels, a unit is hashed once; a pattern of size 0 hashes nothing.
"""

from collections.abc import Sequence
from math import gcd, prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from autodropout.patterns.kernels.hash import GOLDEN, mix, ones, threshold

STARTS = tl.constexpr(0x5DEECE66D)  # as in patterns/sequence.py
LANES = 128  # of a program
PROGRAMS = 1024  # about: they fill a large GPU once, and of a large tensor have enough to do to forget their beginning
OF_BYTE, OF_UNIT = 68, 130  # instructions, about, that a byte takes and that a unit takes at once


def sequence_bits(
    tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """`bits.sequence_bits` on a GPU."""
    *leading, length, channels = shape
    row_bytes = triton.cdiv(channels, 8)
    bits = torch.empty((*seed.shape, *leading, length, row_bytes), dtype=torch.uint8, device=seed.device)
    kept = torch.full(seed.shape, prod(shape), dtype=torch.int64, device=seed.device)
    if bits.numel() == 0:
        return bits, kept
    unit = unit_bytes(row_bytes)
    units = triton.cdiv(row_bytes, unit)
    lines, children = prod(leading) * length, seed.numel()
    turns = unit_turns(units, children * lines)
    units //= turns
    count = lines * units
    assert count < 2**31 - PROGRAMS * LANES, "a child of more than 2 billion units"
    tiles = triton.cdiv(count, LANES)
    steps = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // children)))
    words = unit % 4 == 0 and row_bytes % 4 == 0
    _draw[(triton.cdiv(tiles, steps), children)](
        tokens.contiguous(), rate.contiguous(), seed.contiguous(), bits.view(torch.int32) if words else bits, kept,
        stream, count, length, channels, units, steps,
        UNIT=unit, TURNS=turns, EVERY=gcd(channels, 4), WHOLE=channels % (8 * unit) == 0, WORDS=words, LANES=LANES,
        num_warps=4,
    )  # fmt: skip
    return bits, kept


def unit_bytes(row_bytes: int) -> int:
    """The length of unit by which a line takes the fewest instructions; of equal ones, the longest."""
    return min(range(8, 0, -1), key=lambda unit: triton.cdiv(row_bytes, unit) * (unit * OF_BYTE + OF_UNIT))


def unit_turns(units: int, lines: int) -> int:
    """How many units a lane makes: such that they come out even in a line, and lanes are enough for all programs."""
    return next((turns for turns in (4, 2) if units % turns == 0 and lines * units >= turns * PROGRAMS * LANES), 1)


@triton.jit
def _push(packed, draw, limit):
    """Another bit in the lowest place: the sign of a difference, which a shift takes up."""
    return (packed << 1) | ((draw.to(tl.int16).to(tl.int32) - limit).to(tl.uint32) >> 31)


@triton.jit
def _push_four(packed, four, limit):
    """The bits of four draws, of which the first comes to lie lowest."""
    packed = _push(packed, four >> 48, limit)
    packed = _push(packed, four >> 32, limit)
    packed = _push(packed, four >> 16, limit)
    return _push(packed, four, limit)


@triton.jit
def _channels(counter, skipped, limit, UNIT: tl.constexpr, EVERY: tl.constexpr):
    """Of 8 UNIT neighbouring draws, a bit for each that is below `limit`: the first 32, and the others.

    They begin behind the lowest `skipped` bits of `counter`'s hash: any multiple of 16 * EVERY.
    """
    low = tl.zeros(counter.shape, tl.uint32)
    high = tl.zeros(counter.shape, tl.uint32)
    counter += tl.full((), 2 * UNIT, tl.uint64) * GOLDEN
    following = mix(counter)
    for i in tl.static_range(2 * UNIT):  # from the last to the first
        counter -= GOLDEN
        word = mix(counter)
        four = word
        if EVERY == 2:
            four = tl.where(skipped == 0, word, (word >> 32) | (following << 32))
            following = word
        elif EVERY == 1:
            four = (word >> skipped) | (following << 1 << (63 - skipped))  # never shifted by 64, which is undefined
            following = word
        if 2 * UNIT - 1 - i < 8:
            low = _push_four(low, four, limit)
        else:
            high = _push_four(high, four, limit)
    return low, high


@triton.jit
def _lowest(room):
    """So many bits set, at most 32 and from the lowest on."""
    return ((1 << tl.minimum(tl.maximum(room, 0), 32).to(tl.uint64)) - 1).to(tl.uint32)


# Without specialization: addresses that happen to be multiples of 16 would compile a second kernel for the same shape.
@triton.jit(
    do_not_specialize=["tokens", "rate", "seed", "kept", "stream", "count", "length", "channels", "units", "steps"]
)
def _draw(
    tokens, rate, seed, bits, kept, stream: tl.int64, count, length, channels, units, steps,
    UNIT: tl.constexpr, TURNS: tl.constexpr, EVERY: tl.constexpr, WHOLE: tl.constexpr, WORDS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """A program makes `steps` times LANES times TURNS units of UNIT bytes; a line has TURNS * `units`."""
    child = tl.program_id(1)
    size = tl.load(tokens + child * 4)
    stride = tl.load(tokens + child * 4 + 1)
    share_t = tl.load(tokens + child * 4 + 2) != 0
    share_c = tl.load(tokens + child * 4 + 3) != 0
    limit = ((threshold(tl.load(rate + child)) + 32768) >> 16).to(tl.int32) - 32768  # draws are read as signed numbers
    seed = (tl.load(seed + child) ^ stream).to(tl.uint64, bitcast=True)
    key = mix(seed)
    starts = mix(seed ^ STARTS)

    period = tl.maximum(size + stride, 1)
    one_run = (stride == 0) & (size >= length)
    slots = tl.where(one_run, 1, (length + period - 1) // period + 1)
    line_slots = tl.where(share_t, slots, length)  # of draws, that a row has
    width = tl.where(share_c, 1, channels)
    row_bytes = (channels + 7) // 8
    of_child = child.to(tl.int64) * (count // units)
    dropped = tl.zeros((LANES,), tl.uint32)
    for step in range(steps):
        place = ((tl.program_id(0) * steps + step) * LANES + tl.arange(0, LANES)).to(tl.uint32)
        here = place < count.to(tl.uint32)
        line = place // units.to(tl.uint32)
        unit = (place - line * units.to(tl.uint32)).to(tl.int32)
        row = line // length.to(tl.uint32)
        token = (line - row * length.to(tl.uint32)).to(tl.int32)
        start = ((mix(starts + row.to(tl.uint64) * GOLDEN) & 0xFFFFFFFF) * period.to(tl.uint64)) >> 32
        before = tl.where(one_run, 0, period - start.to(tl.int32))  # tokens of the period that began before the row
        position = (token + before).to(tl.uint32)
        run = position // period.to(tl.uint32)
        covered = here & (position - run * period.to(tl.uint32) < size.to(tl.uint32))
        index = row.to(tl.int64) * line_slots + tl.where(share_t, run.to(tl.int32), token)
        index *= width  # of the line's first draw
        skipped = ((index & 3) * 16).to(tl.uint64)
        shared = tl.zeros((LANES,), tl.uint32)
        if share_c:
            draw = (mix(key + (index >> 2).to(tl.uint64) * GOLDEN) >> skipped).to(tl.int16)
            shared = tl.where(draw.to(tl.int32) < limit, shared - 1, shared)
        for turn in range(TURNS):
            own = unit * TURNS + turn
            low, high = shared, shared
            if (size > 0) & ~share_c:
                counter = key + ((index >> 2) + own * (2 * UNIT)).to(tl.uint64) * GOLDEN
                low, high = _channels(counter, skipped, limit, UNIT, EVERY)
            if not WHOLE or UNIT % 4 != 0:
                room = tl.minimum(channels - own * (8 * UNIT), 8 * UNIT)  # how many of its channels are there
                low &= _lowest(room)
                high &= _lowest(room - 32)
            low = tl.where(covered, low, 0)
            high = tl.where(covered, high, 0)
            dropped += ones(low)
            if UNIT > 4:
                dropped += ones(high)
            first = (of_child + line.to(tl.int64)) * row_bytes + own * UNIT
            if WORDS:
                tl.store(bits + (first >> 2), low, mask=here)
                if UNIT > 4:
                    tl.store(bits + (first >> 2) + 1, high, mask=here & (own * UNIT + 4 < row_bytes))
            else:
                for byte in tl.static_range(UNIT):
                    part = (low >> (8 * byte)) if byte < 4 else (high >> (8 * (byte - 4)))
                    tl.store(bits + first + byte, part.to(tl.uint8), mask=here & (own * UNIT + byte < row_bytes))
    total = tl.sum(dropped)
    tl.atomic_add(kept + child, -total.to(tl.int64), mask=total > 0, sem="relaxed")
