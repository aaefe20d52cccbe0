"""Transformer masks: runs of tokens (paper: "Search Space for Dropout Patterns in Transformers", appendix B).

A tensor is (..., T, C): (N, T, C) outside attention, (N, heads, T, C) inside, (N, heads, T, S) for probabilities,
where S plays C. Every leading index draws a start of its own. Runs of `size` covered tokens follow each other,
`stride` tokens apart:

    token t is covered when (t - start) mod (size + stride) < size

Covered positions drop with probability `rate`, one draw per (token, channel); per run when `share_t`, for all
channels when `share_c`. With `stride = 0` and `size >= T` there is one run from 0: Dropout, Word Dropout (`share_c`),
Variational (`share_t`).

Draws are those of `bernoulli.py`: a rate is rounded to a multiple of 2**-16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from autodropout.patterns.bernoulli import draw
from autodropout.patterns.draws import below, words


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


_STARTS = 0x5DEECE66D  # sets the starts' stream apart from the drops'
