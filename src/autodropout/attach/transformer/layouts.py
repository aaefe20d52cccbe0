"""How a tensor of a model is shown to a drop: always (N, T, C), or (N, heads, T, D) inside attention.

A layout is applied as `layout.apply(drop, h)`: view `h` as the drop wants it, drop, and give back the shape it had.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from autodropout.layers.drop import Drop
from autodropout.layers.rules import SequenceRule
from autodropout.patterns.by_head import put_by_head
from autodropout.patterns.switch import compiled_for_gpu


class Layout(Protocol):
    def apply(self, drop: Callable[[Tensor], Tensor], h: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Tokens:
    """(N, T, C), or (T, N, C) when time comes first, or unbatched (T, C), or tokens on a grid (N, H, W, C).

    With channels second, (N, C, T) or (N, C, H, W).
    """

    time_first: bool = False
    channels_second: bool = False

    def apply(self, drop: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
        if self.channels_second:
            return drop(h.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(h.shape)
        if h.dim() == 2:
            return drop(h.unsqueeze(0)).squeeze(0)
        if h.dim() > 3:
            return drop(h.flatten(1, -2)).reshape(h.shape)
        return drop(h.transpose(0, 1)).transpose(0, 1) if self.time_first else drop(h)


@dataclass(frozen=True)
class Heads:
    """The heads within the channels of a projection: head `i` has `size` channels from `offset + i * stride` on.

    One projection for query, key and value holds three of these: side by side (stride = size) or interleaved by head.
    """

    count: int
    size: int
    offset: int
    stride: int
    time_first: bool = False

    def apply(self, drop: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
        if isinstance(drop, Drop) and compiled_for_gpu(h) and self._is_all_of(h) and _has_bits(drop, h):
            bits, scale = drop.bits(torch.unflatten(h, -1, (self.count, self.size)).transpose(1, 2))
            masked: Tensor = put_by_head(h, bits, scale, self.count)
            return masked
        x = h.transpose(0, 1) if self.time_first else h  # (N, T, C)
        if self.stride == self.size:
            length = self.count * self.size
            before, mine, after = torch.split(x, [self.offset, length, x.shape[-1] - self.offset - length], -1)
            mine = self._drop(drop, torch.unflatten(mine, -1, (self.count, self.size))).flatten(2)
            y = torch.cat((before, mine, after), -1)
        else:
            x = torch.unflatten(x, -1, (self.count, self.stride))  # (N, T, heads, stride)
            before, mine, after = torch.split(x, [self.offset, self.size, self.stride - self.offset - self.size], -1)
            y = torch.cat((before, self._drop(drop, mine), after), -1).flatten(2)
        return y.transpose(0, 1) if self.time_first else y

    def _is_all_of(self, h: Tensor) -> bool:
        """Whether `h` is (N, T, heads * D), and nothing else."""
        return not self.time_first and self.stride == self.size and self.count * self.size == h.shape[-1]

    @staticmethod
    def _drop(drop: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
        return drop(h.transpose(1, 2)).transpose(1, 2)  # (N, T, heads, size)

    @classmethod
    def of(cls, index: Tensor, shape: tuple[int, ...]) -> "Heads | None":
        """The layout that takes element (n, head, t, i) from place `index[n, head, t, i]` of a projection of `shape`.

        Batch and heads may lie in one dimension. Heads of keys that were repeated for grouped queries count once.
        None when the places are not those of heads within channels.
        """
        if len(shape) != 3 or index.dim() < 3:
            return None
        channels = shape[2]
        for time_first in (False, True):
            batch, length = (shape[1], shape[0]) if time_first else shape[:2]
            size = index.shape[-1]
            if index.shape[-2] != length or index.numel() % (batch * length * size):
                continue
            places = index.reshape(batch, -1, length, size)
            repeats = int((places[0, :, 0, 0] == places[0, 0, 0, 0]).sum())
            places = places[:, ::repeats]
            starts: list[int] = places[0, :, 0, 0].tolist()
            count, offset = len(starts), starts[0]
            stride = starts[1] - starts[0] if count > 1 else size
            if offset >= channels or stride < size or (stride > size and count * stride != channels):
                continue
            n, t = torch.arange(batch)[:, None, None, None], torch.arange(length)[:, None]
            row = t * batch + n if time_first else n * length + t
            inside = torch.arange(count)[:, None, None] * stride + torch.arange(size) + offset
            if torch.equal(places, row * channels + inside):
                return cls(count, size, offset, stride, time_first)
        return None


@dataclass(frozen=True)
class Weights:
    """Attention probabilities: (N, heads, T, S), or batch and heads in one dimension."""

    heads: int

    def apply(self, drop: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
        return drop(h) if h.dim() == 4 else drop(torch.unflatten(h, 0, (-1, self.heads))).flatten(0, 1)


def _has_bits(drop: Drop, h: Tensor) -> bool:
    """Whether a mask for `h` is still to be made, and can be had apart from being put on."""
    here = drop.noise is not None and drop.rate.device == h.device
    return here and drop.live and drop.ready is None and isinstance(drop.rule, SequenceRule) and h.numel() > 0


def shown(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which a drop sees a tensor of this shape."""
    seen: list[tuple[int, ...]] = []

    def note(h: Tensor) -> Tensor:
        seen.append(tuple(h.shape))
        return h

    layout.apply(note, torch.empty(shape, device="meta"))
    return seen[0]
