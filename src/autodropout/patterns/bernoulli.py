"""Independent draws: values dropped one by one, and corners of DropBlock's blocks.

A draw has 16 bits, a hash serves four: a rate is rounded to a multiple of 2**-16. Values are many, and where a mask has
to be made in the time that nn.Dropout takes for its own, hashing is most of the work. What is much rarer than what it
drops, as a block's corner is, takes two draws that must both hit.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from autodropout.patterns import switch
from autodropout.patterns.draws import GOLDEN, mix, threshold
from autodropout.patterns.stacking import stacked

_CHUNK = 1 << 18  # draws: enough to be worth two threads, few enough for the cache


def bernoulli(shape: Sequence[int], rate: Tensor, seed: Tensor) -> Tensor:
    """Independent draws, True with probability `rate` to within 2**-17; element number i is a function of (seed, i)."""
    drawn: Tensor = torch.ops.autodropout.bernoulli(seed, rate, list(shape))
    return drawn


def rare(shape: Sequence[int], rate: Tensor, seed: Tensor) -> Tensor:
    """`bernoulli` for rates that 16 bits are too few for: right to within a hundredth down to 2**-20."""
    drawn: Tensor = torch.ops.autodropout.rare(seed, rate, list(shape))
    return drawn


@torch.library.custom_op("autodropout::bernoulli", mutates_args=())
def draw(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    """`bernoulli`, as an operator of its own for the reasons given in conv.py.

    Seeds and rates of (K,), those of children side by side, give draws of (K, *shape).
    """
    return _plain(seed, rate, shape)


def _plain(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    total = prod(shape)
    key = mix(seed)[..., None]  # (..., 1), as the limit
    limit = _limit(rate)[..., None]
    drawn = torch.empty((*seed.shape, (total + 3) // 4 * 4), dtype=torch.bool, device=seed.device)
    # On a CPU in chunks, so that the passes of the hash stay within the cache.
    chunk = _CHUNK if seed.device.type == "cpu" else max(1, drawn.shape[-1])
    for first in range(0, drawn.shape[-1], chunk):
        last = min(first + chunk, drawn.shape[-1])
        counters = torch.arange(first // 4, last // 4, device=seed.device)
        torch.lt(mix(counters.mul_(GOLDEN).add(key)).view(torch.int16), limit, out=drawn[..., first:last])
    return drawn[..., :total].contiguous().view((*seed.shape, *shape))  # of one child nothing is copied


@draw.register_kernel("cuda")
def _(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    if not switch.TRITON:
        return _plain(seed, rate, shape)
    from autodropout.patterns.kernels.bernoulli import bernoulli as kernel

    with torch.cuda.device_of(seed):  # Triton launches on the current device
        return kernel(seed, rate, shape)


@draw.register_fake
def _(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty((*seed.shape, *shape), dtype=torch.bool, device=seed.device)


@draw.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], seed: Tensor, rate: Tensor, shape: Sequence[int]
) -> tuple[Tensor, int]:
    tensors = zip((seed, rate), in_dims[:2], strict=True)
    return draw(*(stacked(value, dim, info.batch_size) for value, dim in tensors), shape), 0


@torch.library.custom_op("autodropout::rare", mutates_args=())
def _rare(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    first, second = two_rates(rate)
    drawn = _plain(seed, first, shape)
    hit = drawn.view(-1).nonzero().squeeze(1)  # few: the second is drawn for them alone
    words = mix(mix(~seed) + (hit >> 2) * GOLDEN)
    drawn.view(-1)[hit] = (words >> ((hit & 3) * 16)).to(torch.int16) < _limit(second).view(1)  # compared as int32
    return drawn


@_rare.register_kernel("cuda")
def _(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    if not switch.TRITON:
        first, second = two_rates(rate)
        return _plain(seed, first, shape) & _plain(~seed, second, shape)
    from autodropout.patterns.kernels.bernoulli import rare as kernel

    with torch.cuda.device_of(seed):
        return kernel(seed, rate.float(), shape)  # rates and all: each in PyTorch would be six launches


@_rare.register_fake
def _(seed: Tensor, rate: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=torch.bool, device=seed.device)


def two_rates(rate: Tensor) -> tuple[Tensor, Tensor]:
    """Rates of two draws that both hit as often as one of `rate` would.

    A block's corner is up to 49 times as rare as what it drops: in one draw of 16 bits a rate of 0.002 would be 8% off,
    and a tenth of it none at all.
    """
    rate = rate.float()  # as the kernel computes, whatever the rate's type
    first = (rate.sqrt() * 2**16).ceil().clamp(min=1) / 2**16  # exactly what a draw can have
    return first, rate / first


def _limit(rate: Tensor) -> Tensor:
    """What draws of `rate` are below, read as signed numbers; int32, since it may be one more than the largest."""
    return (((threshold(rate) + 2**15) >> 16) - 2**15).int()
