"""Where the body of a ConvNet begins: at the first stage of blocks. What runs before it is the stem.

    stem: conv, norm, act, pool │ stage: block, block │ stage: block, first residual block, block │ stage: block, ...

A stage need not be residual: blocks that change size or width have no skip, and EfficientNet's first stage holds no
others. So we start at the first residual block and go by types. Blocks of exactly its type that run right before it
belong to the body. Around it, the innermost container in a row of containers of one type is its stage, and those
before it in the row are stages too.
"""

from collections.abc import Iterable, Iterator

from torch import nn

from autodropout.attach.convnet.normalizations import is_normalization
from autodropout.attach.record import Graph


def first_stage(graph: Graph, model: nn.Module, block: str) -> int:
    """The first node of the body, given the path of the first residual block."""
    owners = [graph.calls[node.call].path for node in graph.nodes]
    kind = type(model.get_submodule(block))
    earliest = block
    for sibling in _neighbours(owners, block, forward=False):
        if type(model.get_submodule(sibling)) is not kind:
            break
        earliest = sibling
    path = block
    while path := _parent(path):
        row = list(_alike(model, path, _neighbours(owners, path, forward=False)))
        following = next(_alike(model, path, _neighbours(owners, path, forward=True)), None)
        blocks = (type(child) for one in row for child in model.get_submodule(one).children())
        if following is not None or kind in blocks:
            earliest = row[-1] if row else path
            break
    return next((number for number, owner in enumerate(owners) if _holds(earliest, owner)), 0)


def _neighbours(owners: list[str], path: str, forward: bool) -> Iterator[str]:
    """The siblings that run right after or before `path`, nearest first, until something else than a sibling runs."""
    held = [number for number, owner in enumerate(owners) if _holds(path, owner)]
    following = owners[held[-1] + 1 :] if forward else owners[: held[0]][::-1]
    last = path
    for owner in following:
        sibling = _child(_parent(path), owner)
        if sibling is None:
            return
        if sibling != last:
            yield sibling
        last = sibling


def _alike(model: nn.Module, path: str, siblings: Iterable[str]) -> Iterator[str]:
    """Siblings up to the first of another type than `path`. A container of blocks leaves normalizing to its blocks."""
    kind = type(model.get_submodule(path))
    for sibling in siblings:
        module = model.get_submodule(sibling)
        if type(module) is not kind or any(map(is_normalization, module.children())):
            return
        yield sibling


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _holds(path: str, owner: str) -> bool:
    return not path or owner == path or owner.startswith(f"{path}.")


def _child(parent: str, owner: str) -> str | None:
    """The child of `parent` that is, or holds, `owner`."""
    if owner == parent or not _holds(parent, owner):
        return None
    prefix = f"{parent}." if parent else ""
    return prefix + owner.removeprefix(prefix).partition(".")[0]
