"""Packed masks: one bit a cell, set where it is dropped, made from tokens that lie on the device.

    tokens, rate, seed  --conv_bits / sequence_bits-->  bits, kept  --put_on-->  h * m * Size(m) / Sum(m)

Why beside the plain masks of `conv.py` and `sequence.py`, whose very cells these are:
1. What a policy says is read from a tensor where the mask is made. So one compiled kernel, one compiled graph and one
   captured CUDA graph serve all policies; a new one is a copy of a few numbers.
2. A mask is needed three times: to be counted before the first value can be rescaled, in forward, and in backward.
   Computed once and kept as bits it costs an eighth of a byte a value; nn.Dropout keeps a whole one.
3. `torch.compile` sees the bits made by one operator and put on by plain arithmetic, which it fuses with what stands
   around: normalization, ReLU, a sum. Only eager code on a GPU puts them on by a kernel of its own.

Bits of a (N, C, H, W) map are bytes of (N, ceil(H*W/8), C) in channels_last, of (N, C, ceil(H*W/8)) otherwise: bit j of
byte b is cell 8b + j of the map. Bits of a (..., T, C) sequence are bytes of (..., T, ceil(C/8)).

Children that are trained side by side with stacked parameters have their sequence masks made at once: tokens of (K, 4),
rate and seed of (K,), bits of (K, ...); `torch.vmap` arrives there by itself.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autodropout.patterns.conv import Tiling, conv_mask
from autodropout.patterns.sequence import Runs, sequence_mask
from autodropout.patterns.stacking import stacked
from autodropout.spaces import ConvPattern, SequencePattern

_ONE = 1 << 28  # fixed point, as in conv.py


def conv_tokens(pattern: ConvPattern, searched_at: tuple[int, int]) -> list[int]:
    """What a ConvNet pattern says, as integers."""
    limits = (math.radians(pattern.rotate), pattern.shear_x, pattern.shear_y)
    angles = [round(limit * _ONE) for limit in limits]
    return [pattern.size, pattern.stride, pattern.repeat, int(pattern.share_c), *angles, *searched_at]


def sequence_tokens(pattern: SequencePattern) -> list[int]:
    """The same for a Transformer pattern."""
    return [pattern.size, pattern.stride, int(pattern.share_t), int(pattern.share_c)]


@torch.library.custom_op("autodropout::conv_bits", mutates_args=(), device_types="cpu")
def conv_bits(
    tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, shape: Sequence[int], channels_last: bool
) -> tuple[Tensor, Tensor]:
    """The packed mask of a (N, C, H, W) map, and how many cells it keeps.

    `tokens` is `conv_tokens` as int32; `seed ^ stream` is what the mask is a function of.
    """
    size, stride, repeat, share_c, *angles, searched_height, searched_width = tokens.tolist()
    n, c, height, width = shape
    sides = ((height, searched_height), (width, searched_width))
    sizes = tuple(size * (cells // 5) for cells, _ in sides)
    strides = tuple(max(1, (2 * stride * cells + searched) // (2 * searched)) for cells, searched in sides)
    if 0 in sizes:
        dropped = torch.zeros((n, c, height, width), dtype=torch.bool)
    else:
        rotate, shear_x, shear_y = (angle / _ONE for angle in angles)
        tiling = Tiling(sizes, strides, repeat, bool(share_c), math.degrees(rotate), shear_x, shear_y)
        dropped = ~conv_mask(tiling, shape, rate, seed ^ stream)[0].expand(n, c, height, width)
    packed = _packed(dropped.flatten(2))  # (N, C, bytes)
    kept = dropped.numel() - dropped.count_nonzero()
    return packed.mT.contiguous() if channels_last else packed, kept


@conv_bits.register_kernel("cuda")
def _(
    tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, shape: Sequence[int], channels_last: bool
) -> tuple[Tensor, Tensor]:
    from autodropout.patterns.kernels.conv import conv_bits as kernel

    with torch.cuda.device_of(seed):  # Triton launches on the current device
        return kernel(tokens, rate, seed, stream, shape, channels_last)


@conv_bits.register_fake
def _(
    tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, shape: Sequence[int], channels_last: bool
) -> tuple[Tensor, Tensor]:
    n, c, height, width = shape
    unit_bytes = (height * width + 7) // 8
    layout = (n, unit_bytes, c) if channels_last else (n, c, unit_bytes)
    return torch.empty(layout, dtype=torch.uint8, device=seed.device), torch.empty_like(seed)


@torch.library.custom_op("autodropout::conv_bits_together", mutates_args=(), device_types="cpu")
def conv_bits_together(
    tokens: Tensor, rates: Tensor, sites: Tensor, seed: Tensor, samples: int, channels: Sequence[int],
    size: Sequence[int], channels_last: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The packed masks of several sites with maps of one size, one after another, (bytes,), and what each keeps, (S,).

    Args:
        tokens, rates: (S, 9) and (S,), as for one site.
        sites: (S, 2), int64, on the device: each one's channels and stream.
        seed: for all of them.
        samples, channels, size: N, each C, and (H, W).
        channels_last: for all of them.
    """
    found = [
        conv_bits(own, rate, seed, stream, [samples, count, *size], channels_last)
        for own, rate, count, stream in zip(tokens, rates, channels, sites[:, 1].tolist(), strict=True)
    ]
    return torch.cat([bits.flatten() for bits, _ in found]), torch.stack([kept for _, kept in found])


@conv_bits_together.register_kernel("cuda")
def _(
    tokens: Tensor, rates: Tensor, sites: Tensor, seed: Tensor, samples: int, channels: Sequence[int],
    size: Sequence[int], channels_last: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from autodropout.patterns.kernels.conv import conv_bits_together as kernel

    with torch.cuda.device_of(seed):
        return kernel(tokens, rates, sites, seed, samples, channels, size, channels_last)


@conv_bits_together.register_fake
def _(
    tokens: Tensor, rates: Tensor, sites: Tensor, seed: Tensor, samples: int, channels: Sequence[int],
    size: Sequence[int], channels_last: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    unit_bytes = (size[0] * size[1] + 7) // 8
    bits = torch.empty(samples * sum(channels) * unit_bytes, dtype=torch.uint8, device=seed.device)
    return bits, torch.empty(len(channels), dtype=torch.int64, device=seed.device)


@torch.library.custom_op("autodropout::sequence_bits", mutates_args=(), device_types="cpu")
def sequence_bits(
    tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The packed mask of a (..., T, C) sequence, and how many values it keeps; of K children's where `seed` is (K,)."""
    if seed.dim():
        children = [sequence_bits(*child, stream, shape) for child in zip(tokens, rate, seed, strict=True)]
        return torch.stack([bits for bits, _ in children]), torch.stack([kept for _, kept in children])
    size, stride, share_t, share_c = tokens.tolist()
    if size == 0:
        dropped = torch.zeros(list(shape), dtype=torch.bool)
    else:
        runs = Runs(size, stride, bool(share_t), bool(share_c))
        dropped = ~sequence_mask(runs, shape, rate, seed ^ stream)[0].expand(*shape)
    return _packed(dropped), dropped.numel() - dropped.count_nonzero()


@sequence_bits.register_kernel("cuda")
def _(tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    from autodropout.patterns.kernels.sequence import sequence_bits as kernel

    with torch.cuda.device_of(seed):
        return kernel(tokens, rate, seed, stream, shape)


@sequence_bits.register_fake
def _(tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    layout = (*seed.shape, *shape[:-1], (shape[-1] + 7) // 8)
    return torch.empty(layout, dtype=torch.uint8, device=seed.device), torch.empty_like(seed)


@sequence_bits.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], tokens: Tensor, rate: Tensor, seed: Tensor, stream: int,
    shape: Sequence[int],
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:  # fmt: skip
    tensors = zip((tokens, rate, seed), in_dims[:3], strict=True)
    of_all = (stacked(value, dim, info.batch_size).contiguous() for value, dim in tensors)
    return sequence_bits(*of_all, stream, shape), (0, 0)


def conv_dropped(bits: Tensor, shape: Sequence[int], channels_last: bool, site: int = 0) -> Tensor:
    """A packed mask as booleans of (N, C, H, W), True where dropped, in the memory format it was packed in."""
    n, c, height, width = shape
    cells = height * width
    if channels_last:
        # Of five dimensions: one of four that is kept for backward, compiled code would first copy to channels_last.
        # And samples stay apart: else the bytes of neighbouring channels are no longer seen to lie side by side.
        places = _places(site, bits.device)[:, None, None]
        flags = _bit(bits[:, :, None, None], places)  # (N, bytes, 8, 1, C)
        mask = flags.reshape(n, -1, c)[:, :cells].reshape(n, height, width, c).permute(0, 3, 1, 2)
        # What is masked takes its layout from here, and a map of one byte would come out as (N, C, H, W). Compiled code
        # knows its layouts.
        return mask if torch.compiler.is_compiling() else mask.contiguous(memory_format=torch.channels_last)
    return sequence_dropped(bits, cells, site).reshape(n, c, height, width)


def sequence_dropped(bits: Tensor, channels: int, site: int = 0) -> Tensor:
    """A packed mask as booleans of (..., C), True where dropped."""
    flags = _bit(bits.unsqueeze(-1), _places(site, bits.device))
    return flags.flatten(-2)[..., :channels]


def _places(site: int, device: torch.device) -> Tensor:
    """0 to 7, counted for each site anew.

    Were it one operation for all of them, `torch.compile` would see it used far apart and not make again in backward
    what depends on it: forward would keep a byte a value for backward, not the bits.
    """
    return torch.arange(8 * site, 8 * site + 8, dtype=torch.int32, device=device).bitwise_and(7)


def _bit(packed: Tensor, bit: Tensor) -> Tensor:
    # Of 32 bits, which is what a GPU computes with: of bytes it takes 3 instructions a value more.
    return packed.to(torch.int32).bitwise_right_shift(bit).bitwise_and(1).to(torch.bool)


def _packed(dropped: Tensor) -> Tensor:
    """(..., values) booleans -> (..., ceil(values/8)) bytes."""
    row_bytes = (dropped.shape[-1] + 7) // 8
    padded = torch.nn.functional.pad(dropped.to(torch.uint8), (0, 8 * row_bytes - dropped.shape[-1]))
    weights = torch.ones(8, dtype=torch.uint8) << torch.arange(8, dtype=torch.uint8)
    return (torch.unflatten(padded, -1, (row_bytes, 8)) * weights).sum(-1, dtype=torch.uint8)


@torch.library.custom_op("autodropout::put_on", mutates_args=(), device_types="cuda")
def put_on(h: Tensor, bits: Tensor, kept: Tensor, channels_last: bool) -> Tensor:
    """`h * m * Size / Sum` for eager code on a GPU: a map in channels_last, or rows of values side by side."""
    from autodropout.patterns.kernels.apply import apply_last, apply_rows

    with torch.cuda.device_of(h):
        if channels_last:
            return apply_last(h.contiguous(memory_format=torch.channels_last), bits, kept)
        return apply_rows(h, bits, kept)


@put_on.register_fake
def _(h: Tensor, bits: Tensor, kept: Tensor, channels_last: bool) -> Tensor:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty_like(h, memory_format=layout)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, bits, kept, ctx.channels_last = inputs
    ctx.save_for_backward(bits, kept)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return put_on(gradient, *ctx.saved_tensors, ctx.channels_last), None, None, None


put_on.register_autograd(_backward, setup_context=_save)
