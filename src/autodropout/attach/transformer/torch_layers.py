"""`nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer` with drops around their sums and in their
feed-forward.

A hook on any module inside an encoder layer turns off its fused path in eval mode and moves the outputs by rounding,
so the layer gets a forward of its own instead (see `attention.py`, which does the same for the attention inside). In
eval mode that is the class's forward; in training it is the class's forward written out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from autodropout.attach.hooks import KEY
from autodropout.attach.transformer.attention import FORWARD, put_forward
from autodropout.attach.transformer.layouts import Tokens
from autodropout.layers.drop import Drop

SLOT = "layer"
SELF, CROSS = "attention.residual", "attention.residual of cross-attention"
INPUT, HIDDEN, OUTPUT, FEEDFORWARD = (
    "feedforward.input",
    "feedforward.hidden",
    "feedforward.output",
    "feedforward.residual",
)

EncoderLayer: TypeAlias = nn.TransformerEncoderLayer
DecoderLayer: TypeAlias = nn.TransformerDecoderLayer


def is_stock(module: nn.Module) -> bool:
    """Whether a module is one of these layers and runs its class's own code."""
    for kind in (EncoderLayer, DecoderLayer):
        if isinstance(module, kind):
            return (
                FORWARD not in module.__dict__
                and isinstance(module.self_attn, nn.MultiheadAttention)
                and type(module).forward is kind.forward
                and type(module)._ff_block is kind._ff_block
            )
    return False


def encoder_layer(
    layer: EncoderLayer,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """`nn.TransformerEncoderLayer.forward`, with drops."""
    if not layer.training:
        return type(layer).forward(layer, src, src_mask, src_key_padding_mask, is_causal)
    masks = _Masks(layer)
    x = src
    if layer.norm_first:
        x = masks(SELF, x) + layer._sa_block(layer.norm1(x), src_mask, src_key_padding_mask, is_causal)
        y: Tensor = masks(FEEDFORWARD, x) + layer.dropout2(_feed(layer, masks, layer.norm2(x)))
        return y
    x = layer.norm1(masks(SELF, x) + layer._sa_block(x, src_mask, src_key_padding_mask, is_causal))
    z: Tensor = layer.norm2(masks(FEEDFORWARD, x) + layer.dropout2(_feed(layer, masks, x)))
    return z


def decoder_layer(
    layer: DecoderLayer,
    tgt: Tensor,
    memory: Tensor,
    tgt_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    tgt_key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    tgt_is_causal: bool = False,
    memory_is_causal: bool = False,
) -> Tensor:
    """`nn.TransformerDecoderLayer.forward`, with drops."""
    to_self = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
    to_memory = (memory_mask, memory_key_padding_mask, memory_is_causal)
    if not layer.training:
        masks_given = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return type(layer).forward(layer, tgt, memory, *masks_given, tgt_is_causal, memory_is_causal)
    masks = _Masks(layer)
    x = tgt
    if layer.norm_first:
        x = masks(SELF, x) + layer._sa_block(layer.norm1(x), *to_self)
        x = masks(CROSS, x) + layer._mha_block(layer.norm2(x), memory, *to_memory)
        y: Tensor = masks(FEEDFORWARD, x) + layer.dropout3(_feed(layer, masks, layer.norm3(x)))
        return y
    x = layer.norm1(masks(SELF, x) + layer._sa_block(x, *to_self))
    x = layer.norm2(masks(CROSS, x) + layer._mha_block(x, memory, *to_memory))
    z: Tensor = layer.norm3(masks(FEEDFORWARD, x) + layer.dropout3(_feed(layer, masks, x)))
    return z


class _Masks:
    """The drops of one layer, applied to its tokens."""

    def __init__(self, layer: EncoderLayer | DecoderLayer) -> None:
        self.drops: Mapping[str, Drop] = layer.__dict__[KEY][SLOT]
        self.tokens = Tokens(time_first=not layer.self_attn.batch_first)

    def __call__(self, role: str, h: Tensor) -> Tensor:
        return self.tokens.apply(self.drops[role], h) if role in self.drops else h


def _feed(layer: EncoderLayer | DecoderLayer, masks: _Masks, x: Tensor) -> Tensor:
    hidden = layer.dropout(layer.activation(layer.linear1(masks(INPUT, x))))
    return masks(OUTPUT, layer.linear2(masks(HIDDEN, hidden)))


@dataclass(frozen=True)
class InLayer:
    """A site of one of these layers, outside its attentions."""

    path: str
    role: str

    def put(self, model: nn.Module, drop: Drop) -> None:
        layer = model.get_submodule(self.path)
        forward = encoder_layer if isinstance(layer, EncoderLayer) else decoder_layer
        put_forward(layer, SLOT, forward)[self.role] = drop
