"""Baselines by name, attachable by the same call as a policy: `ad.attach(model, ad.baseline("dropblock", block=7),
...)`.

A baseline is a rule and the sites it goes to. The defaults follow common practice; `sites=` and `groups=` change
them, so that a comparison can be made at exactly the sites of a policy.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from autodropout.layers.drop import Rule
from autodropout.layers.dropblock import DropBlock
from autodropout.layers.given import is_whole, told
from autodropout.layers.rules import (
    Dropout,
    SpatialDropout,
    StochasticDepth,
    VariationalDropout,
    WordDropout,
)
from autodropout.spaces import TRANSFORMER_SITES

MAIN = ("main",)
BRANCH_END = ("branch end",)  # the last site of a residual branch, where the branch as a whole can be dropped
CONVNET_SITES = ("main", "shortcut", "identity", *BRANCH_END)
_BRANCH_OUTPUTS = ("attention.output", "feedforward.output")
_VANILLA = ("attention.probabilities", "attention.output", "feedforward.hidden", "feedforward.output")


@dataclass(frozen=True)
class Baseline:
    """A peer's rule and where it goes: ConvNet roles, Transformer sites, either empty where the peer has no meaning."""

    name: str
    rule: Rule
    convnet: tuple[str, ...]
    transformer: tuple[str, ...]
    groups: tuple[int, ...] | None = None  # ConvNet groups, all when None

    def __str__(self) -> str:
        return str(self.rule)


_PEERS: dict[str, tuple[Callable[[], Rule], tuple[str, ...], tuple[str, ...]]] = {
    "dropout": (Dropout, MAIN, _VANILLA),
    "spatial_dropout": (SpatialDropout, MAIN, ()),
    "dropblock": (DropBlock, MAIN, ()),
    "stochastic_depth": (StochasticDepth, BRANCH_END, _BRANCH_OUTPUTS),
    "drop_path": (StochasticDepth, BRANCH_END, _BRANCH_OUTPUTS),
    "variational_dropout": (VariationalDropout, (), _VANILLA),
    "word_dropout": (WordDropout, (), ("attention.output", "feedforward.hidden", "feedforward.output")),
}
BASELINES = tuple(_PEERS)


def baseline(
    name: str,
    *,
    block: int | None = None,
    sites: tuple[str, ...] | None = None,
    groups: tuple[int, ...] | None = None,
) -> Baseline:
    """A peer by name, one of `autodropout.BASELINES`.

    Args:
        name: "dropout", "spatial_dropout", "dropblock", "stochastic_depth" (or "drop_path"), "variational_dropout",
            "word_dropout".
        block: DropBlock's block size in cells, 7 when left out.
        sites: where it goes instead of its default: ConvNet roles ("main", "shortcut", "identity", "branch end") or
            Transformer sites ("attention.query", ...).
        groups: ConvNet groups it is limited to, as 1, 2, ...; DropBlock's authors used ResNet-50's 3 and 4.
    """
    if name not in BASELINES:
        raise ValueError(f"no baseline is called {told(name)}; there are {', '.join(BASELINES)}")
    make, convnet, transformer = _PEERS[name]
    if block is not None and make is not DropBlock:
        raise ValueError(f"block={block} means nothing to {name!r}; only dropblock has a block")
    rule = DropBlock(block) if block is not None else make()
    groups = None if groups is None else _checked_groups(groups)
    if sites is not None:
        known = CONVNET_SITES + TRANSFORMER_SITES
        if not isinstance(sites, Collection) or not sites or not all(site in known for site in sites):
            raise ValueError(f"sites must be some of {known}, as in sites=({known[0]!r},), got {told(sites)}")
        convnet = tuple(s for s in sites if s in CONVNET_SITES and convnet)
        transformer = tuple(s for s in sites if s in TRANSFORMER_SITES and transformer)
        if not convnet and not transformer:
            raise ValueError(f"{name!r} cannot go to {sites!r}")
    return Baseline(name, rule, convnet, transformer, groups)


def _checked_groups(groups: object) -> tuple[int, ...]:
    """Groups as a tuple. A single number is refused rather than understood: one way to say a thing is enough."""
    if not isinstance(groups, Collection):
        raise TypeError(f"groups must be a tuple of group numbers, as in groups=(3, 4), got {told(groups)}")
    if not groups or not all(is_whole(number) and number >= 1 for number in groups):
        raise ValueError(f"groups are numbered 1, 2, ..., as in groups=(3, 4), got {told(groups)}")
    return tuple(groups)
