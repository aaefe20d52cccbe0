"""Packed ConvNet masks (see `patterns/conv.py` for what is computed, `patterns/bits.py` for the layout).

Two kernels. `_draw` looks at every unit, one lane each: one hash says whether the pattern hits it. Those that are hit,
a fifth at the paper's rate, it puts together, and works out the coefficients of their inverse map. `_cover` visits
these alone, one lane for eight cells: from cell to cell the mapped position advances by an addition, and to ask for
the tiling takes a product and three comparisons an axis. It is about 25 operations a cell, a unit's coefficients about
600; hence the care that nothing is computed for units that are not hit, and for no cell twice.

Sites whose maps are of one size can be drawn together, in the launches of one: a block of units then looks up which
site it belongs to. A small network has many sites, and a launch costs as much as a small mask.

Shared along channels, a pattern's units are still (sample, channel): they draw the numbers of their sample.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from autodropout.patterns.kernels.hash import GOLDEN, mix, threshold

Q = tl.constexpr(28)  # fractional bits of what is computed for a unit
ONE = tl.constexpr(1 << 28)
FRACTION = tl.constexpr(12)  # and of the inverse map's coefficients
HALF = tl.constexpr(1 << (28 - 12 - 1))  # to round from the one to the other
FIELDS = 7  # of a unit that is hit: v of its first cell, v's change along x and along y, the same of u, its first byte
TOKENS = tl.constexpr(9)  # of a pattern
LANES = 128  # threads of a program
MANY = 1 << 17  # units: from there on a program looks at several a thread
ZEROS = 2048  # bytes written at once
PROGRAMS = 4096  # of `_cover`, about: enough to fill a large GPU and level out how many units each has


def conv_bits(
    tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, shape: Sequence[int], channels_last: bool
) -> tuple[Tensor, Tensor]:
    """`bits.conv_bits` on a GPU."""
    samples, channels, height, width = shape
    bits, kept = _launch(tokens, rate, seed, stream, None, samples, [channels], height, width, channels_last)
    unit_bytes = triton.cdiv(height * width, 8)
    layout = (samples, unit_bytes, channels) if channels_last else (samples, channels, unit_bytes)
    return bits.view(layout), kept.view(())


def conv_bits_together(
    tokens: Tensor, rates: Tensor, sites: Tensor, seed: Tensor, samples: int, channels: Sequence[int],
    size: Sequence[int], channels_last: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`bits.conv_bits_together` on a GPU: as many launches as for one site."""
    return _launch(tokens, rates, seed, 0, sites, samples, channels, size[0], size[1], channels_last)


def _launch(
    tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, sites: Tensor | None, samples: int,
    channels: Sequence[int], height: int, width: int, channels_last: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    unit_bytes = triton.cdiv(height * width, 8)
    units = samples * sum(channels)
    assert units * unit_bytes < 2**31, "masks of more than 16 gigacells"
    bits = torch.empty(units * unit_bytes, dtype=torch.uint8, device=seed.device)
    kept = torch.empty(len(channels), dtype=torch.int64, device=seed.device)
    together = LANES if units <= MANY else 8 * LANES
    blocks = sum(triton.cdiv(samples * count, together) for count in channels)
    found = torch.empty((FIELDS, blocks * together), dtype=torch.int32, device=seed.device)
    counts = torch.empty((2, blocks), dtype=torch.int32, device=seed.device)
    several = {"SEVERAL": sites is not None, "LAST": channels_last, "UNITS": together}
    sites = tokens if sites is None else sites  # where there is one site it is not looked at
    _draw[(blocks,)](
        tokens, rate, sites, seed, found, counts, bits, kept, stream, samples, channels[0], height, width, unit_bytes,
        len(channels), **several, LANES=LANES, ZEROS=ZEROS, num_warps=4,
    )  # fmt: skip
    # Of a large map so many bytes at once that few lanes are idle behind the last: 56x56 cells are 392, 7 times 64.
    wide = min((LANES, LANES // 2), key=lambda lanes: triton.cdiv(unit_bytes, lanes) * lanes)
    wide = min(wide, triton.next_power_of_2(unit_bytes))
    group = LANES // wide
    splits = max(1, min(together // group, PROGRAMS // blocks))
    _cover[(blocks, splits)](
        tokens, sites, found, counts, bits, kept, channels[0], height, width, unit_bytes, splits,
        **several, GROUP=group, BYTES=wide, num_warps=4,
    )  # fmt: skip
    return bits, kept


@triton.jit
def _tiling(tokens, cells, searched_at):
    """Along one axis: size, period and extent of the tiling, in cells (`spaces.ConvPattern.cells`)."""
    size = tl.load(tokens) * (cells // 5)
    stride = tl.maximum(1, (2 * tl.load(tokens + 1) * cells + searched_at) // (2 * searched_at))
    repeat = tl.load(tokens + 2)
    return size, size + stride, repeat * size + (repeat - 1) * stride


@triton.jit
def _times(a, b):
    return (a * b) >> Q


@triton.jit
def _symmetric(draw, limit):
    """A fixed-point number, uniform in ±limit."""
    return ((2 * draw.to(tl.int64) + 1 - 4294967296) * limit.to(tl.int64)) >> 32


@triton.jit
def _site_of(block, sites, samples, count, UNITS: tl.constexpr):
    """Which site a block of units belongs to, the first block of that site, and the units of all sites before."""
    site = 0
    first_block = 0
    units_before = 0
    for other in range(count - 1):
        units = samples * tl.load(sites + 2 * other).to(tl.int32)
        blocks = (units + UNITS - 1) // UNITS
        beyond = block >= first_block + blocks
        beyond &= site == other
        site += beyond.to(tl.int32)
        first_block += tl.where(beyond, blocks, 0)
        units_before += tl.where(beyond, units, 0)
    return site, first_block, units_before


# Addresses of single numbers are not specialized: some are multiples of 16 by chance, and would compile anew.
@triton.jit(do_not_specialize=["tokens", "rate", "sites", "seed", "kept", "stream", "count"])
def _draw(
    tokens, rate, sites, seed, found, counts, bits, kept, stream: tl.int64,
    samples, channels, height, width, unit_bytes, count,
    SEVERAL: tl.constexpr, LAST: tl.constexpr, UNITS: tl.constexpr, LANES: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    block = program
    first_byte = 0
    site = 0
    if SEVERAL:
        site, first_block, units_before = _site_of(program, sites, samples, count, UNITS)
        block -= first_block
        first_byte = units_before * unit_bytes
        channels = tl.load(sites + 2 * site).to(tl.int32)
        stream = tl.load(sites + 2 * site + 1)
        tokens += site * TOKENS
        rate += site
        kept += site
    units = samples * channels
    if block == 0:
        tl.store(kept, tl.cast(units, tl.int64) * height * width)
    zeros = (units * unit_bytes + ZEROS - 1) // ZEROS
    for chunk in range(block, zeros, (units + UNITS - 1) // UNITS):
        byte = chunk * ZEROS + tl.arange(0, ZEROS)
        tl.store(bits + first_byte + byte, tl.zeros((ZEROS,), tl.uint8), mask=byte < units * unit_bytes)

    size_y, _, extent_y = _tiling(tokens, height, tl.load(tokens + 7))
    size_x, _, extent_x = _tiling(tokens, width, tl.load(tokens + 8))
    shared = tl.load(tokens + 3) != 0
    key = mix((tl.load(seed) ^ stream).to(tl.uint64, bitcast=True))
    candidate = block * UNITS + tl.arange(0, UNITS)
    drawn = mix(key + tl.where(shared, candidate // channels, candidate).to(tl.uint64) * 3 * GOLDEN)
    hit = (drawn & 0xFFFFFFFF) < threshold(tl.load(rate))
    hit &= (candidate < units) & (size_y > 0) & (size_x > 0)
    hits = tl.sum(hit.to(tl.int32), 0)
    row = programs * UNITS
    here = found + program * UNITS
    tl.store(counts + program, hits)
    tl.store(counts + programs + program, site)
    tl.store(here + tl.cumsum(hit.to(tl.int32), 0) - 1, candidate, mask=hit)
    tl.debug_barrier()  # what one thread has written others read: from here on a lane has a unit that is hit

    for start in range(0, hits, LANES):
        lane = start + tl.arange(0, LANES)
        live = lane < hits
        unit = tl.load(here + lane, mask=live, other=0)
        sample = unit // channels
        counter = tl.where(shared, sample, unit).to(tl.uint64) * 3
        first = mix(key + counter * GOLDEN)
        second = mix(key + (counter + 1) * GOLDEN)
        third = mix(key + (counter + 2) * GOLDEN)
        centre_y = ((first >> 32) * tl.cast(height, tl.uint64) >> 32).to(tl.int32)
        centre_x = ((second & 0xFFFFFFFF) * tl.cast(width, tl.uint64) >> 32).to(tl.int32)
        v_y, v_x, u_y, u_x = _inverse_map(
            _symmetric(second >> 32, tl.load(tokens + 4)),
            _symmetric(third & 0xFFFFFFFF, tl.load(tokens + 5)),
            _symmetric(third >> 32, tl.load(tokens + 6)),
        )
        offset_v = (height << FRACTION) - ((centre_y - (extent_y - 1) // 2) << (FRACTION + 1))
        offset_u = (width << FRACTION) - ((centre_x - (extent_x - 1) // 2) << (FRACTION + 1))
        # Of cell (0, 0), from the tiling's first cell.
        tl.store(here + lane, offset_v - v_y * (height - 1) - v_x * (width - 1), mask=live)
        tl.store(here + row + lane, 2 * v_x, mask=live)
        tl.store(here + 2 * row + lane, 2 * v_y, mask=live)
        tl.store(here + 3 * row + lane, offset_u - u_y * (height - 1) - u_x * (width - 1), mask=live)
        tl.store(here + 4 * row + lane, 2 * u_x, mask=live)
        tl.store(here + 5 * row + lane, 2 * u_y, mask=live)
        channel = unit - sample * channels
        address = first_byte + sample * channels * unit_bytes + (channel if LAST else channel * unit_bytes)
        tl.store(here + 6 * row + lane, address, mask=live)


@triton.jit
def _inverse_map(angle, shear_x, shear_y):
    """Coefficients of (y, x) for v and for u, as `patterns/conv.py` has them."""
    square = _times(angle, angle)
    one = tl.zeros_like(angle) + ONE
    sin = one
    cos = one
    for step in tl.static_range(4):
        k = 8 - 2 * step
        sin = one - _times(square, sin) // (k * (k + 1))
        cos = one - _times(square, cos) // (k * (k - 1))
    sin = _times(angle, sin)
    both = one + _times(shear_x, shear_y)
    v_y = _rounded(_times(-shear_y, sin) + cos)
    v_x = _rounded(_times(-shear_y, cos) - sin)
    u_y = _rounded(_times(both, sin) - _times(shear_x, cos))
    u_x = _rounded(_times(both, cos) + _times(shear_x, sin))
    return v_y, v_x, u_y, u_x


@triton.jit
def _rounded(coefficient):
    return ((coefficient + HALF) >> (Q - FRACTION)).to(tl.int32)


@triton.jit
def _inside(position, size, period, extent, inverse):
    """Whether a cell of the plane lies in a rectangle of the tiling, along one axis."""
    cell = position >> (FRACTION + 1)
    tile = ((cell.to(tl.float32) + 0.5) * inverse).to(tl.int32)  # exact for cells below 2**22
    return (cell >= 0) & (cell < extent) & (cell - tile * period < size)


@triton.jit(do_not_specialize=["tokens", "sites", "kept"])
def _cover(
    tokens, sites, found, counts, bits, kept, channels, height, width, unit_bytes, splits,
    SEVERAL: tl.constexpr, LAST: tl.constexpr, UNITS: tl.constexpr, GROUP: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    hits = tl.load(counts + block)
    first = tl.program_id(1) * GROUP
    if first < hits:
        stride = channels  # under a name of its own: an argument of 1 is a constant, which a branch cannot change
        if SEVERAL:
            site = tl.load(counts + tl.num_programs(0) + block)
            stride = tl.load(sites + 2 * site).to(tl.int32)
            tokens += site * TOKENS
            kept += site
        size_y, period_y, extent_y = _tiling(tokens, height, tl.load(tokens + 7))
        size_x, period_x, extent_x = _tiling(tokens, width, tl.load(tokens + 8))
        inverse_y = 1.0 / period_y.to(tl.float32)
        inverse_x = 1.0 / period_x.to(tl.float32)
        row = tl.num_programs(0) * UNITS
        dropped = tl.zeros((GROUP, BYTES), tl.int32)
        for chunk in range(0, unit_bytes, BYTES):
            byte = chunk + tl.arange(0, BYTES)[None, :]
            first_y = byte * 8 // width
            first_x = byte * 8 - first_y * width
            for slot in range(first, hits, splits * GROUP):
                lane = slot + tl.arange(0, GROUP)[:, None]
                live = lane < hits
                place = found + block * UNITS + lane
                v_x = tl.load(place + row, mask=live, other=0)
                v_y = tl.load(place + 2 * row, mask=live, other=0)
                u_x = tl.load(place + 4 * row, mask=live, other=0)
                u_y = tl.load(place + 5 * row, mask=live, other=0)
                v = tl.load(place, mask=live, other=0) + v_y * first_y + v_x * first_x  # (GROUP, BYTES)
                u = tl.load(place + 3 * row, mask=live, other=0) + u_y * first_y + u_x * first_x
                address = tl.load(place + 6 * row, mask=live, other=0)
                x = first_x + tl.zeros((GROUP, BYTES), tl.int32)
                packed = tl.zeros((GROUP, BYTES), tl.int32)
                for bit in tl.static_range(8):
                    covered = _inside(v, size_y, period_y, extent_y, inverse_y)
                    covered &= _inside(u, size_x, period_x, extent_x, inverse_x)
                    covered &= live & (byte * 8 + bit < height * width)
                    packed |= covered.to(tl.int32) << bit
                    dropped += covered.to(tl.int32)
                    last = x == width - 1  # in its row of the map
                    v += tl.where(last, v_y - (width - 1) * v_x, v_x)
                    u += tl.where(last, u_y - (width - 1) * u_x, u_x)
                    x = tl.where(last, 0, x + 1)
                target = bits + address + (byte * stride if LAST else byte)
                tl.store(target, packed.to(tl.uint8), mask=live & (byte < unit_bytes))
        tl.atomic_add(kept, -tl.sum(dropped).to(tl.int64), sem="relaxed")
