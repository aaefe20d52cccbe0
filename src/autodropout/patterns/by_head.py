"""A packed mask of heads put on a tensor of tokens, as an operator for code compiled for a GPU.

    h (..., N, T, heads * D), bits (..., N, heads, T, ceil(D/8)), scale (...)  ->  h * m * scale (..., N, T, heads * D)

It is what `SequenceRule.put` does in plain arithmetic to a view of `h` by heads. Compiled from that, values are read in
one order and bits in the other, both with divisions for every value: four times the time of reading and writing `h`.
"""

from typing import Any

import torch
from torch import Tensor

from autodropout.patterns.bits import sequence_dropped
from autodropout.patterns.stacking import stacked
from autodropout.patterns.switch import on_gpu


@torch.library.custom_op("autodropout::put_by_head", mutates_args=())
def put_by_head(h: Tensor, bits: Tensor, scale: Tensor, heads: int) -> Tensor:
    """`h * scale`, rounded once, and zero where a bit is set; contiguous.

    Args:
        h: its channels side by side, else with any strides: often some channels of longer rows.
        bits: `sequence_bits` of a (N, heads, T, D) tensor.
        scale: Size / Sum, float32; one for each child.
        heads: how many there are.
    """
    if on_gpu(h):
        from autodropout.patterns.kernels.by_head import put_by_head as kernel

        return kernel(h, bits, scale, heads)
    dropped = sequence_dropped(bits, h.shape[-1] // heads).transpose(-3, -2).flatten(-2)  # (..., N, T, heads * D)
    wide = h.float() if h.dtype in (torch.float16, torch.bfloat16) else h
    masked = torch.where(dropped, 0, wide * scale[..., None, None, None])
    return masked.to(h.dtype).contiguous()


@put_by_head.register_fake
def _(h: Tensor, bits: Tensor, scale: Tensor, heads: int) -> Tensor:
    return h.new_empty(h.shape)


@put_by_head.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], h: Tensor, bits: Tensor, scale: Tensor, heads: int
) -> tuple[Tensor, int]:
    tensors = zip((h, bits, scale), in_dims[:3], strict=True)
    return put_by_head(*(stacked(value, dim, info.batch_size) for value, dim in tensors), heads), 0


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, bits, scale, ctx.heads = inputs
    ctx.save_for_backward(bits, scale)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return put_by_head(gradient, *ctx.saved_tensors, ctx.heads), None, None, None


put_by_head.register_autograd(_backward, setup_context=_save)
