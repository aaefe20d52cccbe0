"""Rules: our two patterns, and the peers they are compared with.

Each is a frozen record called with (h, rate, seed). The rate is a 0-d tensor throughout, so that changing it never
recompiles; that is why the peers are not torchvision's or torch.nn's, whose rates are Python floats. Tests hold them
against those. Our patterns and DropBlock rescale by the realised share of kept cells, the other peers by `1 / (1 -
rate)`, as published.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from autodropout.layers.drop import PatternRule, is_channels_last, rescale, scaled
from autodropout.layers.given import is_whole, told
from autodropout.patterns.bits import (
    conv_bits,
    conv_dropped,
    conv_tokens,
    on_gpu,
    put_on,
    sequence_bits,
    sequence_dropped,
    sequence_tokens,
)
from autodropout.patterns.caching import cache_on_cpu
from autodropout.patterns.conv import Tiling, conv_mask
from autodropout.patterns.read_back import fuses_rows
from autodropout.patterns.sequence import Runs, bernoulli, sequence_mask
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
        _need_map(h, "a ConvNet pattern")
        tiling = self.tiling(h.shape[2], h.shape[3])
        if 0 in tiling.size:  # a map of less than 5 cells has no rectangle to drop
            return h
        mask, kept = conv_mask(tiling, h.shape, rate, seed, channels_last=is_channels_last(h))
        return rescale(h, mask, kept)

    def tokens(self) -> list[int]:
        return conv_tokens(self.pattern, self.searched_at)

    def bits(self, h: Tensor, tokens: Tensor, rate: Tensor, seed: Tensor, stream: int) -> tuple[Tensor, Tensor]:
        _need_map(h, "a ConvNet pattern")
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
        _need_map(h, "SpatialDropout")
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


@dataclass(frozen=True)
class DropBlock:
    """Square blocks (Ghiasi et al. 2018), in each channel on its own.

    Departures: blocks of any size, cut to the map where they are larger; and the density of blocks solves for the
    share of cells dropped exactly, blocks overlapping or not, so that `rate` means the same on 7x7 as on 56x56.
    """

    block: int = 7

    def __post_init__(self) -> None:
        if not is_whole(self.block):
            raise TypeError(f"DropBlock's block must be a whole number of cells, got {told(self.block)}")
        if self.block < 1:
            raise ValueError(f"DropBlock's block must be at least 1 cell, got {self.block}")

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        _need_map(h, "DropBlock")
        n, c, height, width = h.shape
        rows, columns = min(self.block, height), min(self.block, width)
        density = _block_density(height, width, rows, columns, rate)
        shape, (first, second) = (n, c, height - rows + 1, width - columns + 1), _two_rates(density)
        corners = bernoulli(shape, first, seed) & bernoulli(shape, second, ~seed)
        spread = F.pad(corners.to(torch.float32), (columns - 1, columns - 1, rows - 1, rows - 1))
        mask = F.max_pool2d(spread, (rows, columns), stride=1) == 0  # (N, C, H, W)
        if is_channels_last(h):
            mask = mask.contiguous(memory_format=torch.channels_last)
        return rescale(h, mask, mask.count_nonzero())


def _two_rates(density: Tensor) -> tuple[Tensor, Tensor]:
    """Rates of two draws that both hit as often as one of `density` would.

    Draws have 16 bits, and a block's corner is 49 times as rare as what it drops: in one draw a rate of 0.002 would be
    8% off, and a tenth of it none at all.
    """
    first = (density.sqrt() * 2**16).ceil().clamp(min=1) / 2**16  # exactly what a draw can have
    return first, density / first


@torch.library.custom_op("autodropout::block_density", mutates_args=())  # keeps the table out of compiled graphs
def _block_density(height: int, width: int, rows: int, columns: int, rate: Tensor) -> Tensor:
    """The probability of a block's corner that makes the expected share of covered cells `rate`."""
    shares, densities = _density_table(height, width, rows, columns, rate.device)
    above = torch.searchsorted(shares, rate.double().view(1)).clamp(1, len(shares) - 1)
    low, high = shares[above - 1], shares[above]
    part = (rate - low) / (high - low)
    return torch.lerp(densities[above - 1], densities[above], part).squeeze().float()


@_block_density.register_fake
def _(height: int, width: int, rows: int, columns: int, rate: Tensor) -> Tensor:
    return torch.empty_like(rate)


@cache_on_cpu
def _density_table(height: int, width: int, rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Expected share of covered cells against density, finely enough to interpolate.

    A cell that k corners could cover stays uncovered with probability (1 - density)**k.
    """

    def covering(cells: int, block: int) -> tuple[Tensor, Tensor]:
        """Along one axis: 1, 2, ..., and the share of cells that so many places of a block cover."""
        place = torch.arange(cells, device=device)
        places = place.clamp(max=cells - block) - (place - block + 1).clamp(min=0) + 1  # (cells,)
        counts = torch.arange(1, block + 1, device=device)
        return counts.double(), (places[:, None] == counts).double().mean(0)

    (down, down_share), (across, across_share) = covering(height, rows), covering(width, columns)
    corners = torch.outer(down, across).flatten()  # how many corners could cover a cell
    cells = torch.outer(down_share, across_share).flatten()  # the share of cells of which that is true
    steps = torch.logspace(-7, math.log10(40), 2048, dtype=torch.float64, device=device)
    steps = F.pad(steps, (1, 0))
    shares = -torch.expm1(-torch.outer(steps, corners)) @ cells
    densities = -torch.expm1(-steps)
    for column in (shares, densities):
        column[-1:].fill_(1.0)  # an assignment would copy from the host, which a CUDA graph cannot capture
    return shares, densities


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


def _need_map(h: Tensor, who: str) -> None:
    if h.dim() != 4:
        raise ValueError(f"{who} needs a tensor of shape (N, C, H, W), got {tuple(h.shape)}")
