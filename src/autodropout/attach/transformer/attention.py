"""Attention with all its parts in our hands, and `nn.MultiheadAttention` computed with it.

`nn.MultiheadAttention` is one fused function: none of its parts is a module, and it reads the weights of `out_proj`
without calling it. So a module with drops gets a `forward` of its own while a policy is attached. In eval mode that
is the class's, with the same choice between fast and slow path. A `partial` and not a bound method: it can be
pickled, and a deep copy of the module gets a partial of the copy. No hook is used: one hook anywhere inside
`nn.TransformerEncoderLayer` would turn off its fast path in eval mode.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodropout.attach.hooks import KEY, store, undo
from autodropout.attach.transformer.folding import Into, folds, on_value
from autodropout.layers.drop import Drop

QUERY, KEY_, VALUE = "attention.query", "attention.key", "attention.value"
PROBABILITIES, CONTEXT, OUTPUT = "attention.probabilities", "attention.context", "attention.output"
INNER = (QUERY, KEY_, VALUE, PROBABILITIES, CONTEXT)

SLOT = "multihead"
FORWARD = "forward"


def dropped(drops: Mapping[str, Drop], role: str, h: Tensor) -> Tensor:
    """`h` under the drop for this role, where there is one."""
    return drops[role](h) if role in drops else h


def attend(
    query: Tensor,  # (N, heads, T, D)
    key: Tensor,  # (N, key heads, S, D)
    value: Tensor,  # (N, key heads, S, D)
    mask: Tensor | None,  # broadcasts to (N, heads, T, S): True where attention is allowed, or a number to add
    scale: float,
    dropout: float,
    drop: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """`drop(softmax(q k + mask)) v`, and the probabilities as used. A row that may attend to nothing gives zeros."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-2, -1) * scale  # (N, heads, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    probabilities = torch.ops.aten._safe_softmax(wide, -1).to(value.dtype)
    if drop is not None:
        probabilities = drop(probabilities)
    probabilities = F.dropout(probabilities, dropout)
    return probabilities @ value, probabilities


def put_forward(module: nn.Module, slot: str, function: Callable[..., Any]) -> dict[str, Drop]:
    """Let `function` be this module's forward; returns the drops it will find in its slot, for the caller to fill."""
    slots = store(module)
    if slot not in slots:
        assert FORWARD not in module.__dict__, "the module has a forward of its own"
        slots[slot] = {}
        module.__dict__[FORWARD] = partial(function, module)
    drops: dict[str, Drop] = slots[slot]
    return drops


@undo
def take_off_forward(module: nn.Module) -> None:
    ours = module.__dict__.get(FORWARD)
    if isinstance(ours, partial) and ours.func.__module__.startswith("autodropout.attach."):
        del module.__dict__[FORWARD]


def multihead(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention.forward`, with drops."""
    drops: dict[str, Drop] = module.__dict__[KEY][SLOT]
    inner = any(role in drops for role in INNER)
    if not module.training or not inner:
        output, weights = type(module).forward(
            module, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
        return (_on_tokens(module, drops, output) if module.training else output), weights
    if query.is_nested or key.is_nested or value.is_nested:
        raise ValueError("nested tensors are not supported by nn.MultiheadAttention in training mode")
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    q, k, v = _projected(module, query, key, value)  # (N, heads, T, D), (N, heads, S, D) twice
    q, k, v = dropped(drops, QUERY, q), dropped(drops, KEY_, k), dropped(drops, VALUE, v)
    mask = _merged(attn_mask, key_padding_mask, module.num_heads, q.dtype)
    weights = None
    drop = drops.get(PROBABILITIES)
    into = folds(drop, q, v) if drop is not None and not need_weights else None
    if need_weights or (drop is not None and into is None):
        context, weights = attend(q, k, v, mask, module.head_dim**-0.5, module.dropout, drop)
    else:
        if drop is not None and into is Into.VALUE:
            v = on_value(drop, v, q.shape[-2])
        context = F.scaled_dot_product_attention(q, k, v, mask, module.dropout)
        if drop is not None and into is Into.CONTEXT:
            context = drop(context)
    context = dropped(drops, CONTEXT, context).transpose(1, 2).flatten(2)  # (N, T, C)
    output = dropped(drops, OUTPUT, F.linear(context, module.out_proj.weight, module.out_proj.bias))
    batched = query.dim() == 3
    output = output.squeeze(0) if not batched else output if module.batch_first else output.transpose(0, 1)
    if weights is None or not need_weights:
        return output, None
    weights = weights.mean(1) if average_attn_weights else weights
    return output, weights if batched else weights.squeeze(0)


def _on_tokens(module: nn.MultiheadAttention, drops: Mapping[str, Drop], output: Tensor) -> Tensor:
    if output.dim() == 2:
        return dropped(drops, OUTPUT, output.unsqueeze(0)).squeeze(0)
    if module.batch_first:
        return dropped(drops, OUTPUT, output)
    return dropped(drops, OUTPUT, output.transpose(0, 1)).transpose(0, 1)


def _projected(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    packed: Tensor | None = module.in_proj_weight
    own = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    weights = own if packed is None else packed.chunk(3)
    biases = module.in_proj_bias.chunk(3) if module.in_proj_bias is not None else (None, None, None)
    result = []
    for x, weight, bias in zip((query, key, value), weights, biases, strict=True):
        tokens = x.unsqueeze(0) if x.dim() == 2 else x if module.batch_first else x.transpose(0, 1)  # (N, T, C)
        heads = torch.unflatten(F.linear(tokens, weight, bias), -1, (module.num_heads, module.head_dim))
        result.append(heads.transpose(1, 2))
    return result


def _merged(attention: Tensor | None, padding: Tensor | None, heads: int, dtype: torch.dtype) -> Tensor | None:
    """Both masks of `nn.MultiheadAttention` (True: not allowed) as one to be added, for (N, heads, T, S)."""
    if attention is not None and attention.dim() == 3:
        attention = torch.unflatten(attention, 0, (-1, heads))  # (N, heads, T, S)
    if padding is not None:
        padding = (padding if padding.dim() == 2 else padding.unsqueeze(0))[:, None, None, :]  # (N, 1, 1, S)
    added = [
        torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
        if mask.dtype == torch.bool
        else mask.to(dtype)
        for mask in (attention, padding)
        if mask is not None
    ]
    return None if not added else added[0] if len(added) == 1 else added[0] + added[1]


@dataclass(frozen=True)
class InMultihead:
    """A site inside `nn.MultiheadAttention`."""

    path: str
    role: str

    def put(self, model: nn.Module, drop: Drop) -> None:
        put_forward(model.get_submodule(self.path), SLOT, multihead)[self.role] = drop


def is_stock(module: nn.MultiheadAttention) -> bool:
    """Whether a module runs its class's own code."""
    return type(module).forward is nn.MultiheadAttention.forward and FORWARD not in module.__dict__


def why_not(module: nn.MultiheadAttention) -> str | None:
    """Why the parts of this attention are out of reach, if they are."""
    if not is_stock(module):
        return "a subclass of nn.MultiheadAttention with a forward of its own"
    if module.bias_k is not None or module.bias_v is not None:
        return "add_bias_kv=True appends a learned key and value"
    return "add_zero_attn=True appends a zero key and value" if module.add_zero_attn else None
