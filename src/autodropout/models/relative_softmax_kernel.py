"""`relative_softmax` in Triton: a program has some rows of one head of one sample; each value is read once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES, BACKWARD_VALUES = 512, 1024  # of a program, about; it is one warp, which needs no other for its sums


def forward(content: Tensor, by_distance: Tensor, before: int) -> Tensor:
    samples, heads, length, reach = content.shape[-4:]
    content, by_distance = content.contiguous(), by_distance.contiguous()
    out = torch.empty_like(content)
    columns = triton.next_power_of_2(reach)
    rows = max(1, VALUES // columns)
    with torch.cuda.device_of(content):
        _softmax[(triton.cdiv(length, rows), content.numel() // (length * reach))](
            content, by_distance, out, samples, heads, length, reach, by_distance.shape[-1], before,
            ROWS=rows, COLUMNS=columns, num_warps=1,
        )  # fmt: skip
    return out


def backward(gradient: Tensor, probabilities: Tensor, distances: int, before: int) -> tuple[Tensor, Tensor]:
    *leading, samples, heads, length, reach = probabilities.shape
    gradient, probabilities = gradient.contiguous(), probabilities.contiguous()
    of_content = torch.empty_like(probabilities)
    of_distance = probabilities.new_empty(*leading, heads, samples * length, distances)
    columns = triton.next_power_of_2(max(reach, distances))
    rows = max(1, BACKWARD_VALUES // columns)
    with torch.cuda.device_of(probabilities):
        _softmax_backward[(triton.cdiv(length, rows), probabilities.numel() // (length * reach))](
            gradient, probabilities, of_content, of_distance, samples, heads, length, reach, distances, before,
            ROWS=rows, COLUMNS=columns, num_warps=1,
        )  # fmt: skip
    return of_content, of_distance


@triton.jit
def _by_head_first(matrix, samples, heads):
    """From the number of a matrix in (..., N, heads) to its number in (..., heads, N)."""
    child = matrix // (samples * heads)
    sample = matrix // heads - child * samples
    head = matrix % heads
    return (child * heads + head) * samples + sample


@triton.jit
def _softmax(
    content, by_distance, out, samples, heads, length, reach, distances, before,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    matrix = tl.program_id(1)
    query = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    key = tl.arange(0, COLUMNS)[None, :]
    seen = (query < length) & (key <= before + query)
    place = matrix.to(tl.int64) * length * reach + query * reach + key
    shifted = _by_head_first(matrix, samples, heads).to(tl.int64) * length * distances + query * distances
    score = tl.load(content + place, mask=seen, other=0).to(tl.float32)
    score += tl.load(by_distance + shifted + (length - query + key), mask=seen, other=0).to(tl.float32)
    highest = tl.max(tl.where(seen, score, -3.0e38), 1)[:, None]
    share = tl.where(seen, tl.exp(tl.where(seen, score - highest, 0.0)), 0.0)
    total = tl.sum(share, 1)[:, None]
    share /= tl.where(query < length, total, 1.0)
    tl.store(out + place, share.to(out.dtype.element_ty), mask=(query < length) & (key < reach))


@triton.jit
def _softmax_backward(
    gradient, probabilities, of_content, of_distance, samples, heads, length, reach, distances, before,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    matrix = tl.program_id(1)
    query = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    key = tl.arange(0, COLUMNS)[None, :]
    there = query < length
    seen = there & (key <= before + query)
    place = matrix.to(tl.int64) * length * reach + query * reach + key
    given = tl.load(gradient + place, mask=seen, other=0).to(tl.float32)
    share = tl.load(probabilities + place, mask=seen, other=0).to(tl.float32)
    found = (share * (given - tl.sum(given * share, 1)[:, None])).to(of_content.dtype.element_ty)
    tl.store(of_content + place, found, mask=there & (key < reach))
    row = of_distance + _by_head_first(matrix, samples, heads).to(tl.int64) * length * distances + query * distances
    tl.store(row + (length - query + key), found, mask=seen)
    column = key  # of a row by distance; those that belong to no key that is seen
    scored = (column >= length - query) & (column <= length + before)
    tl.store(row + column, tl.zeros_like(found), mask=there & (column < distances) & ~scored)
