"""Follow the heads of an attention that is written out in a model's own code to the projections before and after it,
and the channels of a sum to the product that made them.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from autodropout.attach.transformer.graph import CONTRACT, CONVOLVE, Graph
from autodropout.attach.transformer.layouts import Heads
from autodropout.attach.transformer.linears import Linear
from autodropout.attach.transformer.parts import Parts


def projected(parts: Parts, node: int | None) -> tuple[Linear, Heads] | None:
    """The linear layer whose output a query, key or value is a view of (up to rotation and norm), and which view."""
    if node is None:
        return None
    sources = {linear.output: linear for linear in parts.linears}
    way = list(_back(parts.graph, node, frozenset(sources)))
    if way[-1] not in sources:
        return None
    linear = sources[way[-1]]
    return _paired(linear, _layout(_moved(parts.graph, way), parts.graph.nodes[linear.output].shape))


def gathered(parts: Parts, result: int, projection: Linear) -> Heads | None:
    """How the heads of an attention's result lie in the input of the output projection."""
    way = list(_back(parts.graph, projection.input, frozenset({result})))
    if way[-1] != result:
        return None
    index = _moved(parts.graph, way)
    back = torch.argsort(index.flatten()).reshape(parts.graph.nodes[result].shape)
    return _layout(back, parts.graph.nodes[projection.input].shape)


def channel_axis(graph: Graph, node: int) -> int | None:
    """The axis of a node that holds its channels, as a linear layer or a convolution made them; None if not seen."""
    products = frozenset(at for at, one in enumerate(graph.nodes) if one.function in CONTRACT | CONVOLVE)
    way = list(_back(graph, node, products))
    source, shape = graph.nodes[way[-1]], graph.nodes[way[-1]].shape
    if way[-1] not in products or not (source.weighted or source.function in CONVOLVE):
        return None
    made = len(shape) - 1 if source.weighted else 1
    marks = torch.arange(shape[made]).reshape([-1 if axis == made else 1 for axis in range(len(shape))]).expand(shape)
    for at in reversed(way[:-1]):
        replay = graph.nodes[at].replay
        marks = marks if replay is None else replay(marks)
    for axis, size in enumerate(marks.shape):
        row = torch.arange(size).reshape([-1 if other == axis else 1 for other in range(marks.dim())])
        if torch.equal(marks, row.expand(marks.shape)) and size == shape[made]:
            return axis
    return None


def _paired(linear: Linear, heads: Heads | None) -> tuple[Linear, Heads] | None:
    return (linear, heads) if heads is not None else None


def _back(graph: Graph, node: int, ends: frozenset[int]) -> Iterator[int]:
    """From a node back to one of `ends`, through moves and functions that keep the shape (rotation, scaling)."""
    while True:
        yield node
        here = graph.nodes[node]
        if node in ends:
            return
        before = (
            here.inputs if here.replay is not None else [s for s in here.inputs if graph.nodes[s].shape == here.shape]
        )
        if not before:
            return
        node = before[0]


def _moved(graph: Graph, way: list[int]) -> Tensor:
    """Where each element of the first node of a way lay in its last."""
    shape = graph.nodes[way[-1]].shape
    index = torch.arange(math.prod(shape)).reshape(shape)
    for node in reversed(way[:-1]):
        replay = graph.nodes[node].replay
        index = index if replay is None else replay(index)
    return index


def _layout(index: Tensor, shape: tuple[int, ...]) -> Heads | None:
    """Keys may have tokens and channels swapped for the product; einsum takes heads after tokens."""
    ways = [index, index.transpose(-2, -1)] + ([index.transpose(1, 2)] if index.dim() == 4 else [])
    return next((heads for way in ways if (heads := Heads.of(way, shape)) is not None), None)
