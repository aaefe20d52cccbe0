"""The normalizations a forward pass runs on feature maps, each with the place right behind it.

Most only normalize: the place is the module's output. Some carry their activation (timm's fuse the two): the place is
then the input of the child they call on the normalized tensor, between normalization and activation.
"""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from autodropout.attach.convnet.places import ModuleInput, ModuleOutput
from autodropout.attach.convnet.residual import Function, ancestors
from autodropout.attach.record import Call, Graph

NORMALIZATIONS = (_NormBase, nn.GroupNorm)  # batch (synchronized too) and instance normalization; group normalization
NORMALIZING: frozenset[Function] = frozenset(
    {F.batch_norm, F.instance_norm, F.group_norm, torch.batch_norm, torch.instance_norm, torch.group_norm}
)
HARMLESS: frozenset[Function | None] = frozenset(  # may follow: no activation. None: a module handed its input through
    {None, Tensor.to, Tensor.type, Tensor.type_as, Tensor.float, Tensor.half, Tensor.bfloat16, Tensor.contiguous}
)
PRODUCTS: frozenset[Function] = frozenset({torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__imul__})


@dataclass(frozen=True)
class Normalization:
    """One normalization module, as its first run shows it."""

    path: str
    node: int  # the normalized tensor
    shape: tuple[int, ...]  # (N, C, H, W)
    place: ModuleInput | ModuleOutput


def find_normalizations(graph: Graph, model: nn.Module) -> tuple[list[Normalization], list[str]]:
    """The normalizations of 4-D tensors in forward order, those in gates left out, and those that cannot be reached."""
    runs = Counter(call.path for call in graph.calls)
    gated = _gated(graph)
    found: dict[str, Normalization] = {}
    unreached: list[str] = []
    for index, call in enumerate(graph.calls):
        if call.path in found or call.output is None or not isinstance(model.get_submodule(call.path), NORMALIZATIONS):
            continue
        node = next((n for n in range(call.first, call.end) if graph.nodes[n].function in NORMALIZING), call.output)
        shape = graph.nodes[node].shape
        if len(shape) != 4 or gated >> node & 1:
            continue
        place = _behind(graph, index, node, runs)
        if place is None:
            unreached.append(f"{call.path}: applies its activation itself, with no module between the two")
        else:
            found[call.path] = Normalization(call.path, node, shape, place)
    return sorted(found.values(), key=lambda norm: norm.node), list(dict.fromkeys(unreached))


def _behind(graph: Graph, index: int, node: int, runs: Counter[str]) -> ModuleInput | ModuleOutput | None:
    """The place behind the normalization that run `index` does in `node`."""
    call = graph.calls[index]
    for inner in graph.calls[index + 1 :]:
        if inner.parent == index and inner.arguments[:1] == (node,) and runs[inner.path] == runs[call.path]:
            return ModuleInput(inner.path)
    return ModuleOutput(call.path) if _nothing_happens(graph, call, node) else None


def _nothing_happens(graph: Graph, call: Call, node: int) -> bool:
    """Whether the run's output is the tensor `node`, but for a change of type."""
    at = call.output
    while at is not None and at > node and graph.nodes[at].function in HARMLESS and len(graph.nodes[at].inputs) == 1:
        at = graph.nodes[at].inputs[0]
    return at == node


def _gated(graph: Graph) -> int:
    """The set of nodes in gates: what a product broadcasts over feature maps, as squeeze-and-excitation does."""
    upstream = ancestors(graph)
    found = 0
    for node in graph.nodes:
        if node.function in PRODUCTS and len(node.shape) >= 4 and len(node.inputs) == 2:
            for gate, features in (node.inputs, node.inputs[::-1]):
                if graph.nodes[features].shape == node.shape != graph.nodes[gate].shape:
                    found |= upstream[gate] & ~upstream[features]
    return found
