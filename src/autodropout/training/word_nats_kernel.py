"""`word_nats` in Triton. Tensors have the words last, so that a warp reads the scores of neighbouring words.

What bounds it: in forward each score is read once, in backward read and written once, 2 bytes each in bfloat16.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WORDS = 128  # of a tile
ROWS = 8  # of the vocabulary, in forward
BACKWARD_ROWS = 16
PROGRAMS = 3000  # of forward, about
LOG2_E = tl.constexpr(1.4426950408889634)


def forward(scores: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`word_nats.word_nats` on a GPU. The vocabulary is read in several parts, whose sums are then put together."""
    *leading, vocabulary, words = scores.shape
    scores, bias = scores.contiguous(), bias.contiguous()
    children, blocks = scores.numel() // (vocabulary * words), triton.cdiv(words, WORDS)
    rows = triton.cdiv(vocabulary, max(1, min(PROGRAMS // (children * blocks), vocabulary // (16 * ROWS))))  # of a part
    parts = triton.cdiv(vocabulary, rows)
    logs = torch.empty((parts, *leading, words), dtype=torch.float32, device=scores.device)
    right = torch.empty((*leading, words), dtype=torch.float32, device=scores.device)
    with torch.cuda.device_of(scores):
        _nats[(blocks, parts, children)](
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
        _nats_backward[(triton.cdiv(vocabulary, BACKWARD_ROWS), scores.numel() // (vocabulary * words))](
            gradient.contiguous(), scores, bias, targets, logs.contiguous(), of_scores, of_bias, vocabulary, words,
            ROWS=BACKWARD_ROWS, WORDS=WORDS, num_warps=4,
        )  # fmt: skip
    return of_scores, of_bias


@triton.jit
def _scores(scores, bias, start, last, word, words, ROWS: tl.constexpr):
    """Of some rows of the vocabulary, with their bias, times log2(e); minus infinity where there is none."""
    row = start + tl.arange(0, ROWS)
    inside = (row < last)[:, None] & (word < words)[None, :]
    score = tl.load(scores + row.to(tl.int64)[:, None] * words + word[None, :], mask=inside, other=float("-inf"))
    return score.to(tl.float32) * LOG2_E + (tl.load(bias + row, mask=row < last, other=0) * LOG2_E)[:, None]


@triton.jit
def _nats(scores, bias, targets, logs, right, vocabulary, words, rows_of_part, ROWS: tl.constexpr, WORDS: tl.constexpr):
    part = tl.program_id(1)
    child = tl.program_id(2).to(tl.int64)
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    there = word < words
    scores += child * vocabulary * words
    bias += child * vocabulary
    last = tl.minimum((part + 1) * rows_of_part, vocabulary)
    highest = tl.full((ROWS, WORDS), -3.0e38, tl.float32)  # finite: the distance of two is always a number
    total = tl.zeros((ROWS, WORDS), tl.float32)
    for start in range(part * rows_of_part, last, 4 * ROWS):  # four reads under way at once, one summit for them
        score0 = _scores(scores, bias, start, last, word, words, ROWS)
        score1 = _scores(scores, bias, start + ROWS, last, word, words, ROWS)
        score2 = _scores(scores, bias, start + 2 * ROWS, last, word, words, ROWS)
        score3 = _scores(scores, bias, start + 3 * ROWS, last, word, words, ROWS)
        summit = tl.maximum(tl.maximum(score0, score1), tl.maximum(score2, score3))
        summit = tl.maximum(summit, highest)
        first_two = tl.exp2(score0 - summit) + tl.exp2(score1 - summit)
        total = total * tl.exp2(highest - summit) + (first_two + (tl.exp2(score2 - summit) + tl.exp2(score3 - summit)))
        highest = summit
    summit = tl.max(highest, 0)  # (WORDS,)
    whole = tl.sum(total * tl.exp2(highest - summit[None, :]), 0)
    place = child * words + word
    found = (tl.log2(tl.where(there, whole, 1.0)) + summit) / LOG2_E
    tl.store(logs + part * tl.num_programs(2).to(tl.int64) * words + place, found, mask=there)
    if part == 0:
        target = tl.load(targets + word, mask=there, other=0)
        score = tl.load(scores + target * words + word, mask=there, other=0).to(tl.float32)
        tl.store(right + place, score + tl.load(bias + target, mask=there, other=0), mask=there)


@triton.jit
def _nats_backward(
    gradient, scores, bias, targets, logs, of_scores, of_bias, vocabulary, words,
    ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    child = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = row < vocabulary
    own = tl.load(bias + child * vocabulary + row, mask=known, other=0)[:, None] * LOG2_E
    total = tl.zeros((ROWS, WORDS), tl.float32)
    for start in range(0, words, WORDS):
        word = start + tl.arange(0, WORDS)
        there = word < words
        inside = known[:, None] & there[None, :]
        place = (child * vocabulary + row.to(tl.int64))[:, None] * words + word[None, :]
        score = tl.load(scores + place, mask=inside, other=0).to(tl.float32) * LOG2_E
        whole = tl.load(logs + child * words + word, mask=there, other=0) * LOG2_E
        weight = tl.load(gradient + child * words + word, mask=there, other=0)  # none where there is no word
        target = tl.load(targets + word, mask=there, other=0).to(tl.int32)
        share = tl.exp2(score + (own - whole[None, :]))
        found = tl.where(row[:, None] == target[None, :], share - 1.0, share) * weight[None, :]
        tl.store(of_scores + place, found.to(of_scores.dtype.element_ty), mask=inside)
        total += found
    tl.store(of_bias + child * vocabulary + row, tl.sum(total, 1), mask=known)
