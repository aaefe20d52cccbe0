"""What runs at a Transformer's sites outside attention: one hook before a module, one after it, and the places that
fill them.

Masking what goes into or comes out of a module is one line. The skip input of a sum is harder, since no module need
hold it: it must be masked for the sum and for nobody else. Three ways, the first that fits is taken (`skips.py`
chooses):

1. Swap. The skip input enters the module that adds, or leaves a module: replace it there by its masked self, which
   carries the original along as an attribute; the modules of the branch put the original back when they are given it.
   Exact.
2. Carry. The skip input is itself a sum: the first module of the branch computes `change = mask(x) - x`; the tensors
   between the branch's modules carry it along, and the last one adds it to its output, so that `x + (a + change) =
   mask(x) + a`.
3. Stash. The branch has functions between its modules: the change waits on the side until the module that adds, or
   the last one before the sum, is done. The one way that `torch.compile` refuses inside `torch.utils.checkpoint`.

Attributes on tensors and not on modules: they are private to one forward, so recomputation, threads and compiled
graphs agree.

A mask is made where its module trains. What was made is put back, carried and added by whatever module is there, in
eval mode or not: parts of a model may be frozen.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autodropout.attach.hooks import KEY, store
from autodropout.attach.transformer.layouts import Layout
from autodropout.layers.drop import Drop

SLOT = "host"
ORIGINAL = "_autodropout_original"  # on a masked skip input: the tensor it was
CHANGE = (
    "_autodropout_change"  # on a tensor between two modules of a branch: what the skip input's mask adds to the sum
)

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Item = int | None  # of a module's output: a place in the tuple it returns, or None for all of it


@dataclass(frozen=True)
class Argument:
    """Where a module takes a tensor: by name and, when its signature has one, by position."""

    position: int | None
    name: str | None

    def get(self, args: Args, kwargs: Kwargs) -> Any:
        if self.name is not None and self.name in kwargs:
            return kwargs[self.name]
        return args[self.position] if self.position is not None and self.position < len(args) else None

    def set(self, args: Args, kwargs: Kwargs, value: Any) -> tuple[Args, Kwargs]:
        if self.name is not None and self.name in kwargs:
            return args, {**kwargs, self.name: value}
        assert self.position is not None
        return (*args[: self.position], value, *args[self.position + 1 :]), kwargs


@dataclass(frozen=True)
class Mask:
    """A drop, and how the tensor is shown to it."""

    drop: Drop
    layout: Layout

    def __call__(self, h: Tensor) -> Tensor:
        return self.layout.apply(self.drop, h) if self.drop.active else h


@dataclass
class Stash:
    """Holds a change between two modules of one forward."""

    mask: Mask
    first: nn.Module  # where the change is made, if that trains
    change: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins empty: what was cut short, as a checkpoint's second forward is, leaves its change here."""
        return {**self.__dict__, "change": None}


@dataclass
class Host:
    """What the two hooks do on one module, in this order."""

    restores: bool = False
    swaps: list[tuple[Argument, Mask]] = field(default_factory=list)
    changes: list[tuple[Argument, Mask]] = field(default_factory=list)
    stashes: list[tuple[Argument, Stash]] = field(default_factory=list)
    inputs: list[tuple[Argument, Mask]] = field(default_factory=list)
    # the module runs
    outputs: list[tuple[Item, Mask]] = field(default_factory=list)
    carries: list[tuple[Argument, Item]] = field(default_factory=list)
    lands: list[tuple[Argument, Item]] = field(default_factory=list)
    unstashes: list[tuple[Item, Stash]] = field(default_factory=list)
    swaps_output: list[tuple[Item, Mask]] = field(default_factory=list)

    def follows(self, argument: Argument) -> bool:
        """Whether a change that arrives with this argument is for this module, and not for one around it."""
        return any(argument == other for other, _ in self.carries) or any(argument == other for other, _ in self.lands)


def host(module: nn.Module) -> Host:
    """This module's host, with its two hooks; made when missing."""
    slots = store(module)
    if SLOT not in slots:
        slots[SLOT] = Host()
        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave, with_kwargs=True)
    found: Host = slots[SLOT]
    return found


def enter(module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
    """Forward pre-hook."""
    here: Host = module.__dict__[KEY][SLOT]
    if here.restores:
        args = tuple(_original(value) for value in args)
        kwargs = {name: _original(value) for name, value in kwargs.items()}
    if not module.training:
        return (args, kwargs) if here.restores else None
    for argument, mask in here.swaps:
        args, kwargs = argument.set(args, kwargs, _swapped(mask, argument.get(args, kwargs)))
    for argument, mask in here.changes:
        x = argument.get(args, kwargs)
        masked = mask(x)
        if masked is not x:
            alias = x.view_as(x)  # the attribute must not show on `x` itself, which others hold
            setattr(alias, CHANGE, masked - x)
            args, kwargs = argument.set(args, kwargs, alias)
    for argument, stash in here.stashes:
        x = argument.get(args, kwargs)
        masked = stash.mask(x)
        stash.change = masked - x if masked is not x else None
    for argument, mask in here.inputs:
        x = argument.get(args, kwargs)
        masked = mask(x)
        if masked is not x and here.follows(argument) and getattr(x, CHANGE, None) is not None:
            _hand_on(x, masked)
        args, kwargs = argument.set(args, kwargs, masked)
    return args, kwargs


def leave(module: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> Any:
    """Forward hook."""
    here: Host = module.__dict__[KEY][SLOT]
    for item, mask in here.outputs if module.training else ():
        output = _put(output, item, mask(_take(output, item)))
    output = _brought(here, args, kwargs, output)
    for item, mask in here.swaps_output if module.training else ():
        output = _put(output, item, _swapped(mask, _take(output, item)))
    return output


def _brought(here: Host, args: Args, kwargs: Kwargs, output: Any) -> Any:
    """The output, with the changes that have arrived: carried on, or added where their branch ends."""
    for argument, item in here.carries:
        source = argument.get(args, kwargs)
        if getattr(source, CHANGE, None) is not None:
            _hand_on(source, _take(output, item))
    for argument, item in here.lands:
        source = argument.get(args, kwargs)
        change = getattr(source, CHANGE, None)
        if change is not None:
            _same_side(change)
            output = _put(output, item, _take(output, item) + change)
            setattr(source, CHANGE, None)
    for item, stash in here.unstashes:
        if stash.first.training and stash.mask.drop.active:
            if stash.change is None:
                raise RuntimeError("a skip input and the sum it enters were not run together; checkpoint whole blocks")
            _same_side(stash.change)
            output, stash.change = _put(output, item, _take(output, item) + stash.change), None
    return output


def _swapped(mask: Mask, x: Tensor) -> Tensor:
    masked = mask(x)
    if masked is not x:
        setattr(masked, ORIGINAL, x)
    return masked


def _original(value: Any) -> Any:
    if not isinstance(value, Tensor) or getattr(value, ORIGINAL, None) is None:
        return value
    _same_side(value)
    return getattr(value, ORIGINAL)


def _hand_on(source: Tensor, target: Tensor) -> None:
    setattr(target, CHANGE, getattr(source, CHANGE))
    setattr(source, CHANGE, None)  # autograd may keep `source`, and would keep the change with it


def _same_side(value: Tensor) -> None:
    """Reentrant checkpointing hands detached copies to the recomputation: what tensors carry does not get across."""
    if value.requires_grad and not torch.is_grad_enabled():
        raise RuntimeError(
            "a reentrant checkpoint (or no_grad) begins between a skip input and its branch, where the mask of the "
            "skip input cannot follow: checkpoint whole blocks, or pass use_reentrant=False"
        )


def _take(output: Any, item: Item) -> Any:
    return output if item is None else output[item]


def _put(output: Any, item: Item, value: Tensor) -> Any:
    return value if item is None else (*output[:item], value, *output[item + 1 :])


@dataclass(frozen=True)
class OnInput:
    """Mask what a module is given."""

    path: str
    argument: Argument
    layout: Layout

    def put(self, model: nn.Module, drop: Drop) -> None:
        host(model.get_submodule(self.path)).inputs.append((self.argument, Mask(drop, self.layout)))


@dataclass(frozen=True)
class OnOutput:
    """Mask what a module returns."""

    path: str
    item: Item
    layout: Layout

    def put(self, model: nn.Module, drop: Drop) -> None:
        host(model.get_submodule(self.path)).outputs.append((self.item, Mask(drop, self.layout)))


@dataclass(frozen=True)
class Swap:
    """Mask a skip input where it enters (`source` an argument) or leaves (an item) a module; `branch` undoes it."""

    path: str
    source: Argument | Item
    branch: tuple[str, ...]
    layout: Layout

    def put(self, model: nn.Module, drop: Drop) -> None:
        here, mask = host(model.get_submodule(self.path)), Mask(drop, self.layout)
        if isinstance(self.source, Argument):
            here.swaps.append((self.source, mask))
        else:
            here.swaps_output.append((self.source, mask))
        for path in self.branch:
            host(model.get_submodule(path)).restores = True


@dataclass(frozen=True)
class Hop:
    """One module of a branch: the argument it takes from the module before it, and the item it gives to the next."""

    path: str
    argument: Argument
    item: Item


@dataclass(frozen=True)
class Carry:
    """Mask a skip input by a change that the branch's modules carry to the sum."""

    hops: tuple[Hop, ...]
    layout: Layout

    @property
    def path(self) -> str:
        return self.hops[0].path

    def put(self, model: nn.Module, drop: Drop) -> None:
        first, last = self.hops[0], self.hops[-1]
        host(model.get_submodule(first.path)).changes.append((first.argument, Mask(drop, self.layout)))
        for hop in self.hops[:-1]:
            _once(host(model.get_submodule(hop.path)).carries, (hop.argument, hop.item))
        _once(host(model.get_submodule(last.path)).lands, (last.argument, last.item))


@dataclass(frozen=True)
class SetAside:
    """Mask a skip input by a change that is stashed where the branch begins and added where the sum is done."""

    first: str
    argument: Argument
    last: str
    item: Item
    layout: Layout

    @property
    def path(self) -> str:
        return self.first

    def put(self, model: nn.Module, drop: Drop) -> None:
        first = model.get_submodule(self.first)
        stash = Stash(Mask(drop, self.layout), first)
        host(first).stashes.append((self.argument, stash))
        host(model.get_submodule(self.last)).unstashes.append((self.item, stash))


def _once(entries: list[tuple[Argument, Item]], entry: tuple[Argument, Item]) -> None:
    """A module that ends several branches (a dropout used twice) adds whatever change it is brought, once."""
    if entry not in entries:
        entries.append(entry)
