"""Shortcuts without a normalization: where a drop can act on one, or why it cannot."""

from collections import Counter

from autodropout.attach.convnet.places import IdentityShortcut, ModuleOutput
from autodropout.attach.convnet.residual import Residual, members
from autodropout.attach.record import Graph


def place_on_shortcut(
    graph: Graph, residual: Residual, consumers: list[list[int]], runs: Counter[str]
) -> ModuleOutput | IdentityShortcut | str:
    """The place, or the reason why there is none: the end of a sentence that begins with "the shortcut".

    Args:
        graph: one forward pass.
        residual: one of its blocks.
        consumers: for each node, the nodes made from it.
        runs: how often each module runs.
    """
    last = _last_module(graph, residual, consumers, runs)
    if last is not None:
        return ModuleOutput(last)
    inside = residual.shortcut | 1 << residual.total
    if any(not inside >> reader & 1 for node in members(residual.shortcut) for reader in consumers[node]):
        return "is read by more than the sum"
    if graph.nodes[residual.join].shape[2:] != graph.nodes[residual.total].shape[2:]:
        return "changes the spatial size in a function, not in a module"
    block = graph.calls[residual.call]
    if block.arguments[:1] != (residual.join,):
        return "begins inside the block, not at its first argument"
    entries = _entries(graph, residual, consumers[residual.join], inside)
    if isinstance(entries, str):
        return entries
    return IdentityShortcut(block.path, entries, tuple(path for path in entries if runs[path] != runs[block.path]))


def _last_module(graph: Graph, residual: Residual, consumers: list[list[int]], runs: Counter[str]) -> str | None:
    """The module whose output is the shortcut as it is summed, and which does nothing else."""
    if consumers[residual.shortcut_end] != [residual.total]:
        return None
    for index, call in enumerate(graph.calls):  # outermost first
        if (
            call.output == residual.shortcut_end
            and index != residual.call
            and graph.within(index, residual.call)
            and all(residual.shortcut >> node & 1 for node in range(call.first, call.end))
            and runs[call.path] == runs[graph.calls[residual.call].path]
        ):
            return call.path
    return None


def _entries(graph: Graph, residual: Residual, readers: list[int], inside: int) -> tuple[str, ...] | str:
    """The modules, called by the block itself, through which all but the nodes `inside` read the block's input."""
    block = graph.calls[residual.call]
    branch: dict[int, str] = {}
    kept: set[int | None] = set()
    for reader in readers:
        if not block.first <= reader < block.end:
            continue
        child = graph.child(residual.call, graph.nodes[reader].call)
        if inside >> reader & 1:
            kept.add(child)
        elif child is None:
            name = getattr(graph.nodes[reader].function, "__name__", "a function")
            return f"shares its input with a branch that begins with a function ({name}), not with a module"
        elif graph.calls[child].arguments[:1] != (residual.join,):
            return f"shares its input with {graph.calls[child].path}, which does not take it as its first argument"
        else:
            branch[child] = graph.calls[child].path
    if not kept.isdisjoint(branch):
        return "begins in the same module as the branch"
    return tuple(dict.fromkeys(branch.values()))
