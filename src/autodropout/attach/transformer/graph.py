"""Record one eval forward of a Transformer: which tensor was made from which, by which function, inside which module
call.

The ConvNets' recording (`record.py`) asks only for the order of normalizations and sums. Attention asks for more:
keyword arguments and tuples that modules pass around, functions that merely change a shape (to follow a head's
channels back to the projection they come from), and calls of Hugging Face's attention interface, which are no module
calls. Hence a graph of its own.

    tensor 7 ──linear──> tensor 8 ──view──> tensor 9 ...     nodes, in the order they were made
    └─ layer.0.attention.query ┘                              calls: arguments and outputs are nodes

A function that returns its argument (dropout in eval mode) gives a node of its own here: in training it would be
another tensor.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from autodropout.attach.example import call
from autodropout.attach.record import quiet, tensors_in, version
from autodropout.attach.transformer import interface
from autodropout.attach.transformer.hooks import Argument, Item

Function = Callable[..., Any]

ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax}
ATTENTION = {F.scaled_dot_product_attention}
CONTRACT = {  # products that sum over a channel or a token dimension
    F.linear, torch.addmm, torch.baddbmm, torch.bmm, torch.einsum, torch.matmul, torch.mm,
    Tensor.addmm, Tensor.baddbmm, Tensor.bmm, Tensor.matmul, Tensor.mm, Tensor.__matmul__, Tensor.__rmatmul__,
}  # fmt: skip
CONVOLVE = {  # channels are the second axis of what they make
    F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, torch.conv1d,
    torch.conv2d, torch.conv3d, torch.convolution,
}  # fmt: skip
RESHAPE = {  # functions that move elements and change none
    torch.chunk, torch.flatten, torch.movedim, torch.permute, torch.reshape, torch.split, torch.squeeze, torch.swapaxes,
    torch.transpose, torch.unbind, torch.unflatten, torch.unsqueeze, Tensor.chunk, Tensor.contiguous, Tensor.expand,
    Tensor.flatten, Tensor.movedim, Tensor.permute, Tensor.reshape, Tensor.split, Tensor.squeeze, Tensor.swapaxes,
    Tensor.transpose, Tensor.unbind, Tensor.unflatten, Tensor.unsqueeze, Tensor.view, Tensor.__getitem__,
    Tensor.mT.__get__,  # type: ignore[attr-defined]  # to a type checker it is a tensor
}  # fmt: skip
KEEP = {F.dropout, torch.dropout, Tensor.clone, Tensor.contiguous, Tensor.float, Tensor.to, Tensor.type}  # in eval mode
SCALE = {torch.div, torch.mul, Tensor.div, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.__truediv__}


@dataclass(frozen=True)
class Node:
    """One tensor, as one function made it."""

    function: Function | None  # None: an input of the model, or made by what no function mode sees
    inputs: tuple[int, ...]  # in the order they were passed; parameters and constants given directly are no nodes
    shape: tuple[int, ...]
    call: int  # the innermost call it was made in
    weighted: bool = False  # a product with a matrix that is no node: a linear layer, as a module or not
    replay: Callable[[Tensor], Tensor] | None = None  # for `RESHAPE`: the same move on another tensor


@dataclass
class Call:
    """One run of a module, or (with `attend` set) one call of the attention interface by the module around it."""

    path: str
    module: nn.Module
    parent: int | None
    arguments: dict[Argument, int]  # tensors of the graph that were passed directly
    first: int  # nodes made during the call: range(first, end)
    end: int = -1
    outputs: dict[Item, int] = field(default_factory=dict)
    attend: interface.Attend | None = None

    def holds(self, node: int) -> bool:
        return self.first <= node < self.end


@dataclass
class Graph:
    """One forward pass. Nodes and calls stand in the order in which they began; `calls[0]` is the model itself."""

    nodes: list[Node] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    consumers: list[list[int]] = field(default_factory=list)  # for each node, the nodes made from it
    ancestors: list[int] = field(
        default_factory=list
    )  # for each node, a bit per node it was made from, itself included

    def close(self) -> None:
        """Fill in what follows from the nodes."""
        self.consumers = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            bits = 1 << number
            for source in dict.fromkeys(node.inputs):
                bits |= self.ancestors[source]
                self.consumers[source].append(number)
            self.ancestors.append(bits)

    def descends(self, node: int, source: int) -> bool:
        """Whether `node` is `source` or was made, at any distance, from it."""
        return bool(self.ancestors[node] >> source & 1)

    def between(self, source: int, node: int) -> Iterator[Node]:
        """What was made from `source` on the way to `node`, itself included."""
        return (
            self.nodes[at]
            for at in range(source + 1, node + 1)
            if self.descends(at, source) and self.descends(node, at)
        )

    def within(self, number: int, outer: int) -> bool:
        """Whether call `number` is `outer` or was made, at any depth, from it."""
        at: int | None = number
        while at is not None and at > outer:
            at = self.calls[at].parent
        return at == outer

    def around(self, node: int) -> Iterator[int]:
        """The calls a node was made in, innermost first."""
        at: int | None = self.nodes[node].call
        while at is not None:
            yield at
            at = self.calls[at].parent


def record(model: nn.Module, example: Any) -> Graph:
    """The dataflow of one eval forward. The model, its statistics and the random states stay as they are."""
    recorder = _Recorder(model)
    with quiet(model), recorder.hooked(), interface.watched(recorder.attention), recorder:
        for tensor in tensors_in(example):
            recorder.add(Node(None, (), tuple(tensor.shape), 0), tensor)
        call(model, example)
    recorder.graph.close()
    return recorder.graph


class _Recorder(TorchFunctionMode):
    """Fills a graph while the model runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = Graph()
        self.paths = {module: path for path, module in model.named_modules()}
        self.node_of = WeakTensorKeyDictionary()  # weak: a recording must not hold all activations at once
        self.constant: set[int] = set()  # nodes made of parameters and constants alone
        self.running: list[int] = []

    @contextmanager
    def hooked(self) -> Iterator[None]:
        handles = []
        try:
            for module in self.paths:
                handles.append(module.register_forward_pre_hook(self.enter, with_kwargs=True))
                handles.append(module.register_forward_hook(self.leave))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def add(self, node: Node, tensor: Tensor) -> None:
        self.node_of[tensor] = len(self.graph.nodes)
        self.graph.nodes.append(node)

    def is_constant(self, tensor: Tensor) -> bool:
        return tensor not in self.node_of or self.node_of[tensor] in self.constant

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = list(tensors_in((args, kwargs)))
        known = [(tensor, version(tensor)) for tensor in given if tensor in self.node_of]
        inputs = tuple(self.node_of[tensor] for tensor, _ in known)
        output = func(*args, **kwargs)
        if any(output is tensor and version(tensor) == before is not None for tensor, before in known):
            output = output.view_as(output)  # it returned its argument: a tensor of its own, for a node of its own
        made = args[0] if func is Tensor.__setitem__ else output
        inside = self.running[-1] if self.running else 0
        weighted = func in CONTRACT and any(tensor.dim() == 2 and self.is_constant(tensor) for tensor in given)
        if not inputs or all(node in self.constant for node in inputs):
            first = len(self.graph.nodes)
            self.constant.update(range(first, first + sum(1 for _ in tensors_in(made))))
        for number, tensor in enumerate(tensors_in(made)):
            move = _Move(func, args, kwargs, number) if func in RESHAPE and len(inputs) == 1 else None
            self.add(Node(func, inputs, tuple(tensor.shape), inside, weighted, move), tensor)
        return output

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = {
            argument: self.node_of[value]
            for argument, value in _arguments(module, args, kwargs)
            if value in self.node_of
        }
        self.open(Call(self.paths[module], module, None, arguments, first=len(self.graph.nodes)))

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        while (
            self.graph.calls[self.running[-1]].module is not module
        ):  # a call inside it raised, and the module went on
            self.close(None)
        known = set(self.graph.calls[self.running[-1]].arguments.values())
        replaced = None
        node = self.node_of[output] if isinstance(output, Tensor) and output in self.node_of else None
        if node is not None and node in known:
            with torch._C.DisableTorchFunction():
                replaced = output.view_as(output)
            self.add(Node(None, (node,), tuple(output.shape), self.running[-1]), replaced)
            output = replaced
        self.close(output)
        return replaced

    def open(self, started: Call) -> None:
        started.parent = self.running[-1] if self.running else None
        self.running.append(len(self.graph.calls))
        self.graph.calls.append(started)

    def close(self, output: Any) -> None:
        ended = self.graph.calls[self.running.pop()]
        ended.end = len(self.graph.nodes)
        items = dict(enumerate(output)) if isinstance(output, tuple) else {None: output}
        ended.outputs = {
            item: self.node_of[value]
            for item, value in items.items()
            if isinstance(value, Tensor) and value in self.node_of
        }

    def attention(
        self, module: nn.Module, tensors: tuple[Tensor, ...], run: Callable[[], tuple[Any, interface.Attend]]
    ) -> Any:
        """One call of the attention interface."""
        arguments = {
            Argument(at, None): self.node_of[tensor] for at, tensor in enumerate(tensors) if tensor in self.node_of
        }
        self.open(Call(self.paths.get(module, ""), module, None, arguments, first=len(self.graph.nodes)))
        started = self.graph.calls[-1]
        output, started.attend = run()
        self.close(output)
        return output


class _Move:
    """One recorded call of a reshaping function, to be repeated on another tensor of the same shape."""

    def __init__(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], item: int) -> None:
        self.function, self.kwargs, self.item = (
            function,
            {k: v for k, v in kwargs.items() if not isinstance(v, Tensor)},
            item,
        )
        self.args = tuple(arg for arg in args if not isinstance(arg, Tensor))

    def __call__(self, tensor: Tensor) -> Tensor:
        return list(tensors_in(self.function(tensor, *self.args, **self.kwargs)))[self.item]


def _arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Argument, Tensor]]:
    """The tensors passed to a module, each with both ways its signature allows to pass it."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [
        name for name, parameter in inspect.signature(module.forward).parameters.items() if parameter.kind in plain
    ]
    for position, value in enumerate(args):
        if isinstance(value, Tensor):
            yield Argument(position, names[position] if position < len(names) else None), value
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            yield Argument(names.index(name) if name in names else None, name), value
