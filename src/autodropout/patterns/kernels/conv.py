"""Packed ConvNet masks (see `patterns/conv.py` for what is computed, `patterns/bits.py` for the layout).

Two kernels. `_draw` looks at every unit, one lane each: one hash says whether the pattern hits it. Those that are hit,
a fifth at the paper's rate, it puts together, and works out the coefficients of their inverse map. `_cover` visits
these alone, one lane for eight cells: from cell to cell the mapped position advances by an addition, and to ask for
the tiling takes a shift, a product and two differences an axis, whose signs are the answer. It is 18 instructions of
compute capability 9.0 a cell, 20 where rows end within bytes, and 300 a unit that is hit; hence the care that nothing
is computed for units that are not, and for no cell twice.

In channels_last the lanes of a warp are neighbouring units before they are neighbouring bytes: so their bytes lie in
memory, and a fifth of all bytes, each in a write of its own, would take as long as making them.

Sites whose maps are of one size can be drawn together, in the launches of one: a block of units then looks up which
site it belongs to. A small network has many sites, and a launch costs as much as a small mask.

Shared along channels, a pattern's units are still (sample, channel): they draw the numbers of their sample. Then all
channels of a sample are hit, or none. So that no block of units is full and the next empty, a block takes runs of
neighbouring units, far apart.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from autodropout.patterns.kernels.hash import GOLDEN, mix, ones, threshold

Q = tl.constexpr(28)  # fractional bits of what is computed for a unit
ONE = tl.constexpr(1 << 28)
FRACTION = tl.constexpr(12)  # and of the inverse map's coefficients
HALF = tl.constexpr(1 << (28 - 12 - 1))  # to round from the one to the other
FIELDS = tl.constexpr(8)  # of a unit that is hit: see `_store_four`
TOKENS = tl.constexpr(9)  # of a pattern
TILING = tl.constexpr(6)  # numbers of a site: see `_store_tiling`
LANES = 128  # threads of a program
MANY = 1 << 14  # units: from there on a program of `_draw` looks at several a thread
SEVERAL = 4  # so many: at the paper's rate the hits among them are one turn for the lanes
RUN = tl.constexpr(16)  # neighbouring units: half of the bytes that a GPU writes at once, but blocks of more even work
ZEROS = 2048  # bytes written at once
BYTES = 32  # of a unit, at most, that a program of `_cover` makes at once, of as many units as it has lanes for
PROGRAMS = 2048  # of `_cover`, about: as many as a large GPU runs at once
COVER_WARPS = 2  # for twice as many lanes as threads: what is worked out for a program serves more of them


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
    assert units * max(unit_bytes, FIELDS.value) < 2**31, "masks of more than 16 gigacells, or of 268 million units"
    bits = torch.empty(units * unit_bytes, dtype=torch.uint8, device=seed.device)
    kept = torch.empty(len(channels), dtype=torch.int64, device=seed.device)
    together = LANES if units <= MANY else SEVERAL * LANES
    blocks = sum(triton.cdiv(samples * count, together) for count in channels)
    found = torch.empty((blocks * together, FIELDS.value), dtype=torch.int32, device=seed.device)
    counts = torch.empty((2, blocks), dtype=torch.int32, device=seed.device)
    tilings = torch.empty((len(channels), TILING.value), dtype=torch.int32, device=seed.device)
    same = {"TOGETHER": sites is not None, "LAST": channels_last, "UNITS": together}
    sites = tokens if sites is None else sites  # where there is one site it is not looked at
    _draw[(blocks,)](
        tokens, rate, sites, seed, tilings, found, counts, bits, kept, stream, samples, channels[0], height, width,
        unit_bytes, len(channels), **same, LANES=LANES, ZEROS=ZEROS, num_warps=4,
    )  # fmt: skip
    wide = triton.cdiv(unit_bytes, triton.cdiv(unit_bytes, BYTES))  # the last chunk of a unit as long as the others
    group = LANES // wide
    # The work on a block is split by bytes first: all units have as many.
    chunks = min(triton.cdiv(unit_bytes, wide), max(1, PROGRAMS // blocks))
    groups = max(1, min(together // group, PROGRAMS // (blocks * chunks)))
    _cover[(blocks, groups, chunks)](
        tilings, sites, found, counts, bits, kept, channels[0], height, width, unit_bytes,
        **same, WHOLE=width % 8 == 0, LANES=LANES, GROUP=group, BYTES=wide, num_warps=COVER_WARPS,
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
def _store_tiling(place, size, period, extent):
    """What `_inside` asks for, along one axis: divisions that every program of `_cover` would have to make."""
    factor = 2147483647 // period + 1
    tl.store(place, extent)
    tl.store(place + 1, factor)
    tl.store(place + 2, size * factor)


@triton.jit
def _times(a, b):
    """The product of two fixed-point numbers below 8: of 32 bits as its factors are, it is a single multiplication."""
    return ((a.to(tl.int64) * b.to(tl.int64)) >> Q).to(tl.int32)


@triton.jit
def _symmetric(draw, limit):
    """A fixed-point number, uniform in ±limit."""
    return (((2 * draw.to(tl.int64) + 1 - 4294967296) * limit.to(tl.int64)) >> 32).to(tl.int32)


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
@triton.jit(do_not_specialize=["tokens", "rate", "sites", "seed", "tilings", "kept", "stream", "count"])
def _draw(
    tokens, rate, sites, seed, tilings, found, counts, bits, kept, stream: tl.int64,
    samples, channels, height, width, unit_bytes, count,
    TOGETHER: tl.constexpr, LAST: tl.constexpr, UNITS: tl.constexpr, LANES: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    block = program
    first_byte = 0
    site = 0
    if TOGETHER:
        site, first_block, units_before = _site_of(program, sites, samples, count, UNITS)
        block -= first_block
        first_byte = units_before * unit_bytes
        channels = tl.load(sites + 2 * site).to(tl.int32)
        stream = tl.load(sites + 2 * site + 1)
        tokens += site * TOKENS
        rate += site
        tilings += site * TILING
        kept += site
    units = samples * channels
    blocks = (units + UNITS - 1) // UNITS
    zeros = (units * unit_bytes + ZEROS - 1) // ZEROS
    for chunk in range(block, zeros, blocks):
        byte = chunk * ZEROS + tl.arange(0, ZEROS)
        tl.store(bits + first_byte + byte, tl.zeros((ZEROS,), tl.uint8), mask=byte < units * unit_bytes)

    size_y, period_y, extent_y = _tiling(tokens, height, tl.load(tokens + 7))
    size_x, period_x, extent_x = _tiling(tokens, width, tl.load(tokens + 8))
    if block == 0:
        tl.store(kept, tl.cast(units, tl.int64) * height * width)
        _store_tiling(tilings, size_y, period_y, extent_y)
        _store_tiling(tilings + 3, size_x, period_x, extent_x)
    shared = tl.load(tokens + 3) != 0
    key = mix((tl.load(seed) ^ stream).to(tl.uint64, bitcast=True))
    place = tl.arange(0, UNITS)
    candidate = (place // RUN * blocks + block) * RUN + place % RUN
    number = candidate
    if shared:  # as a branch: most patterns then save four divisions a thread
        number = candidate // channels
    drawn = mix(key + number.to(tl.uint64) * 3 * GOLDEN)
    hit = (drawn & 0xFFFFFFFF) < threshold(tl.load(rate))
    hit &= (candidate < units) & (size_y > 0) & (size_x > 0)
    hits = tl.sum(hit.to(tl.int32), 0)
    here = found + program * UNITS * FIELDS
    tl.store(counts + program, hits)
    tl.store(counts + programs + program, site)
    tl.store(here + (tl.cumsum(hit.to(tl.int32), 0) - 1) * FIELDS, candidate, mask=hit)
    tl.debug_barrier()  # what one thread has written others read: from here on a lane has a unit that is hit

    for start in range(0, hits, LANES):
        lane = start + tl.arange(0, LANES)
        live = lane < hits
        unit = tl.load(here + lane * FIELDS, mask=live, other=0)
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
        v = offset_v - v_y * (height - 1) - v_x * (width - 1)
        u = offset_u - u_y * (height - 1) - u_x * (width - 1)
        channel = unit - sample * channels
        address = first_byte + sample * channels * unit_bytes + (channel if LAST else channel * unit_bytes)
        _store_four(here + lane * FIELDS, address, v, 2 * v_x, 2 * v_y, live)
        _store_four(here + lane * FIELDS + 4, unit, u, 2 * u_x, 2 * u_y, live)


@triton.jit
def _store_four(place, a, b, c, d, live):
    """Four fields of a unit that is hit, in one write of 16 bytes.

    The first four are where its first byte lies, v of its cell (0, 0), from the tiling's first cell, and how v changes
    along x and along y; the others its number, and the same of u.
    """
    four = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (a.shape[0], 4))
    tl.store(place[:, None] + tl.arange(0, 4)[None, :], four, mask=live[:, None])


@triton.jit
def _load_four(place):
    """The same in one read."""
    four = tl.load(place[:, None] + tl.arange(0, 4)[None, :])
    even, odd = tl.split(tl.reshape(four, (place.shape[0], 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


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
    return (coefficient + HALF) >> (Q - FRACTION)


@triton.jit
def _inside(position, extent, factor, bound):
    """A number that is negative where a cell of the plane lies in a rectangle of the tiling, along one axis.

    `factor` is 2**31 / period, rounded up by e < 1. So cell * factor, modulo 2**31, is the remainder's share of 2**31
    plus cell * e. Compared with `bound`, size * factor, that is `cell % period < size` exactly: where the remainder is
    smaller, cell * e does not fill the gap as long as cell * period < 2**31; elsewhere cell * e >= size * e.
    """
    cell = (position.to(tl.uint32) >> (FRACTION + 1)).to(tl.int32)  # one before the tiling becomes one far behind it
    return (cell - extent) & ((cell * factor & 0x7FFFFFFF) - bound)


@triton.jit(do_not_specialize=["tilings", "sites", "kept"])
def _cover(
    tilings, sites, found, counts, bits, kept, channels, height, width, unit_bytes,
    TOGETHER: tl.constexpr, LAST: tl.constexpr, UNITS: tl.constexpr, WHOLE: tl.constexpr,
    LANES: tl.constexpr, GROUP: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """A tile is GROUP units by BYTES bytes of each: no more than LANES. WHOLE: no byte has cells of two rows."""
    block = tl.program_id(0)
    hits = tl.load(counts + block)
    first = tl.program_id(1) * GROUP
    if first < hits:
        stride = channels  # under a name of its own: an argument of 1 is a constant, which a branch cannot change
        if TOGETHER:
            site = tl.load(counts + tl.num_programs(0) + block)
            stride = tl.load(sites + 2 * site).to(tl.int32)
            tilings += site * TILING
            kept += site
        extent_y, factor_y, bound_y = tl.load(tilings), tl.load(tilings + 1), tl.load(tilings + 2)
        extent_x, factor_x, bound_x = tl.load(tilings + 3), tl.load(tilings + 4), tl.load(tilings + 5)
        thread = tl.arange(0, LANES)
        in_chunk = thread // GROUP if LAST else thread % BYTES
        in_group = thread % GROUP if LAST else thread // BYTES
        dropped = tl.zeros((LANES,), tl.uint32)
        for chunk in range(tl.program_id(2) * BYTES, unit_bytes, tl.num_programs(2) * BYTES):
            byte = chunk + in_chunk
            last_y = (byte * 8 + 7) // width
            last_x = byte * 8 + 7 - last_y * width
            here = (thread < GROUP * BYTES) & (byte < unit_bytes)
            room = tl.minimum(tl.maximum(height * width - byte * 8, 0), 8)  # how many of its cells are there
            there = tl.where(here, (1 << room) - 1, 0).to(tl.uint32)
            starts = tl.zeros_like(byte)  # a bit for each cell that is the first of a row
            if not WHOLE:
                x = last_x
                for bit in tl.static_range(7, -1, -1):
                    starts |= (x == 0).to(tl.int32) << bit
                    x = tl.where(x == 0, width, x) - 1
            for slot in range(first, hits, tl.num_programs(1) * GROUP):
                lane = slot + in_group
                live = lane < hits
                place = found + (block * UNITS + tl.minimum(lane, hits - 1)) * FIELDS
                address, v, v_x, v_y = _load_four(place)
                _, u, u_x, u_y = _load_four(place + 4)
                v += v_y * last_y + v_x * last_x
                u += u_y * last_y + u_x * last_x
                turn_v, turn_u = v_y - (width - 1) * v_x, u_y - (width - 1) * u_x  # from the end of a row to the next
                packed = tl.zeros_like(dropped)
                for bit in tl.static_range(7, -1, -1):  # a shift takes up the next sign from below
                    covered = _inside(v, extent_y, factor_y, bound_y) & _inside(u, extent_x, factor_x, bound_x)
                    packed = (packed << 1) | (covered.to(tl.uint32) >> 31)
                    if WHOLE:
                        v -= v_x
                        u -= u_x
                    else:
                        v -= tl.where(starts & (1 << bit) != 0, turn_v, v_x)
                        u -= tl.where(starts & (1 << bit) != 0, turn_u, u_x)
                packed = tl.where(live, packed & there, 0)
                dropped += ones(packed)
                target = bits + address + (byte * stride if LAST else byte)
                tl.store(target, packed.to(tl.uint8), mask=live & here)
        count = tl.sum(dropped.to(tl.int32))
        tl.atomic_add(kept, -count.to(tl.int64), sem="relaxed")
