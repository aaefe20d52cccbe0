"""Find the sites of a ConvNet by tracing one eval forward (paper, section "AutoDropout" and the appendix on ConvNets).

Departures from the paper:
1. Identity shortcuts are sites too, under the token `residual`; the paper speaks of shortcut branches, not of which.
2. The paper does not speak of the stem; we leave it alone unless asked. A stage whose blocks happen to have no skip, as
   EfficientNet's first, is no stem.
3. Layer normalizations of ConvNeXt's kind are sites, too; the paper knows no such ConvNets.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from autodropout.attach.convnet.normalizations import (
    Normalization,
    find_layer_normalizations,
    find_normalizations,
)
from autodropout.attach.convnet.places import IdentityShortcut
from autodropout.attach.convnet.residual import Residual, find_residuals
from autodropout.attach.convnet.shortcuts import place_on_shortcut
from autodropout.attach.convnet.stem import first_stage
from autodropout.attach.record import Graph, record
from autodropout.attach.sites import Finding, NoSites, Role, Site, told_once


@dataclass(frozen=True)
class _Found:
    """A site that has no group yet."""

    turn: int  # the node by which it takes its turn in forward order
    size: tuple[int, ...]  # (H, W) by which it is grouped; a shortcut's is that of the sum
    site: Site


def find(model: nn.Module, example: Any, stem: bool = False) -> Finding:
    """The sites of a ConvNet, in forward order: after normalizations and on shortcuts.

    Args:
        model: any `nn.Module`; it is left as it is.
        example: one input: a tensor, a tuple of positional or a dict of keyword arguments.
        stem: whether normalizations before the first residual block are sites too.

    Raises:
        NoSites: the forward pass normalizes no 4-D tensor.
    """
    graph = record(model, example)
    residuals, ambiguous = find_residuals(graph)
    norms, unreached = find_normalizations(graph, model)
    if not stem:
        norms = _without_stem(norms, residuals, graph, model)
    norms = sorted(norms + find_layer_normalizations(graph, model, residuals), key=lambda norm: norm.node)
    if not norms:
        kinds = ", ".join(sorted({type(model.get_submodule(call.path)).__name__ for call in graph.calls}))
        raise NoSites(
            "this model has no sites of a ConvNet",
            "looked for batch, instance or group normalizations whose output is (N, C, H, W), and for layer "
            "normalizations in residual blocks of convolutions",
            f"saw run: {kinds}",
            *told_once(unreached),
        )
    shortcuts, unplaced = _shortcut_sites(graph, residuals, norms)
    found = sorted(_normalization_sites(graph, residuals, norms) + shortcuts, key=lambda one: one.turn)
    return Finding("convnet", _grouped(found), (*ambiguous, *unreached, *unplaced))


def _without_stem(
    norms: list[Normalization], residuals: list[Residual], graph: Graph, model: nn.Module
) -> list[Normalization]:
    """Without the normalizations that run before the first stage, unless a residual block holds them."""
    if not residuals:
        return norms
    start = first_stage(graph, model, graph.calls[residuals[0].call].path)
    return [norm for norm in norms if norm.node >= start or any(_holds(residual, norm) for residual in residuals)]


def _holds(residual: Residual, norm: Normalization) -> bool:
    return bool((residual.main | residual.shortcut) >> norm.node & 1)


def _normalization_sites(graph: Graph, residuals: list[Residual], norms: list[Normalization]) -> list[_Found]:
    """Of nested blocks the innermost, whose sum comes first, decides what a normalization is to its block."""
    found = []
    for norm in norms:
        block = next((residual for residual in residuals if _holds(residual, norm)), None)
        role = Role.SHORTCUT if block is not None and block.shortcut >> norm.node & 1 else Role.MAIN
        size = norm.shape[2:] if role is Role.MAIN or block is None else graph.nodes[block.total].shape[2:]
        path = None if block is None else graph.calls[block.call].path
        found.append(_Found(norm.node, size, Site(norm.path, role, norm.shape, norm.place, block=path)))
    for residual in residuals:
        branch = [n for n, one in enumerate(found) if one.site.role == Role.MAIN and residual.main >> one.turn & 1]
        if branch and norms[branch[-1]].zeros_stay and not _is_long(graph, residual, [norms[n] for n in branch]):
            last = found[branch[-1]]
            found[branch[-1]] = replace(last, site=replace(last.site, ends_block=True))
    return found


def _is_long(graph: Graph, residual: Residual, branch: list[Normalization]) -> bool:
    """Whether a branch comes back from smaller maps, as in a U-Net or a feature pyramid: to drop it is to drop all."""
    height, width = graph.nodes[residual.total].shape[2:]
    return any(norm.shape[2] < height or norm.shape[3] < width for norm in branch)


def _shortcut_sites(
    graph: Graph, residuals: list[Residual], norms: list[Normalization]
) -> tuple[list[_Found], list[str]]:
    """Sites on the shortcuts that have no normalization, and those that cannot be reached."""
    consumers = graph.consumers()
    runs = Counter(call.path for call in graph.calls)
    paths = {norm.path for norm in norms}
    normalizing = 0  # in every run of a block, of which the first alone is in `norms`
    for call in graph.calls:
        if call.path in paths:
            normalizing |= (1 << call.end) - (1 << call.first)
    found: dict[str, _Found] = {}
    unreached: list[str] = []
    for residual in residuals:
        if residual.shortcut & normalizing:
            continue
        path = graph.calls[residual.call].path
        place = place_on_shortcut(graph, residual, consumers, runs)
        if isinstance(place, str):
            unreached.append(f"{path or 'the model'}: the shortcut {place}")
            continue
        if isinstance(place, IdentityShortcut):
            name, masked = f"{path}:identity", residual.join
        else:
            name, masked = f"{place.path}:identity", residual.shortcut_end
        if name not in found:
            site = Site(name, Role.IDENTITY, graph.nodes[masked].shape, place, block=path)
            found[name] = _Found(residual.total, graph.nodes[residual.total].shape[2:], site)
        elif found[name].site.place != place:  # not merely another run of the same block
            unreached.append(f"{path or 'the model'}: adds its input more than once; only the first sum is a site")
    return list(found.values()), list(dict.fromkeys(unreached))


def _grouped(found: list[_Found]) -> tuple[Site, ...]:
    """Number the spatial sizes in the order in which the main branch comes to them."""
    main = [one.size for one in found if one.site.role == Role.MAIN]
    sizes = list(dict.fromkeys(main + [one.size for one in found]))
    return tuple(replace(one.site, group=sizes.index(one.size) + 1) for one in found)
