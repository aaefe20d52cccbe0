"""Where a drop can act in a ConvNet: on a module's output, on a child's input, on an identity shortcut.

The identity shortcut of `branch(x) + x` is no module's input or output alone: the branch reads the same tensor. So
the block is handed another one, and the branch gets the original back:

    x ──> drop(x), carrying x ──> block ──> the first module of the branch: puts x back in its place
                                        └─> the sum: adds drop(x)

The original travels on the tensor, not on the block: under activation checkpointing a compiled block runs again
without the attributes of its first run.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autodropout.attach.hooks import KEY, put_on_input, put_on_output, store
from autodropout.layers.drop import Drop


@dataclass(frozen=True)
class ModuleOutput:
    """After a module: a normalization, or the last module of a shortcut."""

    path: str
    channels_last: bool = False  # its output is (N, H, W, C)

    def put(self, model: nn.Module, drop: Drop) -> None:
        put_on_output(model.get_submodule(self.path), drop, channels_last=self.channels_last)


@dataclass(frozen=True)
class ModuleInput:
    """Before a module: the child that a normalization with an activation calls between the two."""

    path: str

    def put(self, model: nn.Module, drop: Drop) -> None:
        put_on_input(model.get_submodule(self.path), drop)


@dataclass(frozen=True)
class IdentityShortcut:
    """A block's first argument, for the shortcut alone."""

    block: str
    entries: tuple[str, ...]  # the modules by which all else in the block reads it
    shared: tuple[str, ...] = ()  # those of them that also run elsewhere, as an activation used twice

    @property
    def path(self) -> str:
        return self.block

    def put(self, model: nn.Module, drop: Drop) -> None:
        block = model.get_submodule(self.block)
        slots = store(block)
        assert "shortcut" not in slots, f"the shortcut of {self.block!r} is taken"
        slots["shortcut"] = drop
        block.register_forward_pre_hook(hand_dropped)
        for path in self.entries:
            entry = model.get_submodule(path)
            slots = store(entry)
            if "originals" not in slots:
                slots["originals"] = {}
                # Before all other hooks: a branch may begin with a block of its own, which must drop what it gets back.
                entry.register_forward_pre_hook(hand_original, prepend=True)
            slots["originals"][drop.site] = None if path in self.shared else (drop, block)


def hand_dropped(module: nn.Module, args: Any) -> Any:
    """Forward pre-hook of a block: its input under the drop in slot "shortcut", carrying the original."""
    if not module.training:
        return None
    x = args[0]
    drop: Drop = module.__dict__[KEY]["shortcut"]
    if not drop.active:
        return None
    if not isinstance(x, Tensor):
        raise RuntimeError(
            f"{type(module).__name__} was given a {type(x).__name__}: torch.fx cannot trace a model while a policy is "
            "attached; call detach() first"
        )
    dropped: Any = drop(x)
    if dropped is x:  # nothing to do, as for a pattern on a map smaller than its cells: the branch must hear of it
        dropped = x.view_as(x)
    dropped._autodropout_original = x
    dropped._autodropout_site = drop.site  # a block that adds in place hands its tensor, tags and all, to the next one
    return (dropped, *args[1:])


def hand_original(module: nn.Module, args: Any) -> Any:
    """Forward pre-hook of a branch's first module: the block's input as it was before `hand_dropped`.

    Without it the branch would silently train on dropped inputs, so its absence is an error: it is lost in a checkpoint
    inside the block that is reentrant or nested in another, and never set where `block.forward` is called directly.
    """
    x = args[0]
    originals: dict[int, tuple[Drop, nn.Module] | None] = module.__dict__[KEY]["originals"]
    if getattr(x, "_autodropout_site", None) in originals:
        if not x.requires_grad or torch.is_grad_enabled():
            return (x._autodropout_original, *args[1:])
    elif not (x.numel() and any(of is not None and of[0].active and of[1].training for of in originals.values())):
        return None
    raise RuntimeError(
        f"{type(module).__name__}, the first module of a residual branch, did not get its block's input: checkpoint "
        "whole blocks, not parts of them (or pass use_reentrant=False), and call block(x), not block.forward(x)"
    )
