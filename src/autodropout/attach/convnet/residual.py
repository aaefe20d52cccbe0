"""Residual blocks in a recorded forward pass: which sums add a shortcut to a branch, and which is which.

    join ──> main: conv, batch_norm, relu, conv, batch_norm ──┐
      └────> shortcut: nothing, a pooling, or conv, batch_norm ─> total

A sum of two 4-D tensors of one shape that come from a common tensor, the join, ends a block; the branch with fewer
convolutions since the join is the shortcut. The block is the nearest module run that holds both branches and the sum.
Two convolutions side by side with nothing but factors between are one linear map, as a low-rank adapter and what it
adapts: no block.

Sets of nodes are integers used as bit sets: bit `n` stands for node `n`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from autodropout.attach.record import Graph, Node

Function = Callable[..., Any]
SUMS: frozenset[Function] = frozenset({torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__})
CONVOLUTIONS: frozenset[Function] = frozenset(
    {F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, torch.convolution}
)
PRODUCTS: frozenset[Function] = frozenset({torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__imul__})
HARMLESS: frozenset[Function | None] = frozenset(  # change no value. None: a module handed its input through
    {None, Tensor.to, Tensor.type, Tensor.type_as, Tensor.float, Tensor.half, Tensor.bfloat16, Tensor.contiguous}
)
DROPOUTS: frozenset[Function | None] = frozenset({F.dropout, F.dropout2d, torch.dropout})  # traced in eval mode


@dataclass(frozen=True)
class Residual:
    """One residual block of the pass."""

    total: int  # node of the sum
    join: int  # node both branches come from
    main: int  # set of the nodes of the main branch, join and sum excluded
    shortcut: int  # set of the nodes of the shortcut; empty for an identity
    shortcut_end: int  # the sum's operand that is the shortcut: the join itself for an identity
    call: int  # the block's run


def members(nodes: int) -> Iterator[int]:
    """The nodes of a set, ascending."""
    while nodes:
        low = nodes & -nodes
        yield low.bit_length() - 1
        nodes ^= low


def ancestors(graph: Graph) -> list[int]:
    """For each node, the set of nodes it was made from, itself included."""
    found: list[int] = []
    for number, node in enumerate(graph.nodes):
        since = 1 << number
        for source in node.inputs:
            since |= found[source]
        found.append(since)
    return found


def find_residuals(graph: Graph) -> tuple[list[Residual], list[str]]:
    """The residual blocks in the order of their sums, and the sums that look like one but cannot be told apart."""
    upstream = ancestors(graph)
    convolutions = sum(1 << number for number, node in enumerate(graph.nodes) if node.function in CONVOLUTIONS)
    linear = sum(1 << number for number, node in enumerate(graph.nodes) if _is_linear(node))
    found: list[Residual] = []
    ambiguous: list[str] = []
    doubtful: list[Residual] = []
    for total, node in enumerate(graph.nodes):
        if node.function not in SUMS or len(node.shape) != 4 or len(node.inputs) != 2:
            continue
        if any(graph.nodes[source].shape != node.shape for source in node.inputs):
            continue
        common = upstream[node.inputs[0]] & upstream[node.inputs[1]]
        if not common:
            continue
        join = common.bit_length() - 1  # the youngest common tensor
        after = _descendants(graph, join)
        branches = [(upstream[source] & after, source) for source in node.inputs]
        (shortcut, shortcut_end), (main, main_end) = sorted(branches, key=lambda b: (b[0] & convolutions).bit_count())
        if not main & convolutions:
            continue  # arithmetic of an activation, not a branch
        if shortcut & convolutions and not (main | shortcut) & ~linear:
            continue
        call = _nearest_call(graph, total, main | shortcut)
        residual = Residual(total, join, main, shortcut, shortcut_end, call)
        doubt = _doubt(graph, residual, main_end, (found, doubtful), common & ~upstream[join], convolutions)
        if doubt is None:
            found.append(residual)
        else:
            doubtful.append(residual)
            ambiguous.append(f"{graph.calls[call].path or 'the model'}: {doubt}")
    return found, list(dict.fromkeys(ambiguous))


def _is_linear(node: Node) -> bool:
    """Whether a node is a convolution, a multiple, or no change."""
    multiple = node.function in PRODUCTS and len(node.inputs) == 1
    return multiple or node.function in CONVOLUTIONS | HARMLESS | DROPOUTS


def _doubt(
    graph: Graph,
    residual: Residual,
    main_end: int,
    sums: tuple[list[Residual], list[Residual]],
    other_joins: int,
    convolutions: int,
) -> str | None:
    """Why a sum cannot be split into branch and shortcut; None when it can. `sums`: those before, clear and not."""
    earlier, doubtful = sums
    count = (residual.shortcut & convolutions).bit_count()
    if count == (residual.main & convolutions).bit_count():
        return f"adds two branches of {count} convolution{'s' * (count > 1)} each: neither is the shortcut"
    if other_joins:
        return "adds two branches that meet more than once before: neither is a shortcut of the other"
    if any(residual.shortcut >> other.total & 1 for other in earlier):
        return "adds two branches that both hold residual blocks: neither is the shortcut"
    # Of branches side by side, a sum of sums, one without any convolution is still their shortcut.
    before = earlier + doubtful * bool(count)
    if any(other.join == residual.join and other.total == _origin(graph, main_end) for other in before):
        return "adds more than two branches: which of them is the shortcut is not clear"
    channels, joined = graph.nodes[residual.shortcut_end].shape[1], graph.nodes[residual.join].shape
    if not count and (len(joined) != 4 or channels < joined[1]):
        return "adds a slice of a tensor to what was made from it: that is no shortcut"
    return None


def _descendants(graph: Graph, start: int) -> int:
    """The nodes made from `start`, itself excluded."""
    found = 1 << start
    for number in range(start + 1, len(graph.nodes)):
        if any(found >> source & 1 for source in graph.nodes[number].inputs):
            found |= 1 << number
    return found & ~(1 << start)


def _nearest_call(graph: Graph, total: int, branches: int) -> int:
    """The innermost run that makes the sum and everything in both branches."""
    earliest = next(members(branches))
    call = graph.nodes[total].call
    while graph.calls[call].first > earliest:
        parent = graph.calls[call].parent
        assert parent is not None, "the model's own run holds every node but its inputs"
        call = parent
    return call


def _origin(graph: Graph, node: int) -> int:
    """The node behind modules that hand their input through, as stochastic depth does in eval mode."""
    while graph.nodes[node].function is None and graph.nodes[node].inputs:
        node = graph.nodes[node].inputs[0]
    return node
