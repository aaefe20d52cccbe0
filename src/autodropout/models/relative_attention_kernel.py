"""`relative_attention` in Triton: each score is made from its parts where it is needed, and none is kept.

A program has some queries of one head of one sample, and goes through the keys they see. What bounds it, at 70 words
and 70 of memory, are the instructions for a score rather than bytes or products. So, here and in backward,
1. blocks are small, and few scores in them hidden; a block that is seen as a whole is not compared with anything;
2. a program is one warp, which waits for no other, and whose threads have one address for all rows they read: those lie
   a constant apart, since sizes are constants of a kernel;
3. the last block of queries begins early enough for all of it to exist; it stores only what no other does.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES, KEYS, WARPS, STAGES = 16, 32, 1, 1  # of a block
REGISTERS: int | None = 128  # of a thread, at most, so that 16 programs run at once; the compiler alone takes 184
LOG2_E = tl.constexpr(1.4426950408889634)


def forward(
    query: Tensor, key: Tensor, value: Tensor, by_distance: Tensor, bits: Tensor | None, scale: Tensor | None,
    heads: int, before: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`relative_attention.relative_attention` on a GPU."""
    *leading, samples, length, _ = query.shape
    context = query.new_empty(query.shape)
    logs = query.new_empty((*leading, samples, heads, length), dtype=torch.float32)
    rows = [token_rows(h) for h in (query, key, value)]
    with torch.cuda.device_of(query):
        _attend[(triton.cdiv(length, QUERIES) * (logs.numel() // length),)](
            *rows, by_distance.contiguous(), *mask_or_not(bits, scale, logs), context, logs, *strides_of(rows), samples,
            **constants(query, key, by_distance, heads, before, rows), MASKED=bits is not None,
            QUERIES=QUERIES, KEYS=KEYS, num_warps=WARPS, num_stages=STAGES, maxnreg=REGISTERS,
        )  # fmt: skip
    return context, logs


def token_rows(h: Tensor) -> Tensor:
    """(..., N, T, C) -> (K, N, T, C), a view wherever it can be one, whose channels lie side by side."""
    rows = h.reshape(-1, *h.shape[-3:])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def strides_of(rows: list[Tensor]) -> list[int]:
    """Of children and samples, one tensor's after another's."""
    return [stride for h in rows for stride in h.stride()[:2]]


def mask_or_not(bits: Tensor | None, scale: Tensor | None, logs: Tensor) -> tuple[Tensor, Tensor]:
    """Something in their place, which is not read, where there is no mask."""
    return (logs, logs) if bits is None or scale is None else (bits.contiguous(), scale.contiguous())


def constants(
    query: Tensor, key: Tensor, by_distance: Tensor, heads: int, before: int, rows: list[Tensor]
) -> dict[str, int]:
    """The constants of a kernel. With them a thread knows how far apart its values lie, and keeps one address."""
    width = query.shape[-1]
    size = width // heads
    channels = max(16, triton.next_power_of_2(size))
    if size % 8 and width >= 64:
        channels = max(channels, 64)  # two for each thread of a warp, then: a token at a time, and one address for all
    names = ("QUERY_TOKEN", "KEY_TOKEN", "VALUE_TOKEN", "GRADIENT_TOKEN")
    return {name: h.stride(2) for name, h in zip(names, rows, strict=False)} | {
        "HEADS": heads, "LENGTH": query.shape[-2], "REACH": key.shape[-2], "DISTANCES": by_distance.shape[-1],
        "BEFORE": before, "SIZE": size, "CHANNELS": channels,
        "UNIT": math.gcd(8, size, max(0, width - channels), *strides_of(rows)),
    }  # fmt: skip


@triton.jit
def begin_of(matrix, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """The first channel that is read for a head: its own, or one of the heads before it if there are too few behind."""
    last: tl.constexpr = HEADS * SIZE - WIDTH if HEADS * SIZE > WIDTH else 0
    return tl.minimum(matrix % HEADS * SIZE, last)


@triton.jit
def place_of(matrix, samples, begin, child_stride, sample_stride, HEADS: tl.constexpr, UNIT: tl.constexpr):
    """Where the first token of a sample has channel `begin`: at a multiple of `UNIT`."""
    child = (matrix // (HEADS * samples)).to(tl.int64)
    sample = (matrix // HEADS % samples).to(tl.int64)
    return tl.multiple_of(child * child_stride + sample * sample_stride + begin, UNIT)


@triton.jit
def distances_of(matrix, samples, HEADS: tl.constexpr, LENGTH: tl.constexpr, DISTANCES: tl.constexpr):
    """Where the scores by distance of a head of a sample begin.

    The one of query t and key s is LENGTH + t * (DISTANCES - 1) + s further on (`relative_attention.aligned`).
    """
    child = matrix // (HEADS * samples)
    sample = matrix // HEADS % samples
    return ((child * HEADS + matrix % HEADS) * samples + sample).to(tl.int64) * (LENGTH * DISTANCES)


@triton.jit
def head_places(TOKEN: tl.constexpr, COUNT: tl.constexpr, CHANNELS: tl.constexpr, UNIT: tl.constexpr):
    """Where channels of tokens that lie `TOKEN` apart are: for each thread somewhere, and then constants apart.

    A warp reads some tokens at once, `UNIT` channels a thread. A compiler sees that the rest is constant if told apart.
    """
    row, channel = tl.arange(0, COUNT)[:, None], tl.arange(0, CHANNELS)[None, :]
    at_once: tl.constexpr = max(1, 32 * UNIT // CHANNELS)
    return row % at_once * TOKEN + channel, row // at_once * (at_once * TOKEN)


@triton.jit
def load_head(
    rows, first, skipped, TOKEN: tl.constexpr, TOKENS: tl.constexpr, COUNT: tl.constexpr,
    SIZE: tl.constexpr, CHANNELS: tl.constexpr, UNIT: tl.constexpr, ALL: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """(COUNT, CHANNELS): tokens from `first` on, of `TOKENS`, which lie `TOKEN` apart.

    Zeros for tokens that do not exist, unless `ALL` do; and for channels of other heads if only its `OWN` are wanted.
    To read the others is cheaper, and does no harm where a product's other factor has zeros, or it is not stored.
    """
    row, channel = tl.arange(0, COUNT)[:, None], tl.arange(0, CHANNELS)[None, :]
    place, constant = head_places(TOKEN, COUNT, CHANNELS, UNIT)
    place = rows + first * TOKEN + place + constant
    own = (channel >= skipped) & (channel < skipped + SIZE)
    if ALL and OWN:
        return tl.load(place, mask=own, other=0)
    if ALL:
        return tl.load(place)
    if OWN:
        return tl.load(place, mask=own & (row < TOKENS - first), other=0)
    return tl.load(place, mask=row < TOKENS - first, other=0)


@triton.jit
def load_parts(
    rows, first, skipped, TOKEN: tl.constexpr, TOKENS: tl.constexpr, COUNT: tl.constexpr, SIZE: tl.constexpr,
    CHANNELS: tl.constexpr, MORE: tl.constexpr, UNIT: tl.constexpr, ALL: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """`load_head` of `CHANNELS`, and of those `MORE` that come behind; if there are none, of something."""
    part = load_head(rows, first, skipped, TOKEN, TOKENS, COUNT, SIZE, CHANNELS, UNIT, ALL, OWN)
    more = part
    if MORE:
        more = load_head(
            rows + CHANNELS, first, skipped - CHANNELS, TOKEN, TOKENS, COUNT, SIZE, MORE, UNIT, ALL, OWN
        )  # fmt: skip
    return part, more


@triton.jit
def store_head(
    rows, first, block, skipped, found, TOKENS: tl.constexpr, COUNT: tl.constexpr, HEADS: tl.constexpr,
    SIZE: tl.constexpr, CHANNELS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The same way back, into rows that are contiguous; but what comes before `block` is another block's."""
    row, channel = tl.arange(0, COUNT)[:, None], tl.arange(0, CHANNELS)[None, :]
    place, constant = head_places(HEADS * SIZE, COUNT, CHANNELS, UNIT)
    own = (channel >= skipped) & (channel < skipped + SIZE) & (row >= block - first) & (row < TOKENS - first)
    tl.store(rows + first * (HEADS * SIZE) + place + constant, found.to(rows.dtype.element_ty), mask=own)


@triton.jit
def load_packed(
    bits, first, start, TOKENS: tl.constexpr, REACH: tl.constexpr, COUNT: tl.constexpr, KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """(COUNT, 1) or (COUNT, KEYS): for each query the word that has the bits of its keys, put together from bytes.

    It is read one block ahead. And were it not, the compiler would see a product of single bytes, and shuffle for it.
    """
    row_bytes: tl.constexpr = (REACH + 7) // 8
    word_bytes: tl.constexpr = 4 if KEYS > 32 else KEYS // 8
    row, word = tl.arange(0, COUNT)[:, None], tl.arange(0, KEYS // 8 // word_bytes)[None, :]
    packed = tl.zeros((COUNT, KEYS // 8 // word_bytes), tl.int32)
    if MASKED:
        for i in tl.static_range(word_bytes):
            byte = tl.minimum(start // 8 + word_bytes * word + i, row_bytes - 1)
            place = bits + first * row_bytes + byte + row * row_bytes
            part = tl.load(place) if TOKENS >= COUNT else tl.load(place, mask=row < TOKENS, other=0)
            packed |= part.to(tl.int32) << (8 * i)
    if KEYS > 32:
        packed = packed[:, :, None].broadcast_to(COUNT, KEYS // 32, 32).reshape(COUNT, KEYS)
    return packed


@triton.jit
def _attend(
    query, key, value, by_distance, bits, scale, context, logs,
    query_child, query_sample, key_child, key_sample, value_child, value_sample,
    samples: tl.constexpr,
    QUERY_TOKEN: tl.constexpr, KEY_TOKEN: tl.constexpr, VALUE_TOKEN: tl.constexpr,
    HEADS: tl.constexpr, LENGTH: tl.constexpr, REACH: tl.constexpr, DISTANCES: tl.constexpr, BEFORE: tl.constexpr,
    SIZE: tl.constexpr, CHANNELS: tl.constexpr, UNIT: tl.constexpr, MASKED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (LENGTH + QUERIES - 1) // QUERIES
    last_block: tl.constexpr = LENGTH - QUERIES if LENGTH > QUERIES else 0  # where it begins: all of it exists
    complete: tl.constexpr = LENGTH >= QUERIES
    narrow: tl.constexpr = HEADS * SIZE < CHANNELS
    matrix = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks * QUERIES
    first = tl.minimum(block, last_block)
    begin = begin_of(matrix, HEADS, SIZE, CHANNELS)
    skipped = matrix % HEADS * SIZE - begin
    query += place_of(matrix, samples, begin, query_child, query_sample, HEADS, UNIT)
    key += place_of(matrix, samples, begin, key_child, key_sample, HEADS, UNIT)
    value += place_of(matrix, samples, begin, value_child, value_sample, HEADS, UNIT)
    by_distance += distances_of(matrix, samples, HEADS, LENGTH, DISTANCES) + LENGTH
    bits += matrix.to(tl.int64) * (LENGTH * ((REACH + 7) // 8))
    asked = load_head(
        query, first, skipped, QUERY_TOKEN, LENGTH, QUERIES, SIZE, CHANNELS, UNIT, complete, SIZE < CHANNELS
    )  # fmt: skip
    row, column = tl.arange(0, QUERIES)[:, None], tl.arange(0, KEYS)[None, :]
    highest = tl.full((QUERIES,), -3.0e38, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    found = tl.zeros((QUERIES, CHANNELS), tl.float32)
    whole = (BEFORE + first + 1) // KEYS * KEYS  # so many keys are in blocks that every query sees
    for edge in tl.static_range(2):  # behind them, blocks of which some are hidden, or do not exist
        last = tl.minimum(BEFORE + first + QUERIES, REACH) if edge else whole
        packed = load_packed(bits, first, whole * edge, LENGTH, REACH, QUERIES, KEYS, MASKED)
        for start in range(whole * edge, last, KEYS):
            shifted = by_distance + (first * (DISTANCES - 1) + start) + (row * (DISTANCES - 1) + column)
            if edge or not complete:
                score = tl.load(shifted, mask=(column < REACH - start) & (row < LENGTH), other=0)
            else:
                score = tl.load(shifted)
            keys = load_head(key, start, skipped, KEY_TOKEN, REACH, KEYS, SIZE, CHANNELS, UNIT, not edge, narrow)
            score = tl.dot(asked, tl.trans(keys), score.to(tl.float32), input_precision="ieee")
            if edge:  # the first key is seen by all, so that each query has a highest score that is finite
                score = tl.where(column - row <= BEFORE + first - start, score, float("-inf"))
            summit = tl.maximum(highest, tl.max(score, 1) * LOG2_E)
            share = tl.exp2(score * LOG2_E - summit[:, None])
            earlier = tl.exp2(highest - summit)
            highest = summit
            total = total * earlier + tl.sum(share, 1)
            if MASKED:
                share = tl.where((packed >> (column & 31)) & 1 == 0, share, 0.0)
                packed = load_packed(bits, first, start + KEYS, LENGTH, REACH, QUERIES, KEYS, MASKED)
            values = load_head(value, start, skipped, VALUE_TOKEN, REACH, KEYS, SIZE, CHANNELS, UNIT, not edge, narrow)
            found = tl.dot(share.to(values.dtype), values, found * earlier[:, None], input_precision="ieee")
    factor = 1.0 / total
    if MASKED:
        factor *= tl.load(scale + matrix // (HEADS * samples))
    token = first + tl.arange(0, QUERIES)
    own = (token >= block) & (token < LENGTH)
    tl.store(logs + matrix.to(tl.int64) * LENGTH + token, (highest + tl.log2(total)) / LOG2_E, mask=own)
    context += (matrix // HEADS).to(tl.int64) * (LENGTH * HEADS * SIZE) + begin
    store_head(context, first, block, skipped, found * factor[:, None], LENGTH, QUERIES, HEADS, SIZE, CHANNELS, UNIT)
