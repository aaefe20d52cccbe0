"""Cross-entropies of a large vocabulary, as an operator: one pass over the scores in forward, one in backward.

    scores (K, vocabulary, words), bias (K, vocabulary), targets (words,)  ->  nats (K, words)

The scores are the largest tensor of a step of a language model. Compiled from plain arithmetic, a crowd's took three
times as long to be read and differentiated as to be moved once in memory.

The words are the last dimension, since the weights' gradient then comes out of its product in the order in which the
weights lie (`stacked_language.cross_entropy`). K is there under `torch.vmap`.
"""

from typing import Any

import torch
from torch import Tensor

from autodropout.patterns.switch import on_gpu


@torch.library.custom_op("autodropout::word_nats", mutates_args=())
def word_nats(scores: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """-log softmax(scores + bias)[target] of each word, and the logarithm of its sum of exponentials; in float32."""
    if on_gpu(scores):
        from autodropout.training import word_nats_kernel

        return word_nats_kernel.forward(scores, bias, targets)
    whole = scores.float() + bias.unsqueeze(-1)
    logs = whole.logsumexp(-2)
    at_target = targets.expand(*scores.shape[:-2], 1, -1)
    return logs - whole.gather(-2, at_target).squeeze(-2), logs


@torch.library.custom_op("autodropout::word_nats_backward", mutates_args=())
def word_nats_backward(
    gradient: Tensor, scores: Tensor, bias: Tensor, targets: Tensor, logs: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of scores, in their type, and of the bias, in float32."""
    if on_gpu(scores):
        from autodropout.training import word_nats_kernel

        return word_nats_kernel.backward(gradient, scores, bias, targets, logs)
    shares = (scores.float() + bias.unsqueeze(-1) - logs.unsqueeze(-2)).exp()
    vocabulary = torch.arange(scores.shape[-2], device=scores.device)
    found = (shares - (vocabulary[:, None] == targets).float()) * gradient.unsqueeze(-2)
    return found.to(scores.dtype), found.sum(-1)


@word_nats.register_fake
def _(scores: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    shape = (*scores.shape[:-2], scores.shape[-1])
    return scores.new_empty(shape, dtype=torch.float32), scores.new_empty(shape, dtype=torch.float32)


@word_nats_backward.register_fake
def _(gradient: Tensor, scores: Tensor, bias: Tensor, targets: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape), bias.new_empty(bias.shape, dtype=torch.float32)


@word_nats.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], scores: Tensor, bias: Tensor, targets: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    assert in_dims[0] is not None
    assert in_dims[1] is not None
    assert in_dims[2] is None, "all children read the same words"
    return word_nats(scores.movedim(in_dims[0], 0), bias.movedim(in_dims[1], 0), targets), (0, 0)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor, None]:
    scores, bias, targets, logs = ctx.saved_tensors
    of_scores, of_bias = word_nats_backward(gradient, scores, bias, targets, logs)
    return of_scores, of_bias.to(bias.dtype), None


word_nats.register_autograd(_backward, setup_context=_save)
