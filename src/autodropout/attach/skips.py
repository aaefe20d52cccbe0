"""Choose how the skip input of one residual sum is reached: swap, carry or stash (`transformer_hooks.py` says what they do)."""

from autodropout.attach.layouts import Layout
from autodropout.attach.sites import Place
from autodropout.attach.transformer_graph import Graph
from autodropout.attach.transformer_hooks import Argument, Carry, Hop, Item, SetAside, Swap
from autodropout.attach.transformer_parts import Residual


def place(graph: Graph, residual: Residual, layout: Layout) -> Place | None:
    """The best place for a drop on this skip input; None when there is none."""
    return _swap(graph, residual, layout) or _carry(graph, residual, layout) or _set_aside(graph, residual, layout)


def _swap(graph: Graph, residual: Residual, layout: Layout) -> Swap | None:
    skip = residual.skip
    for number in graph.around(residual.sum):
        call = graph.calls[number]
        argument = next((a for a, node in call.arguments.items() if node == skip), None)
        if argument is not None and call.attend is None:
            branch = _restorers(graph, residual, call.first, call.end)
            if branch is not None and skip not in call.outputs.values():
                return Swap(call.path, argument, branch, layout)
            return None
    maker = _maker(graph, skip, residual.sum)
    if maker is None:
        return None
    number, item = maker
    branch = _restorers(graph, residual, graph.calls[number].end, len(graph.nodes))
    if branch is None or any(skip in call.outputs.values() for at, call in enumerate(graph.calls) if not graph.within(at, number)):
        return None
    return Swap(graph.calls[number].path, item, branch, layout)


def _restorers(graph: Graph, residual: Residual, first: int, end: int) -> tuple[str, ...] | None:
    """Modules that, given the masked skip input, must put the original back; None when a function reads it outside any.

    Only what happens between nodes `first` and `end` matters: the masked tensor is not seen elsewhere.
    """
    paths = []
    for user in graph.consumers[residual.skip]:
        if user == residual.taker or not first <= user < end:
            continue
        holders = [
            graph.calls[number]
            for number in graph.around(user)
            if residual.skip in graph.calls[number].arguments.values() and graph.calls[number].attend is None
        ]
        outside = [call for call in holders if call.first >= first and not call.holds(residual.sum)]
        if not outside:
            return None
        paths.append(outside[-1].path)
    return tuple(dict.fromkeys(paths))


def _maker(graph: Graph, node: int, before: int) -> tuple[int, Item] | None:
    """The outermost call that returned this node, and was over before node `before` was made."""
    for number, call in enumerate(graph.calls):
        item = next((item for item, output in call.outputs.items() if output == node), "none")
        if not isinstance(item, str) and call.attend is None and call.end <= before and call.holds(node):
            return number, item
    return None


def _carry(graph: Graph, residual: Residual, layout: Layout) -> Carry | None:
    """Walk back from the branch's end to the skip input, from a module's output to its argument."""
    hops: list[Hop] = []
    node = residual.branch
    while node != residual.skip:
        maker = _maker(graph, node, residual.sum)
        if maker is None:
            return None
        call = graph.calls[maker[0]]
        argument = next((a for a, given in call.arguments.items() if graph.descends(given, residual.skip)), None)
        if argument is None:
            return None
        hops.append(Hop(call.path, argument, maker[1]))
        node = call.arguments[argument]
    return Carry(tuple(reversed(hops)), layout)


def _set_aside(graph: Graph, residual: Residual, layout: Layout) -> SetAside | None:
    end = _maker(graph, residual.branch, residual.sum) or _holder(graph, residual)
    if end is None:
        return None
    begin = _reader(graph, residual)
    return SetAside(*begin, graph.calls[end[0]].path, end[1], layout) if begin is not None else None


def _holder(graph: Graph, residual: Residual) -> tuple[int, Item] | None:
    """The innermost call that returns the sum."""
    for number in graph.around(residual.sum):
        for item, node in graph.calls[number].outputs.items():
            if node == residual.sum and graph.calls[number].attend is None:
                return number, item
    return None


def _reader(graph: Graph, residual: Residual) -> tuple[str, Argument] | None:
    """The first call that is given the skip input on its way to the branch's end."""
    for call in graph.calls:
        for argument, node in call.arguments.items():
            if node == residual.skip and not call.holds(residual.sum) and call.end <= residual.sum and call.attend is None:
                return call.path, argument
    return None
