"""What runs inside a model while a policy is attached.

Hooks are functions of this package, never closures, and look up their drop on the module they are called with. So a
deep copy of a model (an EMA copy) has drops of its own, pickling works, `torch.compile` sees plain attribute access,
and `remove_all` can tell our hooks from everybody else's, on copies too. Drops lie in the module's `__dict__` under
one key and are not registered: `state_dict`, `named_modules` and `export` do not change.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from autodropout.layers.drop import Drop

_SCRIPTED = "__prepare_scriptable__"  # torch's name for what a module gives to be scripted in its place
KEY = "_autodropout"  # in module.__dict__: a dict of slot -> Drop (or what a mechanism keeps beside its drops)

Undo = Callable[[nn.Module], None]
_UNDO: list[Undo] = []  # what mechanisms other than hooks register to be taken off a module again


def store(module: nn.Module) -> dict[str, Any]:
    """This module's slots, made when missing."""
    slots: dict[str, Any] = module.__dict__.setdefault(KEY, {})
    module.__dict__.setdefault(_SCRIPTED, refuse_script)
    return slots


def refuse_script() -> nn.Module:
    """What `torch.jit.script` asks a module first; of a hook it would say no more than that its types are wrong."""
    raise RuntimeError("torch.jit.script cannot compile a model while a policy is attached: call detach() first")


def taken(module: nn.Module, slot: str) -> Drop:
    """The drop in a slot of the module that a hook of ours is called with."""
    slots = module.__dict__.get(KEY)
    if slots is None:
        raise RuntimeError(
            f"a {type(module).__name__} was given the hooks of a module to which a policy is attached (were modules "
            "fused?): call detach() first, fuse, and attach again"
        )
    drop: Drop = slots[slot]
    return drop


def on_output(module: nn.Module, args: Any, output: Any) -> Any:
    """Forward hook: the module's output under the drop in slot "output"."""
    return taken(module, "output")(output) if module.training else None


def on_channels_last_output(module: nn.Module, args: Any, output: Any) -> Any:
    """The same, of a module whose output is (N, H, W, C): to the drop it is (N, C, H, W), and no value moves."""
    return taken(module, "output")(output.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) if module.training else None


def on_input(module: nn.Module, args: Any) -> Any:
    """Forward pre-hook: the module's first positional argument under the drop in slot "input"."""
    return (taken(module, "input")(args[0]), *args[1:]) if module.training else None


def put_on_output(module: nn.Module, drop: Drop, *, channels_last: bool = False) -> None:
    _fill(module, "output", drop)
    module.register_forward_hook(on_channels_last_output if channels_last else on_output)


def put_on_input(module: nn.Module, drop: Drop) -> None:
    _fill(module, "input", drop)
    module.register_forward_pre_hook(on_input)


def _fill(module: nn.Module, slot: str, drop: Drop) -> None:
    slots = store(module)
    assert slot not in slots, f"slot {slot!r} of {type(module).__name__} is taken"
    slots[slot] = drop


def undo(function: Undo) -> Undo:
    """Register what takes a mechanism off one module that has our slots: a decorator for module-level functions."""
    _UNDO.append(function)
    return function


def remove_all(model: nn.Module) -> None:
    """Take every drop off a model, or off a copy of one: it is then as it was before `attach`."""
    for module in model.modules():
        if KEY in module.__dict__:
            for take_off in _UNDO:
                take_off(module)
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for number, hook in list(hooks.items()):
                if (getattr(hook, "__module__", None) or "").startswith("autodropout.attach."):
                    del hooks[number]
                    for flags in (
                        module._forward_hooks_with_kwargs,
                        module._forward_pre_hooks_with_kwargs,
                        module._forward_hooks_always_called,
                    ):
                        flags.pop(number, None)
        module.__dict__.pop(KEY, None)
        if module.__dict__.get(_SCRIPTED) is refuse_script:
            del module.__dict__[_SCRIPTED]
