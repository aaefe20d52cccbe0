"""The normalizations a forward pass runs on feature maps, each with the place right behind it.

Most only normalize: the place is the module's output. Some carry their activation (timm's fuse the two): the place is
then the input of the child they call on the normalized tensor, between normalization and activation.

A detector's frozen batch normalization is no `nn.BatchNorm2d` but `x * scale + shift` by hand. It is known by the
running statistics that it keeps, and drops while its module is in training mode, as any other.

Layer normalizations are Transformers' as well, which may have images of (N, H, W, C), too. They are a ConvNet's where
they lie in a residual block of convolutions without attention, as ConvNeXt's do: of (N, H, W, C), or between two
permutations.
"""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from autodropout.attach.convnet.places import ModuleInput, ModuleOutput
from autodropout.attach.convnet.residual import HARMLESS, PRODUCTS, SUMS, Function, Residual, ancestors
from autodropout.attach.record import Call, Graph

NORMALIZATIONS = (_NormBase, nn.GroupNorm)  # batch (synchronized too) and instance normalization; group normalization
NORMALIZING: frozenset[Function] = frozenset(
    {F.batch_norm, F.instance_norm, F.group_norm, torch.batch_norm, torch.instance_norm, torch.group_norm}
)
OTHER_MAPS = {3: "(N, C, T)", 5: "(N, C, T, H, W)"}  # of sound and series, of videos and volumes
LAYER_NORMALIZING: frozenset[Function] = frozenset({F.layer_norm, torch.layer_norm})
PERMUTATIONS: frozenset[Function | None] = frozenset({Tensor.permute, torch.permute})
ATTENTION: frozenset[Function] = frozenset({F.scaled_dot_product_attention, F.softmax, torch.softmax, Tensor.softmax})
AFFINE: frozenset[Function | None] = (
    SUMS | PRODUCTS | {torch.sub, Tensor.sub, Tensor.__sub__, torch.div, Tensor.div, Tensor.__truediv__}
)


@dataclass(frozen=True)
class Normalization:
    """One normalization module, as its first run shows it."""

    path: str
    node: int  # the normalized tensor
    shape: tuple[int, ...]  # (N, C, H, W), whatever the order of its axes
    place: ModuleInput | ModuleOutput
    zeros_stay: bool = True  # whether what it drops for a whole sample is zero at the block's sum


def find_normalizations(graph: Graph, model: nn.Module) -> tuple[list[Normalization], list[str]]:
    """The normalizations of 4-D tensors in forward order, those in gates left out, and what cannot be reached."""
    runs = Counter(call.path for call in graph.calls)
    gated = _gated(graph)
    found: dict[str, Normalization] = {}
    unreached: list[str] = []
    for index, call in enumerate(graph.calls):
        module = model.get_submodule(call.path)
        if call.path in found or call.output is None or not is_normalization(module):
            continue
        node = _normalized(graph, call)
        if node is None and not isinstance(module, NORMALIZATIONS):
            continue  # it keeps statistics of something, and normalizes nothing
        node = call.output if node is None else node
        shape = graph.nodes[node].shape
        if len(shape) in OTHER_MAPS:
            unreached.append(f"{call.path}: its output is {OTHER_MAPS[len(shape)]}: patterns are for (N, C, H, W)")
        if len(shape) != 4 or gated >> node & 1:
            continue
        place = _behind(graph, index, node, runs)
        if place is None:
            unreached.append(f"{call.path}: applies its activation itself, with no module between the two")
        else:
            found[call.path] = Normalization(call.path, node, shape, place)
    return sorted(found.values(), key=lambda norm: norm.node), list(dict.fromkeys(unreached))


def find_layer_normalizations(graph: Graph, model: nn.Module, residuals: list[Residual]) -> list[Normalization]:
    """Those of 4-D tensors in residual blocks, in forward order; without any in gates, or with an activation inside."""
    gated = _gated(graph)
    attending = sum(1 << number for number, node in enumerate(graph.nodes) if node.function in ATTENTION)
    found: dict[str, Normalization] = {}
    for call in graph.calls:
        node = call.output
        if call.path in found or node is None or not isinstance(model.get_submodule(call.path), nn.LayerNorm):
            continue
        block = next((one for one in residuals if (one.main | one.shortcut) >> node & 1), None)
        shape = graph.nodes[node].shape
        if block is None or block.main & attending or len(shape) != 4 or gated >> node & 1:
            continue
        permuted = graph.nodes[node].function in PERMUTATIONS
        normalized = graph.nodes[node].inputs[0] if permuted else node
        if graph.nodes[normalized].function not in LAYER_NORMALIZING:
            continue
        if not permuted:
            shape = (shape[0], shape[3], shape[1], shape[2])
        if shape[2:] == graph.nodes[block.total].shape[2:]:  # else these are no rows and columns of the block's map
            place = ModuleOutput(call.path, channels_last=not permuted)
            # Behind it come linear layers with biases: no site for stochastic depth.
            found[call.path] = Normalization(call.path, node, shape, place, zeros_stay=False)
    return list(found.values())


def is_normalization(module: nn.Module) -> bool:
    """Whether a module is one of torch's, or keeps running statistics as they do."""
    kept = (getattr(module, name, None) for name in ("running_mean", "running_var"))
    return isinstance(module, NORMALIZATIONS) or all(isinstance(one, Tensor) for one in kept)


def _normalized(graph: Graph, call: Call) -> int | None:
    """The node in which a run of such a module normalizes, by a function or by hand; None if that is not seen."""
    inside = range(call.first, call.end)
    node = next((number for number in inside if graph.nodes[number].function in NORMALIZING), None)
    if node is not None:
        return node
    last = call.arguments[:1]
    for number in inside:
        if graph.nodes[number].inputs == last and graph.nodes[number].function in AFFINE:
            last, node = (number,), number
    return node


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
