"""The softmax of relative attention as an operator, for code compiled for a GPU.

    content (..., N, heads, T, S), by_distance (..., heads, N * T, D)  ->  probabilities (..., N, heads, T, S)

It adds scores by content and scores by distance, hides later words, and normalizes: what `RelativeAttention` does in
plain arithmetic. Compiled from that, rows that are read with a shift (`aligned`) make loops of many short loads, and
the gradient by distance takes three copies. S and D may be padded; what is hidden has a probability of zero.
"""

from typing import Any

import torch
from torch import Tensor

from autodropout.patterns.bits import on_gpu


@torch.library.custom_op("autodropout::relative_softmax", mutates_args=())
def relative_softmax(content: Tensor, by_distance: Tensor, before: int) -> Tensor:
    """For queries that follow `before` words of memory; computed in float32, returned in the type of `content`."""
    if on_gpu(content):
        from autodropout.models import relative_softmax_kernel

        return relative_softmax_kernel.forward(content, by_distance, before)
    samples, _, length, reach = content.shape[-4:]
    by_query = by_distance.unflatten(-2, (samples, length)).transpose(-4, -3).float()  # (..., N, heads, T, D)
    scores = content.float() + aligned(by_query)[..., :reach]
    future = torch.ones(length, reach, dtype=torch.bool, device=content.device).triu(before + 1)
    return scores.masked_fill(future, -torch.inf).softmax(-1).to(content.dtype)


@torch.library.custom_op("autodropout::relative_softmax_backward", mutates_args=())
def relative_softmax_backward(
    gradient: Tensor, probabilities: Tensor, distances: int, before: int
) -> tuple[Tensor, Tensor]:
    """Gradients of `content` and of `by_distance`, which has so many columns."""
    if on_gpu(probabilities):
        from autodropout.models import relative_softmax_kernel

        return relative_softmax_kernel.backward(gradient, probabilities, distances, before)
    *leading, samples, heads, length, reach = probabilities.shape
    shares, given = probabilities.float(), gradient.float()
    of_scores = (shares * (given - (given * shares).sum(-1, keepdim=True))).to(probabilities.dtype)
    of_distance = of_scores.new_zeros(*leading, samples, heads, length, distances)
    aligned(of_distance)[..., :reach].copy_(of_scores)  # zeros, where what is hidden falls into another row
    return of_scores, of_distance.transpose(-4, -3).flatten(-3, -2).contiguous()


def aligned(by_distance: Tensor) -> Tensor:
    """From scores by distance, S down to 0, to scores by key: (..., T, S + 1) -> (..., T, S), a view.

    Query t stands at place S - T + t, so it scores key s where it scores distance S - T + t - s: in column T - t + s of
    its row. Counted through the rows one after another that is element T + t * S + s, which is to say: leave out the
    first T elements, and read the rest in rows of S. Where a key comes after its query there is no such distance;
    what stands there belongs to the next row, and attention hides it.
    """
    length, columns = by_distance.shape[-2:]
    return torch.unflatten(by_distance.flatten(-2)[..., length:], -1, (length, columns - 1))


@relative_softmax.register_fake
def _(content: Tensor, by_distance: Tensor, before: int) -> Tensor:
    return content.new_empty(content.shape)


@relative_softmax_backward.register_fake
def _(gradient: Tensor, probabilities: Tensor, distances: int, before: int) -> tuple[Tensor, Tensor]:
    *leading, samples, heads, length, _ = probabilities.shape
    by_distance = probabilities.new_empty(*leading, heads, samples * length, distances)
    return probabilities.new_empty(probabilities.shape), by_distance


@relative_softmax.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], content: Tensor, by_distance: Tensor, before: int
) -> tuple[Tensor, int]:
    assert in_dims[0] is not None
    assert in_dims[1] is not None
    return relative_softmax(content.movedim(in_dims[0], 0), by_distance.movedim(in_dims[1], 0), before), 0


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, by_distance, ctx.before = inputs
    ctx.distances = by_distance.shape[-1]
    ctx.save_for_backward(output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    (probabilities,) = ctx.saved_tensors
    return *relative_softmax_backward(gradient, probabilities, ctx.distances, ctx.before), None


relative_softmax.register_autograd(_backward, setup_context=_save)
