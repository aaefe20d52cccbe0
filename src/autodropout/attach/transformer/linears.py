"""The linear layers of a recorded graph: modules whose output is the product of their input and a matrix of theirs."""

from dataclasses import dataclass

from torch.nn.utils.parametrize import ParametrizationList

from autodropout.attach.transformer.graph import ADD, KEEP, RESHAPE, SCALE, Graph
from autodropout.attach.transformer.hooks import Argument


@dataclass(frozen=True)
class Linear:
    """One run of a linear layer."""

    call: int
    argument: Argument
    input: int
    output: int


def find_linears(graph: Graph, closed: frozenset[int]) -> list[Linear]:
    """In forward order. `closed`: calls whose inside is not looked into."""
    found: dict[int, Linear] = {}
    # What makes a weight (a weight normalization, say) is no part of what is done with it.
    parents = {call.parent for call in graph.calls if not isinstance(call.module, ParametrizationList)}
    for node in graph.nodes:
        if not node.weighted or node.call in parents or node.call in found or node.call in closed:
            continue
        call = graph.calls[node.call]
        output = call.outputs.get(None)
        argument = next(iter(call.arguments), None)
        if output is not None and argument is not None and graph.descends(output, call.arguments[argument]):
            found[node.call] = Linear(node.call, argument, call.arguments[argument], output)
    return _merged(graph, [linear for linear in found.values() if is_open(graph, closed, linear.output)])


def is_open(graph: Graph, closed: frozenset[int], node: int) -> bool:
    """Whether no closed call holds a node."""
    return not any(call in closed for call in graph.around(node))


def _merged(graph: Graph, plain: list[Linear]) -> list[Linear]:
    """A module that is linear as a whole and holds several linear layers (a low-rank adapter) counts as one."""
    outer: dict[int, Linear] = {}
    for linear in plain:
        best = linear
        for number in graph.around(linear.output):
            call = graph.calls[number]
            argument = next(iter(call.arguments), None)
            if number == linear.call or None not in call.outputs or argument is None or len(call.arguments) != 1:
                continue
            inside = [other for other in plain if call.holds(other.output)]
            if len(inside) < 2 or not _is_linear(graph, call.first, call.end):
                break
            best = Linear(number, argument, call.arguments[argument], call.outputs[None])
        outer.setdefault(best.call, best)
    return sorted(outer.values(), key=lambda linear: linear.output)


def _is_linear(graph: Graph, first: int, end: int) -> bool:
    """Whether nodes are sums, moves, scalings by constants and products with matrices."""
    return all(
        node.weighted
        or node.function is None
        or node.function in ADD | RESHAPE | KEEP
        or (node.function in SCALE and len(node.inputs) == 1)
        for node in graph.nodes[first:end]
    )
