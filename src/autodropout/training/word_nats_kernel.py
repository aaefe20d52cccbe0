"""`word_nats` in Triton. Tensors have the words last, so that a warp reads the scores of neighbouring words.

What bounds it: in forward each score is read once, in backward read and written once, 2 bytes each in bfloat16.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WORDS = 128  # of a tile
ROWS = 16  # of the vocabulary
PROGRAMS = 1500  # of forward, about


def forward(scores: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`word_nats.word_nats` on a GPU. The vocabulary is read in several parts, whose sums are then put together."""
    *leading, vocabulary, words = scores.shape
    scores, bias = scores.contiguous(), bias.contiguous()
    children, blocks = scores.numel() // (vocabulary * words), triton.cdiv(words, WORDS)
    rows = triton.cdiv(vocabulary, max(1, min(PROGRAMS // (children * blocks), vocabulary // (8 * ROWS))))  # of a part
    parts = triton.cdiv(vocabulary, rows)
    logs = torch.empty((parts, *leading, words), dtype=torch.float32, device=scores.device)
    right = torch.empty((*leading, words), dtype=torch.float32, device=scores.device)
    with torch.cuda.device_of(scores):
        _forward[(blocks, parts, children)](
            scores, bias, targets, logs, right, vocabulary, words, rows, ROWS=ROWS, WORDS=WORDS, num_warps=4
        )  # fmt: skip
    whole = logs.squeeze(0) if parts == 1 else logs.logsumexp(0)
    return whole - right, whole


def backward(gradient: Tensor, scores: Tensor, bias: Tensor, targets: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
    """`word_nats.word_nats_backward` on a GPU."""
    vocabulary, words = scores.shape[-2:]
    scores, bias = scores.contiguous(), bias.contiguous()
    of_scores, of_bias = torch.empty_like(scores), torch.empty_like(bias, dtype=torch.float32)
    with torch.cuda.device_of(scores):
        _backward[(triton.cdiv(vocabulary, ROWS), scores.numel() // (vocabulary * words))](
            gradient.contiguous(), scores, bias, targets, logs.contiguous(), of_scores, of_bias, vocabulary, words,
            ROWS=ROWS, WORDS=WORDS, num_warps=4,
        )  # fmt: skip
    return of_scores, of_bias


@triton.jit
def _forward(
    scores, bias, targets, logs, right, vocabulary, words, rows_of_part, ROWS: tl.constexpr, WORDS: tl.constexpr
):
    part = tl.program_id(1)
    child = tl.program_id(2).to(tl.int64)
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    there = word < words
    scores += child * vocabulary * words
    bias += child * vocabulary
    last = tl.minimum((part + 1) * rows_of_part, vocabulary)
    highest = tl.full((ROWS, WORDS), float("-inf"), tl.float32)
    total = tl.zeros((ROWS, WORDS), tl.float32)
    for start in range(part * rows_of_part, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & there[None, :]
        place = row.to(tl.int64)[:, None] * words + word[None, :]
        score = tl.load(scores + place, mask=inside, other=0).to(tl.float32)
        score += tl.load(bias + row, mask=row < last, other=0)[:, None]
        # One exponential a score: of its distance from the highest so far, whichever of the two is higher.
        share = tl.exp(-tl.abs(score - highest))
        above = inside & (score > highest)
        total = tl.where(above, total * share + 1.0, tl.where(inside, total + share, total))
        highest = tl.where(above, score, highest)
        # Not a number is above nothing, and must not be lost.
        total = tl.where(inside & (score != score), score, total)
    summit = tl.max(highest, 0)  # (WORDS,)
    # A lane that has read no row has a total of 0, whatever its factor; it is at least that of the lowest number.
    factor = tl.exp(tl.maximum(highest, -3.0e38) - tl.maximum(summit, -3.0e38)[None, :])
    place = child * words + word
    found = tl.log(tl.where(there, tl.sum(total * factor, 0), 1.0)) + summit
    tl.store(logs + part * tl.num_programs(2).to(tl.int64) * words + place, found, mask=there)
    if part == 0:
        target = tl.load(targets + word, mask=there, other=0)
        score = tl.load(scores + target * words + word, mask=there, other=0).to(tl.float32)
        tl.store(right + place, score + tl.load(bias + target, mask=there, other=0), mask=there)


@triton.jit
def _backward(
    gradient, scores, bias, targets, logs, of_scores, of_bias, vocabulary, words,
    ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    child = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = row < vocabulary
    own = tl.load(bias + child * vocabulary + row, mask=known, other=0)[:, None]
    total = tl.zeros((ROWS, WORDS), tl.float32)
    for start in range(0, words, WORDS):
        word = start + tl.arange(0, WORDS)
        there = word < words
        inside = known[:, None] & there[None, :]
        place = (child * vocabulary + row.to(tl.int64))[:, None] * words + word[None, :]
        score = tl.load(scores + place, mask=inside, other=0).to(tl.float32) + own
        whole = tl.load(logs + child * words + word, mask=there, other=0)
        weight = tl.load(gradient + child * words + word, mask=there, other=0)
        target = tl.load(targets + word, mask=there, other=-1)
        share = tl.exp(tl.where(inside, score - whole[None, :], 0.0))
        found = (share - (row[:, None] == target[None, :]).to(tl.float32)) * weight[None, :]
        tl.store(of_scores + place, found.to(of_scores.dtype.element_ty), mask=inside)
        total += tl.where(inside, found, 0.0)
    tl.store(of_bias + child * vocabulary + row, tl.sum(total, 1), mask=known)
