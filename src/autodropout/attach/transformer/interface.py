"""Sites inside the attention of Hugging Face models that use its attention interface.

Such a module looks up, by the name in its `config`, a function that gets query, key and value per head, after rotary
embedding and cache: so caches hold clean keys. We register one function of ours. While a policy is attached, an
attention module with drops holds a shallow copy of its config that names it. The model's own config is left alone:
masks are still made for the implementation the model was built with, and saving a model saves what it was.

transformers is imported by the user or not at all.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autodropout.attach.hooks import KEY, store, undo
from autodropout.attach.transformer.attention import CONTEXT, KEY_, PROBABILITIES, QUERY, VALUE, attend, dropped
from autodropout.attach.transformer.folding import Into, folds, on_value
from autodropout.layers.drop import Drop

NAME = "autodropout"
SLOT = "interface"

Function = Callable[..., Any]


@dataclass(frozen=True)
class Attend:
    """The function an attention module used, and whether `attend` computes the same."""

    function: Function
    implementation: str
    explained: bool


@dataclass
class Interface:
    """What an attention module with drops keeps beside them."""

    config: Any  # the module's own
    attend: Attend
    drops: dict[str, Drop] = field(default_factory=dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _register()  # a pickled model may wake up in a process that never attached anything


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Any:
    """What an attached module's attention interface calls: the function it would have called, with drops around."""
    here: Interface = module.__dict__[KEY][SLOT]
    if here.config._attn_implementation != here.attend.implementation:
        raise RuntimeError(
            f"the attention implementation became {here.config._attn_implementation!r} while a policy was attached: "
            "detach, set it, and attach again"
        )
    if not module.training:
        return here.attend.function(module, query, key, value, attention_mask, **options)
    drops = here.drops
    query, key, value = dropped(drops, QUERY, query), dropped(drops, KEY_, key), dropped(drops, VALUE, value)
    eager = here.attend.implementation == "eager"
    drop = drops[PROBABILITIES] if PROBABILITIES in drops and drops[PROBABILITIES].active else None
    into = folds(drop, query, value) if drop is not None and not eager else None
    if drop is not None and into is None:
        context, weights = explicit(
            here.attend.implementation, module, query, key, value, attention_mask, options, drop
        )
        context = context.transpose(1, 2)  # (N, T, heads, D)
    else:
        if drop is not None and into is Into.VALUE:
            value = on_value(drop, value, query.shape[-2])
        context, weights = here.attend.function(module, query, key, value, attention_mask, **options)
        if drop is not None and into is Into.CONTEXT:
            context = drop(context.transpose(1, 2)).transpose(1, 2)
    if CONTEXT in drops:
        context = drops[CONTEXT](context.transpose(1, 2)).transpose(1, 2)
    return context.contiguous(), weights if eager else None


def explicit(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: dict[str, Any],
    drop: Drop | None,
) -> tuple[Tensor, Tensor]:
    """Attention step by step, from what the interface passes: (N, heads, T, D) and the probabilities."""
    scale = options.get("scaling")
    bias = options.get("position_bias")
    length, sources = query.shape[2], key.shape[2]
    if implementation != "eager" and mask is None and length > 1:
        causal = options.get("is_causal")
        if causal if causal is not None else getattr(module, "is_causal", True):
            mask = torch.ones(length, sources, dtype=torch.bool, device=query.device).tril()
    if bias is not None and mask is not None:
        never = torch.finfo(bias.dtype).min  # as the library has it
        bias = torch.where(mask, bias, never) if mask.dtype == torch.bool else bias + mask
    combined = mask if bias is None else bias
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return attend(query, key, value, combined, scale, options.get("dropout", 0.0), drop)


@contextmanager
def watched(called: Callable[[nn.Module, tuple[Tensor, ...], Callable[[], tuple[Any, Attend]]], Any]) -> Iterator[None]:
    """Show every call of the attention interface to `called`, which runs it."""
    library = sys.modules.get("transformers")
    found: Any = getattr(library, "AttentionInterface", None)
    original: Any = getattr(found, "get_interface", None)
    if original is None:
        yield
        return

    def get_interface(self: Any, implementation: str, default: Function) -> Function:
        function = original(self, implementation, default)

        def attended(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
        ) -> Any:
            def run() -> tuple[Any, Attend]:
                result = function(module, query, key, value, attention_mask, **options)
                return result, Attend(
                    function,
                    implementation,
                    _explained(implementation, module, query, key, value, attention_mask, options, result),
                )

            return called(module, (query, key, value), run)

        return attended

    found.get_interface = get_interface
    try:
        yield
    finally:
        found.get_interface = original


def _explained(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: dict[str, Any],
    result: Any,
) -> bool:
    """Whether `explicit` gives what the implementation gave: soft caps, sinks and the like are seen by their effect."""
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 4):
        return False  # (N, T) of flash attention, the BlockMask of flex attention
    if any(isinstance(value, float) for name, value in options.items() if name not in ("dropout", "scaling")):
        return False  # a number we do not know, like a soft cap, which a small example need not show
    with torch._C.DisableTorchFunction():
        mine = explicit(implementation, module, query, key, value, mask, options, None)[0].transpose(1, 2)
        given = result[0]
        exact = given.dtype in (torch.float32, torch.float64)
        near = 1e-4 if exact else 3e-2
        attending = given.isfinite()  # a row that may attend to nothing is NaN in some implementations
        return mine.shape == given.shape and torch.allclose(mine[attending], given[attending], rtol=near, atol=near)


def _register() -> None:
    import transformers

    transformers.AttentionInterface.register(NAME, attention)


@dataclass(frozen=True)
class InInterface:
    """A site inside the attention of a module that uses the attention interface."""

    path: str
    role: str
    attend: Attend

    def put(self, model: nn.Module, drop: Drop) -> None:
        module = model.get_submodule(self.path)
        slots = store(module)
        if SLOT not in slots:
            _register()
            own: Any = module.config
            slots[SLOT] = Interface(own, self.attend)
            ours = copy.copy(own)
            ours._attn_implementation_internal = NAME
            module.config = ours
        slots[SLOT].drops[self.role] = drop


@undo
def take_off_interface(module: nn.Module) -> None:
    here = module.__dict__[KEY].get(SLOT)
    if here is not None:
        module.config = here.config
