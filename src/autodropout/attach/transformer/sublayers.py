"""Attentions and feed-forwards with their sites, and what becomes of them: shared modules are refused, layers
numbered.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from autodropout.attach.sites import Place, Site
from autodropout.attach.transformer.graph import Graph
from autodropout.spaces import TRANSFORMER_SITES

BRANCH_ENDS = ("attention.output", "feedforward.output")


@dataclass(frozen=True)
class Miss:
    """Sites of one module that cannot be reached."""

    path: str
    roles: tuple[str, ...]  # none: all sites
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the model'}: {', '.join(self.roles) or 'all sites'}: {self.reason}"


@dataclass
class SubLayer:
    """The sites of one attention or one feed-forward."""

    kind: str  # "attention" or "feedforward"
    path: str  # of the module its sites are named after
    position: int  # in forward order
    sites: list[Site] = field(default_factory=list)
    missed: list[Miss] = field(default_factory=list)
    calls: dict[str, tuple[int, ...]] = field(default_factory=dict)  # site name -> calls it hooks into

    def add(self, role: str, shape: tuple[int, ...], place: Place, calls: tuple[int, ...] = ()) -> None:
        name = f"{self.path}:{role}" if self.path else role
        ends = role in BRANCH_ENDS
        self.sites.append(Site(name, role, shape, place, ends_block=ends))
        self.calls[name] = calls

    def miss(self, reason: str, *roles: str) -> None:
        self.missed.append(Miss(self.path, roles, reason))


def refuse_shared(graph: Graph, sublayers: list[SubLayer]) -> None:
    """A hook acts in every call of its module: drop the sites whose module has calls that are none of theirs."""
    claimed: dict[Place, set[int]] = {}
    for sub in sublayers:
        for site in sub.sites:
            claimed.setdefault(site.place, set()).update(sub.calls[site.name])
    for sub in sublayers:
        for site in list(sub.sites):
            paths = {graph.calls[number].path for number in sub.calls[site.name]}
            runs = {n for n, call in enumerate(graph.calls) if call.path in paths and call.attend is None}
            if not runs <= claimed[site.place]:
                sub.sites.remove(site)
                sub.miss(f"{', '.join(sorted(paths))} runs elsewhere in the model too", site.role)


def numbered(sublayers: list[SubLayer]) -> list[Site]:
    """Number layers, give every site a name of its own, and count a module that runs several times once."""
    sites: list[Site] = []
    known: set[tuple[str, Place]] = set()
    names: dict[str, int] = {}
    layer, kinds = -1, {"attention", "feedforward"}
    for sub in sublayers:
        fresh = [site for site in sub.sites if (site.role, site.place) not in known]
        if not fresh:
            continue
        if sub.kind in kinds:
            layer, kinds = layer + 1, set()
        kinds.add(sub.kind)
        for site in fresh:
            known.add((site.role, site.place))
            names[site.name] = names.get(site.name, 0) + 1
            name = site.name if names[site.name] == 1 else f"{site.name}#{names[site.name]}"
            sites.append(replace(site, name=name, layer=layer))
    return sites


def counted(missed: Iterable[Miss]) -> dict[str, Counter[str]]:
    """For each role that some layer lacks: the reasons, and how many layers each is true of."""
    found: dict[str, Counter[str]] = {}
    for miss in missed:
        for role in miss.roles or TRANSFORMER_SITES:
            found.setdefault(role, Counter())[miss.reason] += 1
    return found
