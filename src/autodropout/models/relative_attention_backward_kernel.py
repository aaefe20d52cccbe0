"""Backward of `relative_attention` in Triton: three kernels, of many small programs that wait for nobody.

1. What is the same for all keys of a query, and zeros where no score by distance is used.
2. For some keys, their gradients, summed up over the queries that see them; on the way the gradients of scores are
   written, as those by distance.
3. For some queries, their gradients, from what the second has written.

A program for all of a head needs twice the registers, so that too few run at once to hide how long each waits. A value
is written by one program of a kernel, and nobody adds to it: results are the same each time.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from autodropout.models.relative_attention_kernel import (
    LOG2_E,
    begin_of,
    constants,
    distances_of,
    load_head,
    load_parts,
    mask_or_not,
    place_of,
    store_head,
    strides_of,
    token_rows,
)  # fmt: skip

QUERIES, KEYS, WARPS, STAGES = 16, 16, 1, 1  # of a block of the second kernel; KEYS have their bits in one word
REGISTERS: int | None = 128  # of a thread, at most, so that 16 programs run at once; the compiler alone takes 168
QUERIES_AFTER, KEYS_AFTER, WARPS_AFTER, STAGES_AFTER = 16, 32, 1, 1  # of a block of the third
REGISTERS_AFTER: int | None = None  # it takes 94
CELLS, WORDS = 2048, 128  # of the gradient by distance and of bits, which the first writes at once


def backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, by_distance: Tensor, bits: Tensor | None,
    scale: Tensor | None, context: Tensor, logs: Tensor, heads: int, before: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`relative_attention.relative_attention_backward` on a GPU."""
    samples, length = query.shape[-3:-1]
    matrices, blocks = logs.numel() // length, triton.cdiv(length, QUERIES)
    of_query, of_key, of_value, of_distance = (h.new_empty(h.shape) for h in (query, key, value, by_distance))
    powers, products = logs.new_empty(2, matrices, blocks * QUERIES)
    rows = [token_rows(h) for h in (query, key, value, gradient)]
    given = constants(query, key, by_distance, heads, before, rows) | {"MASKED": bits is not None}
    parts = _parts(given["SIZE"], heads, given["UNIT"])
    assert KEYS <= 32, "their bits are in one word"
    key_blocks = triton.cdiv(key.shape[-2], KEYS)
    words = logs.new_empty(matrices, key_blocks, blocks * QUERIES, dtype=torch.int32) if bits is not None else logs
    with torch.cuda.device_of(query):
        _attend_backward_before[(matrices,)](
            rows[3], context.contiguous(), logs.contiguous(), *mask_or_not(bits, scale, logs),
            powers, products, words, of_distance, *strides_of(rows[3:]), samples,
            **given, QUERIES=QUERIES, KEYS=KEYS, CELLS=CELLS, WORDS=WORDS,
            num_warps=1, num_stages=1, maxnreg=None,
        )  # fmt: skip
        _attend_backward_keys[(matrices * key_blocks,)](
            *rows, by_distance.contiguous(), powers, products, words, of_key, of_value, of_distance,
            *strides_of(rows), samples, **(given | parts), QUERIES=QUERIES, KEYS=KEYS,
            num_warps=WARPS, num_stages=STAGES, maxnreg=REGISTERS,
        )  # fmt: skip
        _attend_backward_queries[(matrices * triton.cdiv(length, QUERIES_AFTER),)](
            rows[1], of_distance, of_query, *strides_of(rows[1:2]), samples,
            **(given | parts), QUERIES=QUERIES_AFTER, KEYS=KEYS_AFTER,
            num_warps=WARPS_AFTER, num_stages=STAGES_AFTER, maxnreg=REGISTERS_AFTER,
        )  # fmt: skip
    return of_query, of_key, of_value, of_distance


def _parts(size: int, heads: int, unit: int) -> dict[str, int]:
    """Channels of a head in two parts, where that makes fewer of them: 32 and 16, rather than 64, for 38."""
    channels, more = max(16, triton.next_power_of_2(size)), 0
    if channels >= 64 and 4 * size <= 3 * channels:
        channels, more = channels // 2, channels // 4
    return {"CHANNELS": channels, "MORE": more, "UNIT": math.gcd(unit, max(0, heads * size - channels - more))}


@triton.jit
def _attend_backward_before(
    gradient, context, logs, bits, scale, powers, products, words, of_distance, gradient_child, gradient_sample,
    samples: tl.constexpr,
    QUERY_TOKEN: tl.constexpr, KEY_TOKEN: tl.constexpr, VALUE_TOKEN: tl.constexpr, GRADIENT_TOKEN: tl.constexpr,
    HEADS: tl.constexpr, LENGTH: tl.constexpr, REACH: tl.constexpr, DISTANCES: tl.constexpr, BEFORE: tl.constexpr,
    SIZE: tl.constexpr, CHANNELS: tl.constexpr, UNIT: tl.constexpr, MASKED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CELLS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """For queries in the order of blocks, some of them in two: logarithms, products, and words of bits.

    Shares times their gradients, summed up, is context times its own: the product. The scale of a mask is put into
    both, so that the second kernel knows nothing of it: its shares are scaled, and the product is divided by the scale.
    """
    last_block: tl.constexpr = LENGTH - QUERIES if LENGTH > QUERIES else 0
    complete: tl.constexpr = LENGTH >= QUERIES
    narrow: tl.constexpr = HEADS * SIZE < CHANNELS
    blocks: tl.constexpr = (LENGTH + QUERIES - 1) // QUERIES
    matrix = tl.program_id(0)
    begin = begin_of(matrix, HEADS, SIZE, CHANNELS)
    skipped = matrix % HEADS * SIZE - begin
    gradient += place_of(matrix, samples, begin, gradient_child, gradient_sample, HEADS, UNIT)
    context += (matrix // HEADS).to(tl.int64) * (LENGTH * HEADS * SIZE) + begin
    of_distance += distances_of(matrix, samples, HEADS, LENGTH, DISTANCES)
    logs += matrix.to(tl.int64) * LENGTH
    powers += matrix.to(tl.int64) * (blocks * QUERIES)
    products += matrix.to(tl.int64) * (blocks * QUERIES)
    scaled, divided = 0.0, 1.0
    if MASKED:
        factor = tl.load(scale + matrix // (HEADS * samples))
        divisor = tl.maximum(factor, 1e-30)
        scaled = tl.where(factor > 0, tl.log2(divisor), float("-inf"))
        divided = tl.where(factor > 0, 1 / divisor, 0.0)
    for block in range(0, LENGTH, QUERIES):
        first = tl.minimum(block, last_block)
        given = load_head(
            gradient, first, skipped, GRADIENT_TOKEN, LENGTH, QUERIES, SIZE, CHANNELS, UNIT, complete, SIZE < CHANNELS
        )  # fmt: skip
        found = load_head(
            context, first, skipped, HEADS * SIZE, LENGTH, QUERIES, SIZE, CHANNELS, UNIT, complete, narrow
        )  # fmt: skip
        pairs = tl.dot(found, tl.trans(given), input_precision="ieee")  # of which the diagonal is asked for
        column = tl.arange(0, QUERIES)
        product = tl.sum(tl.where(column[:, None] == column[None, :], pairs, 0.0), 0)
        own = (column >= block - first) & (column < LENGTH - first)
        log = tl.load(logs + first + column, mask=own, other=float("inf"))
        tl.store(powers + block + column, log * LOG2_E - scaled)
        tl.store(products + block + column, tl.where(own, product * divided, 0.0))

    if MASKED:
        key_blocks: tl.constexpr = (REACH + KEYS - 1) // KEYS
        row_bytes: tl.constexpr = (REACH + 7) // 8  # a block of keys may begin within a byte
        last_keys: tl.constexpr = REACH - KEYS if REACH > KEYS else 0
        bits += matrix.to(tl.int64) * (LENGTH * row_bytes)
        words += matrix.to(tl.int64) * (key_blocks * blocks * QUERIES)
        for start in range(0, key_blocks * blocks * QUERIES, WORDS):
            word = start + tl.arange(0, WORDS)
            query = word % (blocks * QUERIES)
            token = tl.minimum(tl.minimum(query // QUERIES * QUERIES, last_block) + query % QUERIES, LENGTH - 1)
            begins = tl.minimum(word // (blocks * QUERIES) * KEYS, last_keys)
            packed = tl.zeros((WORDS,), tl.int64)
            for i in tl.static_range(KEYS // 8 + 1):
                byte = tl.minimum(begins // 8 + i, row_bytes - 1)
                packed |= tl.load(bits + token * row_bytes + byte).to(tl.int64) << (8 * i)
            packed = (packed >> (begins % 8)).to(tl.int32)
            tl.store(words + word, packed, mask=word < key_blocks * blocks * QUERIES)

    unit: tl.constexpr = 8 if DISTANCES % 8 == 0 else 1  # cells that are written at once, used ones among them
    part = tl.arange(0, CELLS // unit)
    for start in range(0, LENGTH * DISTANCES, CELLS):
        cell = start + part * unit
        column = cell % DISTANCES
        unused = (column < LENGTH - cell // DISTANCES) | (column + (unit - 1) > LENGTH + BEFORE)
        unused = (unused & (cell < LENGTH * DISTANCES))[:, None]
        zeros = tl.zeros((CELLS // unit, unit), of_distance.dtype.element_ty)
        tl.store(of_distance + start + (part[:, None] * unit + tl.arange(0, unit)[None, :]), zeros, mask=unused)


@triton.jit
def _attend_backward_keys(
    query, key, value, gradient, by_distance, powers, products, words, of_key, of_value, of_distance,
    query_child, query_sample, key_child, key_sample, value_child, value_sample, gradient_child, gradient_sample,
    samples: tl.constexpr,
    QUERY_TOKEN: tl.constexpr, KEY_TOKEN: tl.constexpr, VALUE_TOKEN: tl.constexpr, GRADIENT_TOKEN: tl.constexpr,
    HEADS: tl.constexpr, LENGTH: tl.constexpr, REACH: tl.constexpr, DISTANCES: tl.constexpr, BEFORE: tl.constexpr,
    SIZE: tl.constexpr, CHANNELS: tl.constexpr, MORE: tl.constexpr, UNIT: tl.constexpr, MASKED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Tiles are (keys, queries): so sums over queries take them as they lie.

    The last block of keys begins early as well, and leaves out keys that are another's, as the last of queries does.
    """
    last_block: tl.constexpr = LENGTH - QUERIES if LENGTH > QUERIES else 0
    last_keys: tl.constexpr = REACH - KEYS if REACH > KEYS else 0
    complete: tl.constexpr = LENGTH >= QUERIES and REACH >= KEYS
    narrow: tl.constexpr = HEADS * SIZE < CHANNELS + MORE
    key_blocks: tl.constexpr = (REACH + KEYS - 1) // KEYS
    query_blocks: tl.constexpr = (LENGTH + QUERIES - 1) // QUERIES
    matrix = tl.program_id(0) // key_blocks
    key_block = tl.program_id(0) % key_blocks * KEYS
    start = tl.minimum(key_block, last_keys)
    begin = begin_of(matrix, HEADS, SIZE, CHANNELS + MORE)
    skipped = matrix % HEADS * SIZE - begin
    query += place_of(matrix, samples, begin, query_child, query_sample, HEADS, UNIT)
    key += place_of(matrix, samples, begin, key_child, key_sample, HEADS, UNIT)
    value += place_of(matrix, samples, begin, value_child, value_sample, HEADS, UNIT)
    gradient += place_of(matrix, samples, begin, gradient_child, gradient_sample, HEADS, UNIT)
    shifted = distances_of(matrix, samples, HEADS, LENGTH, DISTANCES) + LENGTH + start
    powers += matrix.to(tl.int64) * (query_blocks * QUERIES)
    products += matrix.to(tl.int64) * (query_blocks * QUERIES)
    words += tl.program_id(0).to(tl.int64) * (query_blocks * QUERIES)
    keys, more_keys = load_parts(
        key, start, skipped, KEY_TOKEN, REACH, KEYS, SIZE, CHANNELS, MORE, UNIT, complete, SIZE < CHANNELS + MORE
    )  # fmt: skip
    values, more_values = load_parts(
        value, start, skipped, VALUE_TOKEN, REACH, KEYS, SIZE, CHANNELS, MORE, UNIT, complete, SIZE < CHANNELS + MORE
    )  # fmt: skip
    key_sum = tl.zeros((KEYS, CHANNELS), tl.float32)
    value_sum = tl.zeros((KEYS, CHANNELS), tl.float32)
    more_key_sum = tl.zeros((KEYS, MORE if MORE else CHANNELS), tl.float32)
    more_value_sum = tl.zeros((KEYS, MORE if MORE else CHANNELS), tl.float32)
    row, column = tl.arange(0, KEYS)[:, None], tl.arange(0, QUERIES)[None, :]
    at_once: tl.constexpr = 32 // KEYS if KEYS < 32 else 1  # queries that a warp reads; the others are constants apart
    place = column % at_once * (DISTANCES - 1) + row
    constant = column // at_once * (at_once * (DISTANCES - 1))
    after = tl.where(row >= key_block - start, start + row - BEFORE, LENGTH)  # the first query to see a key of its own
    for block in range(tl.maximum(start - BEFORE, 0) // QUERIES * QUERIES, LENGTH, QUERIES):
        first = tl.minimum(block, last_block)
        seen = column >= tl.maximum(after, block) - first  # of queries and keys that are no other block's
        if not complete:
            seen = seen & (row < REACH) & (column < LENGTH)
        cells = shifted + first * (DISTANCES - 1)
        score = tl.load(by_distance + cells + place + constant, mask=seen, other=float("-inf"))
        power = tl.load(powers + block + tl.arange(0, QUERIES))
        product = tl.load(products + block + tl.arange(0, QUERIES))
        if MASKED:
            packed = tl.load(words + block + tl.arange(0, QUERIES))
        asked, more_asked = load_parts(
            query, first, skipped, QUERY_TOKEN, LENGTH, QUERIES, SIZE, CHANNELS, MORE, UNIT, complete, narrow
        )  # fmt: skip
        given, more_given = load_parts(
            gradient, first, skipped, GRADIENT_TOKEN, LENGTH, QUERIES, SIZE, CHANNELS, MORE, UNIT, complete, narrow
        )  # fmt: skip
        score = tl.dot(keys, tl.trans(asked), score.to(tl.float32), input_precision="ieee")
        if MORE:
            score = tl.dot(more_keys, tl.trans(more_asked), score, input_precision="ieee")
        share = tl.exp2(score * LOG2_E - power[None, :])
        masked = share
        if MASKED:
            masked = tl.where((packed[None, :] >> row) & 1 == 0, share, 0.0)
        of_share = tl.dot(values, tl.trans(given), input_precision="ieee")
        if MORE:
            of_share = tl.dot(more_values, tl.trans(more_given), of_share, input_precision="ieee")
        of_score = (masked * of_share - share * product[None, :]).to(asked.dtype)
        masked = masked.to(given.dtype)
        value_sum = tl.dot(masked, given, value_sum, input_precision="ieee")
        key_sum = tl.dot(of_score, asked, key_sum, input_precision="ieee")
        if MORE:
            more_value_sum = tl.dot(masked, more_given, more_value_sum, input_precision="ieee")
            more_key_sum = tl.dot(of_score, more_asked, more_key_sum, input_precision="ieee")
        tl.store(of_distance + cells + place + constant, of_score, mask=seen)
    of_keys = (matrix // HEADS).to(tl.int64) * (REACH * HEADS * SIZE) + begin
    of_key += of_keys
    of_value += of_keys
    store_head(of_key, start, key_block, skipped, key_sum, REACH, KEYS, HEADS, SIZE, CHANNELS, UNIT)
    store_head(of_value, start, key_block, skipped, value_sum, REACH, KEYS, HEADS, SIZE, CHANNELS, UNIT)
    if MORE:
        of_key += CHANNELS
        of_value += CHANNELS
        skipped -= CHANNELS
        store_head(of_key, start, key_block, skipped, more_key_sum, REACH, KEYS, HEADS, SIZE, MORE, UNIT)
        store_head(of_value, start, key_block, skipped, more_value_sum, REACH, KEYS, HEADS, SIZE, MORE, UNIT)


@triton.jit
def _attend_backward_queries(
    key, of_distance, of_query, key_child, key_sample, samples: tl.constexpr,
    QUERY_TOKEN: tl.constexpr, KEY_TOKEN: tl.constexpr, VALUE_TOKEN: tl.constexpr, GRADIENT_TOKEN: tl.constexpr,
    HEADS: tl.constexpr, LENGTH: tl.constexpr, REACH: tl.constexpr, DISTANCES: tl.constexpr, BEFORE: tl.constexpr,
    SIZE: tl.constexpr, CHANNELS: tl.constexpr, MORE: tl.constexpr, UNIT: tl.constexpr, MASKED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Keys that are hidden need no comparison: where their scores would be, zeros have been written."""
    blocks: tl.constexpr = (LENGTH + QUERIES - 1) // QUERIES
    last_block: tl.constexpr = LENGTH - QUERIES if LENGTH > QUERIES else 0
    narrow: tl.constexpr = HEADS * SIZE < CHANNELS + MORE
    whole: tl.constexpr = REACH // KEYS * KEYS  # so many keys are in blocks that exist as a whole
    matrix = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks * QUERIES
    first = tl.minimum(block, last_block)
    begin = begin_of(matrix, HEADS, SIZE, CHANNELS + MORE)
    skipped = matrix % HEADS * SIZE - begin
    key += place_of(matrix, samples, begin, key_child, key_sample, HEADS, UNIT)
    of_distance += distances_of(matrix, samples, HEADS, LENGTH, DISTANCES) + LENGTH + first * (DISTANCES - 1)
    row, column = tl.arange(0, QUERIES)[:, None], tl.arange(0, KEYS)[None, :]
    total = tl.zeros((QUERIES, CHANNELS), tl.float32)
    more_total = tl.zeros((QUERIES, MORE if MORE else CHANNELS), tl.float32)
    seen = tl.minimum(BEFORE + first + QUERIES, REACH)
    for tail in tl.static_range(2):  # the last block, of which some do not exist
        last = seen if tail else tl.minimum(seen, whole)
        for start in range(whole * tail, last, KEYS):
            place = of_distance + start + (row * (DISTANCES - 1) + column)
            if tail or LENGTH < QUERIES:
                of_score = tl.load(place, mask=(column < REACH - start) & (row < LENGTH), other=0)
            else:
                of_score = tl.load(place)
            keys, more_keys = load_parts(
                key, start, skipped, KEY_TOKEN, REACH, KEYS, SIZE, CHANNELS, MORE, UNIT, not tail, narrow
            )  # fmt: skip
            total = tl.dot(of_score, keys, total, input_precision="ieee")
            if MORE:
                more_total = tl.dot(of_score, more_keys, more_total, input_precision="ieee")
    of_query += (matrix // HEADS).to(tl.int64) * (LENGTH * HEADS * SIZE) + begin
    store_head(of_query, first, block, skipped, total, LENGTH, QUERIES, HEADS, SIZE, CHANNELS, UNIT)
    if MORE:
        of_query += CHANNELS
        skipped -= CHANNELS
        store_head(of_query, first, block, skipped, more_total, LENGTH, QUERIES, HEADS, SIZE, MORE, UNIT)
