"""Choose how the skip input of one residual sum is reached: swap, carry or stash (`hooks.py` says what
they do).
"""

from dataclasses import dataclass

from autodropout.attach.sites import Place
from autodropout.attach.transformer.graph import Graph
from autodropout.attach.transformer.hooks import Argument, Carry, Hop, Item, SetAside, Swap
from autodropout.attach.transformer.layouts import Layout
from autodropout.attach.transformer.parts import Residual


@dataclass(frozen=True)
class Reached:
    """A place, and the calls in which its modules act on their own account: no other call of these modules may."""

    place: Place
    calls: tuple[int, ...]


def reach(graph: Graph, residual: Residual, layout: Layout) -> Reached | None:
    """The best place for a drop on this skip input; None when there is none."""
    return _swap(graph, residual, layout) or _carry(graph, residual, layout) or _set_aside(graph, residual, layout)


def _swap(graph: Graph, residual: Residual, layout: Layout) -> Reached | None:
    skip = residual.skip
    for number in graph.around(residual.sum):
        call = graph.calls[number]
        argument = next((a for a, node in call.arguments.items() if node == skip), None)
        if argument is not None and call.attend is None:
            branch = _restorers(graph, residual, call.first, call.end)
            if branch is None or skip in call.outputs.values():
                return None
            return Reached(Swap(call.path, argument, branch, layout), (number,))
    maker = _maker(graph, skip, -1, residual.sum)
    if maker is None:
        return None
    number, item = maker
    branch = _restorers(graph, residual, graph.calls[number].end, len(graph.nodes))
    handed_on = (call for at, call in enumerate(graph.calls) if not graph.within(at, number))
    if branch is None or any(skip in call.outputs.values() for call in handed_on):
        return None
    return Reached(Swap(graph.calls[number].path, item, branch, layout), (number,))


def _restorers(graph: Graph, residual: Residual, first: int, end: int) -> tuple[str, ...] | None:
    """Modules that, given the masked skip input, must put the original back; None when a function reads it outside any.

    Only what happens between nodes `first` and `end` matters: the masked tensor is not seen elsewhere.
    """
    paths = []
    for user in graph.consumers[residual.skip]:
        if user == residual.taker or not first <= user < end:
            continue
        given = (graph.calls[n] for n in graph.around(user) if residual.skip in graph.calls[n].arguments.values())
        holders = [c for c in given if c.attend is None and c.first >= first and not c.holds(residual.sum)]
        if not holders:
            return None
        paths.append(holders[-1].path)
    return tuple(dict.fromkeys(paths))


def _maker(graph: Graph, node: int, after: int, before: int) -> tuple[int, Item] | None:
    """The outermost call that returned this node, begun after node `after` and over before node `before`."""
    for number, call in enumerate(graph.calls):
        if call.attend is None and after < call.first <= node < call.end <= before:
            for item, output in call.outputs.items():
                if output == node:
                    return number, item
    return None


def _carry(graph: Graph, residual: Residual, layout: Layout) -> Reached | None:
    """Walk back from the branch's end to the skip input, from a module's output to its argument."""
    hops: list[Hop] = []
    node, number = residual.branch, -1
    while node != residual.skip:
        maker = _maker(graph, node, residual.skip, residual.sum)
        if maker is None:
            return None
        number, item = maker
        call = graph.calls[number]
        argument = next((a for a, given in call.arguments.items() if graph.descends(given, residual.skip)), None)
        if argument is None:
            return None
        hops.append(Hop(call.path, argument, item))
        node = call.arguments[argument]
    return Reached(Carry(tuple(reversed(hops)), layout), (number,))


def _set_aside(graph: Graph, residual: Residual, layout: Layout) -> Reached | None:
    begin = _reader(graph, residual)
    end = _maker(graph, residual.branch, residual.skip, residual.sum) or _returner(graph, residual)
    if begin is None or end is None:
        return None
    place = SetAside(graph.calls[begin[0]].path, begin[1], graph.calls[end[0]].path, end[1], layout)
    return Reached(place, (begin[0], end[0]))


def _returner(graph: Graph, residual: Residual) -> tuple[int, Item] | None:
    """The innermost call that returns the sum."""
    for number in graph.around(residual.sum):
        for item, node in graph.calls[number].outputs.items():
            if node == residual.sum and graph.calls[number].attend is None:
                return number, item
    return None


def _reader(graph: Graph, residual: Residual) -> tuple[int, Argument] | None:
    """The first call that is given the skip input and is over before the sum."""
    for number, call in enumerate(graph.calls):
        for argument, node in call.arguments.items():
            if node == residual.skip < call.first and call.end <= residual.sum and call.attend is None:
                return number, argument
    return None
