"""Independent draws in Triton: those of `patterns/bernoulli.py`, a byte each.

A lane hashes once for four draws and writes them as one word; nothing else is read or written.
"""

from collections.abc import Sequence
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from autodropout.patterns.kernels.hash import GOLDEN, mix, threshold

WORDS = 1024  # of four draws, that a program makes: eight a thread


def bernoulli(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    """Of seeds and rates of (K,), draws of (K, *shape)."""
    return _drawn(seed, rate, shape, twice=False)


def rare(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    """True where two draws both hit, the second of `~seed`, at the rates that make them as rare as a float32 says."""
    return _drawn(seed, rate, shape, twice=True)


def _drawn(seed: Tensor, rate: Tensor, shape: Sequence[int], *, twice: bool) -> Tensor:
    total, children = prod(shape), seed.numel()
    words = triton.cdiv(total, 4)
    drawn = torch.empty((*seed.shape, 4 * words), dtype=torch.bool, device=seed.device)
    if drawn.numel():
        _draw[(triton.cdiv(words, WORDS), children)](
            seed.contiguous(), rate.expand(seed.shape).contiguous(), drawn.view(torch.int32), words,
            TWICE=twice, WORDS=WORDS, num_warps=4,
        )  # fmt: skip
    return drawn[..., :total].contiguous().view((*seed.shape, *shape))  # of one child nothing is copied


@triton.jit
def _limit(rate):
    """What draws of a rate are below, read as signed numbers."""
    return ((threshold(rate) + 32768) >> 16).to(tl.int32) - 32768


@triton.jit
def _flags(four, limit):
    """Four draws of a hash as four bytes: 1 where one is below `limit`."""
    flags = (four.to(tl.int16).to(tl.int32) < limit).to(tl.int32)
    flags |= ((four >> 16).to(tl.int16).to(tl.int32) < limit).to(tl.int32) << 8
    flags |= ((four >> 32).to(tl.int16).to(tl.int32) < limit).to(tl.int32) << 16
    return flags | ((four >> 48).to(tl.int16).to(tl.int32) < limit).to(tl.int32) << 24


@triton.jit
def _two_rates(rate):
    """As `patterns/bernoulli.py` has them, and rounded as there: Triton's plain root and quotient are not exact."""
    first = tl.maximum(tl.ceil(tl.sqrt_rn(rate) * 65536.0), 1.0) * (1.0 / 65536.0)
    return first, tl.div_rn(rate, first)


@triton.jit(do_not_specialize=["seed", "rate", "words"])
def _draw(seed, rate, drawn, words, TWICE: tl.constexpr, WORDS: tl.constexpr):
    child = tl.program_id(1)
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    counter = word.to(tl.uint64) * GOLDEN
    own, first = tl.load(seed + child), tl.load(rate + child)
    if TWICE:
        first, second = _two_rates(first)
        flags = _flags(mix(mix((~own).to(tl.uint64, bitcast=True)) + counter), _limit(second))
        flags &= _flags(mix(mix(own.to(tl.uint64, bitcast=True)) + counter), _limit(first))
    else:
        flags = _flags(mix(mix(own.to(tl.uint64, bitcast=True)) + counter), _limit(first))
    tl.store(drawn + child.to(tl.int64) * words + word, flags, mask=word < words)
