"""What makes an attached policy impossible to lose in silence.

1. `torch.compile` does not notice hooks that come or go after its first call: `forget_compiled` makes it start afresh.
2. Converting to SyncBatchNorm, or any other surgery that replaces a module, drops the hooks on it; an adapter around a
   module adds what the hooks on it do not see: `watch` lets the model's next training forward fail with an explanation.
"""

import sys
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from autodropout.attach.hooks import KEY, store
from autodropout.layers.drop import is_channels_last

_WRAPPERS = (DistributedDataParallel, nn.DataParallel, AveragedModel)


def unwrap(model: nn.Module) -> nn.Module:
    """The module a user wrote, for what wraps it as a whole: `torch.compile`, DDP, an average of its weights."""
    while True:
        inner = model.module if isinstance(model, _WRAPPERS) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def forget_compiled() -> None:
    """Drop what was compiled before the hooks changed. Costs a recompilation, of everything, once."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def watch(model: nn.Module) -> None:
    """Let each training forward of `model` check that the modules with our drops are still in it."""
    hosts = {name: module for name, module in model.named_modules() if module is not model and KEY in module.__dict__}
    links = {}  # every step on the ways to them: whoever replaces a block replaces the norms in it
    for name in hosts:
        at = model
        for child in name.split("."):
            parent, at = at, at.get_submodule(child)
            links[parent, child] = at
    # No module as a key: code compiled for one model, and shared by others, would then be compiled for each.
    store(model)["links"] = tuple((parent, child, module) for (parent, child), module in links.items())
    store(model)["hosts"] = tuple(hosts.items())
    # A hook of any kind on this one would turn off its fused eval path, and eval outputs must not change at all.
    if not isinstance(model, nn.TransformerEncoderLayer):
        model.register_forward_pre_hook(on_forward)


def lost(model: nn.Module) -> list[str]:
    """Modules with drops of ours that are no longer in the model.

    Wrapped (by activation checkpointing, by FSDP) one is no longer its parent's child, but still in the model.
    """
    present = set(model.modules())
    hosts = model.__dict__.get(KEY, {}).get("hosts", ())
    return [name for name, module in hosts if module not in present]


def covered(model: nn.Module) -> list[str]:
    """Modules on the way to our drops that somebody wrapped in one with parameters of its own, and by whom."""
    found = []
    names = {module: name for name, module in model.named_modules()}
    for parent, child, module in model.__dict__.get(KEY, {}).get("links", ()):
        now = parent._modules.get(child)
        if now is not None and now is not module and module in set(now.modules()):
            inner = set(module.parameters())
            if any(parameter not in inner for parameter in now.parameters()):
                found.append(f"{names.get(now, child)} ({type(now).__name__})")
    return found


def on_forward(model: nn.Module, args: Any) -> None:
    """Forward pre-hook of the model as a whole."""
    if model.training:
        slots = model.__dict__[KEY]
        if any(parent._modules.get(child) is not module for parent, child, module in slots["links"]):
            for name in lost(model):
                raise RuntimeError(
                    f"{name} was replaced after a policy was attached, and its drops went with it (was the model "
                    "converted, to SyncBatchNorm say?): convert first, then attach; or detach and attach again"
                )
            for name in covered(model):
                raise RuntimeError(
                    f"{name} was put around a module after a policy was attached, and has parameters of its own, which "
                    "its drops do not see (an adapter, a fusion?): wrap first, then attach; or detach and attach again"
                )
        x = args[0] if args else None
        if isinstance(x, torch.Tensor) and x.dim() == 4:
            for group in slots.get("together", ()):
                group.before_forward(len(x), is_channels_last(x))
