"""What discovery finds in a model: sites, each with the place where a drop can be put.

    model + example --record--> graph of one eval forward --discover--> Finding(sites, unreached) --bind--> drops at
    their places

`convnet/` and `transformer/` discover; `binding.py` puts drops into places, and `attachment.py` is what it returns;
`hooks.py` holds what runs during training.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from torch import nn

from autodropout.layers.drop import Drop

FUSED = "they exist only inside scaled_dot_product_attention"  # why a model's attention.probabilities are not reached


class NoSites(ValueError):
    """A model in which nothing was found to attach to: that first, then in `details` what was looked for and seen."""

    def __init__(self, said: str, *details: str) -> None:
        super().__init__(said, *details)
        self.details = details

    def __str__(self) -> str:
        return "\n  ".join(self.args)


class Role(StrEnum):
    """What a ConvNet site is to its residual block. (A Transformer site's role is its name in the space.)"""

    MAIN = "main"  # after a normalization of the main branch
    SHORTCUT = "shortcut"  # after a normalization of a shortcut branch
    IDENTITY = "identity"  # a shortcut branch that has no normalization


class Place(Protocol):
    """A way to let a drop act on one tensor of a model's forward pass. Holds module paths, never modules."""

    @property
    def path(self) -> str:
        """Of the module that must train for the drop to act."""
        ...

    def put(self, model: nn.Module, drop: Drop) -> None:
        """Let `drop` act here while the model trains. Undone, with all others, by `hooks.remove_all`."""
        ...


@dataclass(frozen=True)
class Site:
    """A named place in a model where a pattern is applied."""

    name: str  # unique in the model; starts with the path of the module it belongs to
    role: str  # a `Role`, or a site of the Transformer space
    shape: tuple[int, ...]  # of the tensor masked, as traced: (N, C, H, W), (N, T, C) or (N, heads, T, C)
    place: Place = field(repr=False)
    group: int | None = None  # ConvNets: 1, 2, ... in forward order, one per spatial size
    layer: int | None = None  # Transformers: 0, 1, ... in forward order
    block: str | None = None  # ConvNets: path of the residual block it belongs to
    ends_block: bool = False  # the last site of its residual branch before the sum (stochastic depth acts here)


@dataclass(frozen=True)
class Finding:
    """All sites of a model in forward order, and what looked like a site but cannot be reached, with the reason."""

    kind: str  # "convnet" or "transformer"
    sites: tuple[Site, ...]
    unreached: tuple[str, ...] = ()
    missed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # role -> why -> in how many layers


def told_once(unreached: Iterable[str]) -> list[str]:
    """What is not reached, each reason once, with the first place of which it is true, and the number of the others."""
    found: dict[str, list[tuple[str, str]]] = {}
    for told in unreached:
        where, _, why = told.partition(": ")
        alike = " ".join(map(numberless, why.split(" ")))  # a reason may name the layer's own modules
        found.setdefault(alike, []).append((where, why))
    lines = []
    for (where, why), *others in found.values():
        more = f" and {len(others)} more" if others else ""
        lines.append(f"not reached, in {where}{more}: {why}")
    return lines


def numberless(path: str) -> str:
    """A path with a star for each of its numbers."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))
