"""Transformer masks: runs of tokens (paper: "Search Space for Dropout Patterns in Transformers", appendix B).

A tensor is (..., T, C): (N, T, C) outside attention, (N, heads, T, C) inside, (N, heads, T, S) for probabilities,
where S plays C. Every leading index draws a start of its own. Runs of `size` covered tokens follow each other,
`stride` tokens apart:

    token t is covered when (t - start) mod (size + stride) < size

Covered positions drop with probability `rate`, one draw per (token, channel); per run when `share_t`, for all
channels when `share_c`. With `stride = 0` and `size >= T` there is one run from 0: Dropout, Word Dropout (`share_c`),
Variational (`share_t`).

A draw has 16 bits, a hash serves four: a rate is rounded to a multiple of 2**-16. Values are many, and where a mask has
to be made in the time that nn.Dropout takes for its own, hashing is most of the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from autodropout.patterns.draws import GOLDEN, below, mix, threshold, words
from autodropout.patterns.stacking import stacked


@dataclass(frozen=True)
class Runs:
    """The geometry of a sequence pattern, in tokens."""

    size: int
    stride: int
    share_t: bool = False
    share_c: bool = False

    def draws_start(self, length: int) -> bool:
        """Whether the start is random: with one run over the whole sequence it is not."""
        return self.stride > 0 or self.size < length

    def slots(self, length: int) -> int:
        """How many runs a sequence can meet, counted from the one a random start may leave before it."""
        return -(-length // (self.size + self.stride)) + 1 if self.draws_start(length) else 1


def sequence_mask(runs: Runs, shape: Sequence[int], rate: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """The mask of a pattern on a (..., T, C) tensor: True where a value is kept; and how many of its values it keeps.

    `rate` and `seed` as in `conv_mask`. The mask broadcasts against `shape`: its last axis is 1 when shared along
    channels.
    """
    mask, kept = torch.ops.autodropout.sequence_mask(
        seed, rate, list(shape), runs.size, runs.stride, runs.share_t, runs.share_c
    )
    return mask, kept


def bernoulli(shape: Sequence[int], rate: Tensor, seed: Tensor) -> Tensor:
    """Independent draws, True with probability `rate` to within 2**-17; element number i is a function of (seed, i)."""
    drawn: Tensor = torch.ops.autodropout.bernoulli(seed, rate, list(shape))
    return drawn


@torch.library.custom_op("autodropout::sequence_mask", mutates_args=())
def _sequence_mask(
    seed: Tensor, rate: Tensor, shape: Sequence[int], size: int, stride: int, share_t: bool, share_c: bool
) -> tuple[Tensor, Tensor]:
    *leading, length, channels = shape
    runs = Runs(size, stride, share_t, share_c)
    rows, width = prod(leading), 1 if share_c else channels
    covered, run = _cover(runs, rows, length, seed)  # (rows, T), (rows, T)
    if share_t:
        per_run = draw(seed, rate, (rows, runs.slots(length), width))
        drawn = per_run[torch.arange(rows, device=seed.device)[:, None], run]
    else:
        drawn = draw(seed, rate, (rows, length, width))
    dropped = drawn.logical_and_(covered[:, :, None])  # (rows, T, C or 1)
    kept = prod(shape) - dropped.count_nonzero() * (channels if share_c else 1)
    return dropped.logical_not_().view(*leading, length, width), kept


@_sequence_mask.register_fake
def _(
    seed: Tensor, rate: Tensor, shape: Sequence[int], size: int, stride: int, share_t: bool, share_c: bool
) -> tuple[Tensor, Tensor]:
    mask = torch.empty((*shape[:-1], 1 if share_c else shape[-1]), dtype=torch.bool, device=seed.device)
    return mask, torch.empty_like(seed)


def _cover(runs: Runs, rows: int, length: int, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens each row covers, and which run each token belongs to, counted from 0: two (rows, T) tensors."""
    period = runs.size + runs.stride
    token = torch.arange(length, device=seed.device)
    if not runs.draws_start(length):
        return torch.ones((rows, length), dtype=torch.bool, device=seed.device), torch.zeros_like(token).expand(
            rows, -1
        )
    start = below(words(seed ^ _STARTS, torch.arange(rows, device=seed.device), 1), period)  # (rows, 1)
    position = token - start + period  # of which the first period is the run that began before the sequence
    return position % period < runs.size, position // period


@torch.library.custom_op("autodropout::bernoulli", mutates_args=())
def draw(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    """`bernoulli`, as an operator of its own for the reasons given in conv.py.

    Seeds and rates of (K,), those of children side by side, give draws of (K, *shape).
    """
    total = prod(shape)
    key = mix(seed)[..., None]  # (..., 1), as the limit
    # A draw is read as a signed number, and the limit may be one more than the largest of them.
    limit = (((threshold(rate) + 2**15) >> 16) - 2**15).int()[..., None]
    drawn = torch.empty((*seed.shape, (total + 3) // 4 * 4), dtype=torch.bool, device=seed.device)
    # On a CPU in chunks, so that the passes of the hash stay within the cache.
    chunk = _CHUNK if seed.device.type == "cpu" else max(1, drawn.shape[-1])
    for first in range(0, drawn.shape[-1], chunk):
        last = min(first + chunk, drawn.shape[-1])
        counters = torch.arange(first // 4, last // 4, device=seed.device)
        torch.lt(mix(counters.mul_(GOLDEN).add(key)).view(torch.int16), limit, out=drawn[..., first:last])
    return drawn[..., :total].reshape(*seed.shape, *shape)


@draw.register_fake
def _(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty((*seed.shape, *shape), dtype=torch.bool, device=seed.device)


@draw.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], seed: Tensor, rate: Tensor, shape: Sequence[int]
) -> tuple[Tensor, int]:
    tensors = zip((seed, rate), in_dims[:2], strict=True)
    return draw(*(stacked(value, dim, info.batch_size) for value, dim in tensors), shape), 0


_STARTS = 0x5DEECE66D  # sets the starts' stream apart from the drops'
_CHUNK = 1 << 18  # draws: enough to be worth two threads, few enough for the cache
