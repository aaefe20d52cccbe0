"""Rules: our two patterns, and the peers they are compared with; DropBlock is in `dropblock.py`.

Each is a frozen record called with (h, rate, seed). The rate is a 0-d tensor throughout, so that changing it never
recompiles; that is why the peers are not torchvision's or torch.nn's, whose rates are Python floats. Tests hold them
against those. Our patterns and DropBlock rescale by the realised share of kept cells, the other peers by `1 / (1 -
rate)`, as published.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from autodropout.layers.drop import PatternRule, is_channels_last, rescale, scaled
from autodropout.layers.given import need_map
from autodropout.patterns.bernoulli import bernoulli
from autodropout.patterns.bits import (
    conv_bits,
    conv_dropped,
    conv_tokens,
    put_on,
    sequence_bits,
    sequence_dropped,
    sequence_tokens,
)
from autodropout.patterns.conv import Tiling, conv_mask
from autodropout.patterns.read_back import fuses_rows
from autodropout.patterns.sequence import Runs, sequence_mask
from autodropout.patterns.switch import on_gpu
from autodropout.spaces import ConvPattern, SequencePattern


@dataclass(frozen=True)
class ConvRule(PatternRule):
    """A ConvNet pattern on (N, C, H, W) maps, moved from the map size it was searched at to whatever size it meets."""

    pattern: ConvPattern
    searched_at: tuple[int, int]

    def tiling(self, h: int, w: int) -> Tiling:
        p, cells = self.pattern, self.pattern.cells(at=(h, w), searched_at=self.searched_at)
        return Tiling(cells.size, cells.stride, p.repeat, p.share_c, p.rotate, p.shear_x, p.shear_y)

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        need_map(h, "a ConvNet pattern")
        tiling = self.tiling(h.shape[2], h.shape[3])
        if 0 in tiling.size:  # a map of less than 5 cells has no rectangle to drop
            return h
        mask, kept = conv_mask(tiling, h.shape, rate, seed, channels_last=is_channels_last(h))
        return rescale(h, mask, kept)

    def tokens(self) -> list[int]:
        return conv_tokens(self.pattern, self.searched_at)

    def bits(self, h: Tensor, tokens: Tensor, rate: Tensor, seed: Tensor, stream: int) -> tuple[Tensor, Tensor]:
        need_map(h, "a ConvNet pattern")
        made: tuple[Tensor, Tensor] = conv_bits(tokens, rate, seed, stream, h.shape, is_channels_last(h))
        return made

    def put(self, h: Tensor, bits: Tensor, kept: Tensor, site: int = 0, scale: Tensor | None = None) -> Tensor:
        last = is_channels_last(h)
        if _by_kernel(h):
            masked: Tensor = put_on(h, bits, kept, last)
            return masked
        return _rescaled(h, conv_dropped(bits, h.shape, last, site), kept, scale)


@dataclass(frozen=True)
class SequenceRule(PatternRule):
    """A Transformer pattern on (..., T, C) tensors."""

    pattern: SequencePattern

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        _need_tokens(h, "a Transformer pattern")
        p = self.pattern
        if not p.size:
            return h
        mask, kept = sequence_mask(Runs(p.size, p.stride, p.share_t, p.share_c), h.shape, rate, seed)
        return rescale(h, mask, kept)

    def tokens(self) -> list[int]:
        return sequence_tokens(self.pattern)

    def bits(self, h: Tensor, tokens: Tensor, rate: Tensor, seed: Tensor, stream: int) -> tuple[Tensor, Tensor]:
        made: tuple[Tensor, Tensor] = sequence_bits(tokens, rate, seed, stream, h.shape)
        return made

    def put(self, h: Tensor, bits: Tensor, kept: Tensor, site: int = 0, scale: Tensor | None = None) -> Tensor:
        if _by_kernel(h, fuses=fuses_rows()):
            masked: Tensor = put_on(h, bits, kept, False)
            return masked
        return _rescaled(h, sequence_dropped(bits, h.shape[-1], site), kept, scale)


@dataclass(frozen=True)
class Dropout:
    """Every value on its own (Hinton et al. 2012)."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        if is_channels_last(h):  # draw in the order of memory, so that mask and values are read side by side
            dropped = bernoulli(h.movedim(1, -1).shape, rate, seed).movedim(-1, 1)
        else:
            dropped = bernoulli(h.shape, rate, seed)
        return _inverted(h, dropped, rate)


@dataclass(frozen=True)
class SpatialDropout:
    """Whole channels of a map (Tompson et al. 2015)."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        need_map(h, "SpatialDropout")
        return _inverted(h, bernoulli((h.shape[0], h.shape[1], 1, 1), rate, seed), rate)


@dataclass(frozen=True)
class StochasticDepth:
    """The whole residual branch of a sample (Huang et al. 2016); DropPath in timm's words."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        return _inverted(h, bernoulli((h.shape[0], *[1] * (h.dim() - 1)), rate, seed), rate)


@dataclass(frozen=True)
class VariationalDropout:
    """One draw per channel for all tokens of a sequence (Gal and Ghahramani 2016)."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        _need_tokens(h, "VariationalDropout")
        return _inverted(h, bernoulli((*h.shape[:-2], 1, h.shape[-1]), rate, seed), rate)


@dataclass(frozen=True)
class WordDropout:
    """Whole tokens (Sennrich et al. 2016)."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        _need_tokens(h, "WordDropout")
        return _inverted(h, bernoulli((*h.shape[:-1], 1), rate, seed), rate)


def _inverted(h: Tensor, dropped: Tensor, rate: Tensor) -> Tensor:
    """Inverted dropout: zeros where dropped, `h / (1 - rate)` elsewhere; all zeros, not NaN, at rate 1."""
    scale = 1.0 / (1.0 - rate).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.where(dropped, 0, scaled(h, scale.where(rate < 1, 0.0)))


def _rescaled(h: Tensor, dropped: Tensor, kept: Tensor, scale: Tensor | None) -> Tensor:
    return rescale(h, ~dropped, kept) if scale is None else torch.where(dropped, 0, scaled(h, scale))


def _by_kernel(h: Tensor, *, fuses: bool = True) -> bool:
    """Compiled code puts bits on by itself, together with what stands around, where it `fuses` the two."""
    return on_gpu(h) and not (fuses and torch.compiler.is_compiling())


def _need_tokens(h: Tensor, who: str) -> None:
    if h.dim() < 2:
        raise ValueError(f"{who} needs a tensor of shape (..., T, C), got {tuple(h.shape)}")
