"""Watch one eval forward of a model without leaving a trace on it.

`record` gives the dataflow as a small graph. A node is a tensor that some torch function made; an edge says that it
was made from another. A call is one run of a module, with the nodes made during it:

    x ──> conv ──> batch_norm ──> relu ──┐           nodes, numbered in the order they were made
    └──────────────────────────────────> add
    └── layer1.0.conv1 ┘                             calls, each a range of nodes
    └── layer1.0 ─────────────────────────┘

An operation in place makes a new node for the same tensor. What returns its input as it is (`nn.Identity`, dropout in
eval mode, a function or a module) gives another tensor here: who reads the input itself reads what it was before. A
module whose operations cannot be seen (TorchScript, `autograd.Function`) has one node.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from autodropout.attach.example import call


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients, nothing compiled; afterwards training flags and random states are what they were.

    Flags are set one by one: a model's own `train()` may have side effects, and its parts may differ (frozen norms).
    """
    lazy = next((name for name, parameter in model.named_parameters() if is_lazy(parameter)), None)
    if lazy is not None:
        raise ValueError(f"parameter {lazy!r} has no shape yet: run the model once before looking for its sites")
    flags = [(module, module.training) for module in model.modules()]
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if "torch._dynamo" in sys.modules:  # a model compiled before must run its Python, or nobody sees its operations
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            for module, _ in flags:
                module.training = False
            yield
        finally:
            for module, flag in flags:
                module.training = flag
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)


@dataclass(frozen=True)
class Node:
    """One tensor, as one function made it."""

    function: Callable[..., Any] | None  # None: an input of the model, or what a module returned unseen
    inputs: tuple[int, ...]  # the nodes it was made from; parameters and constants have none
    shape: tuple[int, ...]
    call: int  # the innermost call it was made in


@dataclass
class Call:
    """One run of a module of the model."""

    path: str
    parent: int | None  # the call it was made from
    arguments: tuple[int | None, ...]  # node of each positional argument, None where it is no tensor of the graph
    first: int  # nodes made during the call: range(first, end)
    end: int = -1
    output: int | None = None  # its node, when it is one tensor of the graph


@dataclass
class Graph:
    """One forward pass. Nodes and calls stand in the order in which they began; `calls[0]` is the model itself."""

    nodes: list[Node] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def within(self, call: int, outer: int) -> bool:
        """Whether `call` is `outer` or was made, at any depth, from it."""
        at: int | None = call
        while at is not None and at > outer:
            at = self.calls[at].parent
        return at == outer

    def child(self, outer: int, call: int) -> int | None:
        """The call made directly from `outer` that holds `call`; None for `outer` itself."""
        assert self.within(call, outer)
        below = None
        while call != outer:
            parent = self.calls[call].parent
            assert parent is not None
            below, call = call, parent
        return below

    def consumers(self) -> list[list[int]]:
        """For each node, the nodes made from it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for source in node.inputs:
                found[source].append(number)
        return found


def record(model: nn.Module, example: Any) -> Graph:
    """The dataflow of one eval forward. The model, its statistics and the random states stay as they are."""
    recorder = _Recorder(model)
    with quiet(model), recorder.watching():
        for tensor in tensors_in(example):
            recorder.add(None, (), tensor)
        call(model, example)
    return recorder.graph


class _Recorder(TorchFunctionMode):
    """Fills a graph while the model runs. Functions come through the mode, module calls through global hooks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = Graph()
        self.paths = {module: path for path, module in model.named_modules()}
        # Weak: a recording must not hold all activations at once.
        self.node_of: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        self.running: list[int] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        hooks = register_module_forward_pre_hook(self.enter), register_module_forward_hook(self.leave, with_kwargs=True)
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()
                # torch forgets this flag, and then warns at every compiled call that there are global hooks.
                _global_forward_hooks_with_kwargs.pop(hook.id, None)

    def add(self, function: Callable[..., Any] | None, inputs: tuple[int, ...], tensor: Tensor) -> None:
        self.node_of[tensor] = len(self.graph.nodes)
        self.graph.nodes.append(Node(function, inputs, tuple(tensor.shape), self.running[-1] if self.running else 0))

    def nodes_of(self, value: Any) -> tuple[int, ...]:
        known = (self.node_of.get(tensor) for tensor in tensors_in(value))
        return tuple(dict.fromkeys(node for node in known if node is not None))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [(tensor, version(tensor)) for tensor in tensors_in((args, kwargs or {})) if tensor in self.node_of]
        inputs = tuple(dict.fromkeys(self.node_of[tensor] for tensor, _ in given))
        output = func(*args, **(kwargs or {}))
        if any(output is tensor and version(tensor) == before is not None for tensor, before in given):
            with torch._C.DisableTorchFunction():
                output = output.view_as(output)
        if inputs:
            changed = args[0] if func is Tensor.__setitem__ else output
            for tensor in tensors_in(changed):
                self.add(func, inputs, tensor)
        return output

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if module in self.paths:
            parent = self.running[-1] if self.running else None
            arguments = tuple(self.node_of.get(arg) if isinstance(arg, Tensor) else None for arg in args)
            self.running.append(len(self.graph.calls))
            self.graph.calls.append(Call(self.paths[module], parent, arguments, first=len(self.graph.nodes)))

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if module not in self.paths:
            return None
        run = self.graph.calls[self.running[-1]]
        while run.path != self.paths[module]:  # a call inside it raised, and the module went on
            self.running.pop()
            run = self.graph.calls[self.running[-1]]
        replaced = None
        if isinstance(output, Tensor):
            node = self.node_of.get(output)
            inputs = self.nodes_of((args, kwargs))
            if node is not None and node < run.first:  # made before the call: the module handed it through
                with torch._C.DisableTorchFunction():
                    replaced = output.view_as(output)  # another tensor: whoever reads it reads this module's node
                self.add(None, (node,), replaced)
            elif node is None and inputs:
                self.add(None, inputs, output)
            run.output = self.node_of.get(output if replaced is None else replaced)
        run.end = len(self.graph.nodes)
        self.running.pop()
        return replaced


def version(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; what is made in inference mode does not count it."""
    return None if tensor.is_inference() else tensor._version


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
