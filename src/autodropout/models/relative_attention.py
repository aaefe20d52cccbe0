"""Relative attention as an operator, for code compiled for a GPU: from queries, keys and values to what is attended to.

    query (..., N, T, heads * D), key and value (..., N, S, heads * D), by_distance (..., heads, N * T, R)
        ->  context (..., N, T, heads * D)

It scores by content, adds the scores by distance, hides later words, normalizes, puts a packed mask on the
probabilities and sums up values: what `RelativeAttention` does in plain arithmetic. That is a dozen passes over
(N, heads, T, S), and products of matrices too small for tensor cores; here nothing of that shape lies in memory but the
scores by distance, their gradient and the bits.

A query is scaled and has its content bias; R may be padded. Rows may lie apart, as those of a padded product do.
"""

from typing import Any

import torch
from torch import Tensor

from autodropout.patterns.bits import sequence_dropped
from autodropout.patterns.stacking import stacked
from autodropout.patterns.switch import on_gpu


@torch.library.custom_op("autodropout::relative_attention", mutates_args=())
def relative_attention(
    query: Tensor, key: Tensor, value: Tensor, by_distance: Tensor, bits: Tensor | None, scale: Tensor | None,
    heads: int, before: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """For queries that follow `before` words of memory: what they attend to, and logarithms of sums of exponentials.

    Computed in float32, returned in the type of `query`; the logarithms, (..., N, heads, T), are backward's.

    Args:
        query, key, value, by_distance: as above, with before + T <= S < R.
        bits: (..., N, heads, T, ceil(S/8)), the packed mask of the probabilities; None for no mask.
        scale: Size / Sum of the mask, (...), float32; None for no mask.
        heads: by which channels are divided.
        before: words of memory.
    """
    assert (bits is None) == (scale is None), "a mask has bits and a scale"
    assert before + query.shape[-2] <= key.shape[-2] < by_distance.shape[-1]
    if on_gpu(query):
        from autodropout.models import relative_attention_kernel

        return relative_attention_kernel.forward(query, key, value, by_distance, bits, scale, heads, before)
    scores = _scores(query, key, by_distance, heads, before)
    logs = scores.logsumexp(-1)
    shares = (scores - logs.unsqueeze(-1)).exp()
    masked = _masked(shares, bits, scale).to(query.dtype)
    context = masked.to(scores.dtype) @ _by_head(value, heads).to(scores.dtype)
    return _by_token(context, query.dtype), logs


@torch.library.custom_op("autodropout::relative_attention_backward", mutates_args=())
def relative_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, by_distance: Tensor, bits: Tensor | None,
    scale: Tensor | None, context: Tensor, logs: Tensor, heads: int, before: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key, value and `by_distance`, from the one of `context`."""
    if on_gpu(query):
        from autodropout.models import relative_attention_backward_kernel

        return relative_attention_backward_kernel.backward(
            gradient, query, key, value, by_distance, bits, scale, context, logs, heads, before
        )
    scores = _scores(query, key, by_distance, heads, before)
    asked, keys, values, given, found = (
        _by_head(h, heads).to(scores.dtype) for h in (query, key, value, gradient, context)
    )
    shares = (scores - logs.unsqueeze(-1)).exp()
    masked = _masked(shares, bits, scale).to(query.dtype).to(scores.dtype)
    product = (given * found).sum(-1, keepdim=True)  # of the shares with their gradients
    of_scores = (shares * (_masked(given @ values.mT, bits, scale) - product)).to(query.dtype)
    of_distance = by_distance.new_zeros(_by_query(by_distance, query).shape)
    aligned(of_distance)[..., : key.shape[-2]].copy_(of_scores)  # zeros, where what is hidden falls into another row
    wide = of_scores.to(scores.dtype)
    return (
        _by_token(wide @ keys, query.dtype),
        _by_token(wide.mT @ asked, key.dtype),
        _by_token(masked.mT @ given, value.dtype),
        of_distance.transpose(-4, -3).flatten(-3, -2).contiguous(),
    )


def _scores(query: Tensor, key: Tensor, by_distance: Tensor, heads: int, before: int) -> Tensor:
    """(..., N, heads, T, S), of float32 or wider; minus infinity for what is hidden."""
    length, reach = query.shape[-2], key.shape[-2]
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = _by_head(query, heads).to(wide) @ _by_head(key, heads).to(wide).mT
    scores = scores + aligned(_by_query(by_distance, query).to(wide))[..., :reach]
    future = torch.ones(length, reach, dtype=torch.bool, device=query.device).triu(before + 1)
    return scores.masked_fill(future, -torch.inf)


def _masked(shares: Tensor, bits: Tensor | None, scale: Tensor | None) -> Tensor:
    if bits is None or scale is None:
        return shares
    rescaled = shares * scale[..., None, None, None, None]
    return rescaled.masked_fill(sequence_dropped(bits, shares.shape[-1]), 0.0)


def aligned(by_distance: Tensor) -> Tensor:
    """From scores by distance, S down to 0, to scores by key: (..., T, S + 1) -> (..., T, S), a view.

    Query t stands at place S - T + t, so it scores key s where it scores distance S - T + t - s: in column T - t + s of
    its row. Counted through the rows one after another that is element T + t * S + s, which is to say: leave out the
    first T elements, and read the rest in rows of S. Where a key comes after its query there is no such distance;
    what stands there belongs to the next row, and attention hides it.
    """
    length, columns = by_distance.shape[-2:]
    return torch.unflatten(by_distance.flatten(-2)[..., length:], -1, (length, columns - 1))


def _by_query(by_distance: Tensor, query: Tensor) -> Tensor:
    """(..., heads, N * T, R) -> (..., N, heads, T, R)."""
    return torch.unflatten(by_distance, -2, (query.shape[-3], query.shape[-2])).transpose(-4, -3)


def _by_head(h: Tensor, heads: int) -> Tensor:
    return torch.unflatten(h, -1, (heads, -1)).transpose(-3, -2)  # (..., T, heads * D) -> (..., heads, T, D)


def _by_token(h: Tensor, dtype: torch.dtype) -> Tensor:
    return h.to(dtype).transpose(-3, -2).flatten(-2).contiguous()  # (..., heads, T, D) -> (..., T, heads * D)


@relative_attention.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, by_distance: Tensor, bits: Tensor | None, scale: Tensor | None,
    heads: int, before: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    *leading, samples, length, _ = query.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    return query.new_empty(query.shape), query.new_empty((*leading, samples, heads, length), dtype=wide)


@relative_attention_backward.register_fake
def _(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, by_distance: Tensor, bits: Tensor | None,
    scale: Tensor | None, context: Tensor, logs: Tensor, heads: int, before: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape),
        by_distance.new_empty(by_distance.shape),
    )  # fmt: skip


@relative_attention.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], query: Tensor, key: Tensor, value: Tensor, by_distance: Tensor,
    bits: Tensor | None, scale: Tensor | None, heads: int, before: int,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:  # fmt: skip
    tensors = zip((query, key, value, by_distance, bits, scale), in_dims[:6], strict=True)
    of_all = (h if h is None else stacked(h, dim, info.batch_size) for h, dim in tensors)
    return relative_attention(*of_all, heads, before), (0, 0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.heads, ctx.before = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    found = relative_attention_backward(gradient, *ctx.saved_tensors, ctx.heads, ctx.before)
    return *found, None, None, None, None


relative_attention.register_autograd(_backward, setup_context=_save)
