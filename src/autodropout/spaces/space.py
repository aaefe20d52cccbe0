"""Spaces: everything a controller may choose for one model, as a string of tokens, and the way to a policy and back.

A ConvNet space has 8 tokens per group, a Transformer space 4 per site. A token string is written as one index per
position, into the values that `space.tokens[position]` lists. The paper: "Representing dropout patterns" and both
"Details on the Search Spaces" of the appendix.

Uniform sampling is spelled out here so that a seed means the same policy for ever, on every platform and version of
Python: the index at `position` is SHA-256 of the ASCII text "autodropout sample 1, seed {seed}, position {position}",
read as a big-endian integer, modulo the number of values (at most 32, so the bias is below 2^-250).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, field_validator

from autodropout.spaces.patterns import (
    CONV_TOKENS,
    SEQUENCE_TOKENS,
    TRANSFORMER_SITES,
    ConvPattern,
    SequencePattern,
    SiteName,
    Token,
)
from autodropout.spaces.policy import (
    ConvGroup,
    ConvPolicy,
    Policy,
    Provenance,
    TransformerPolicy,
    check_groups,
)
from autodropout.spaces.records import Pair, Record, as_tuple, by, counted, show


class Space(Protocol):
    """What proposers, ledgers and reports ask of a space, whatever its kind."""

    @property
    def kind(self) -> str:
        """The kind of its policies: "convnet" or "transformer"."""

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The decision at each position, its name qualified by group or site: `group1.size`."""

    @property
    def count(self) -> int:
        """The number of token strings, exactly."""

    def sample(self, seed: int) -> Policy:
        """A policy drawn uniformly over token strings; a pure function of space and seed."""

    def encode(self, policy: Policy) -> tuple[int, ...]:
        """The policy's token string. A moved policy has the tokens it was searched with."""

    def decode(self, indices: Sequence[int], provenance: Provenance | None = None) -> Policy:
        """The policy of a token string."""

    def describe(self) -> str:
        """The space in one line."""

    def to_dict(self) -> dict[str, Any]:
        """The space as JSON data, for `space_from_dict`."""


class ConvSpace(Record):
    """The policies of a ConvNet: `groups` are the (height, width) of its maps, `resolution` that of its input."""

    kind: Literal["convnet"] = "convnet"
    groups: Annotated[tuple[Pair, ...], BeforeValidator(as_tuple)]
    resolution: Pair | None = None

    @field_validator("groups")
    @classmethod
    def _one_per_size(cls, groups: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        check_groups(groups)
        return groups

    @property
    def tokens(self) -> tuple[Token, ...]:
        return _qualified([f"group{number}" for number in range(1, len(self.groups) + 1)], CONV_TOKENS)

    @property
    def count(self) -> int:
        return _count(self.tokens)

    def sample(self, seed: int) -> ConvPolicy:
        return self.decode(_uniform(self.tokens, seed))

    def encode(self, policy: Policy) -> tuple[int, ...]:
        if not isinstance(policy, ConvPolicy):
            raise ValueError(f"a convnet space cannot encode {_kind_of(policy)}")
        searched = tuple(group.searched_at for group in policy.groups)
        if searched != self.groups:
            raise ValueError(f"the policy's groups are {_sizes(searched)}, the space's are {_sizes(self.groups)}")
        if policy.resolution and self.resolution and policy.resolution != self.resolution:
            raise ValueError(
                f"the policy was searched at resolution {by(policy.resolution)}, the space's is {by(self.resolution)}"
            )
        return tuple(index for group in policy.groups for index in group.pattern.encode())

    def decode(self, indices: Sequence[int], provenance: Provenance | None = None) -> ConvPolicy:
        places = _split(_checked(self.tokens, indices), len(self.groups))
        groups = tuple(
            ConvGroup(pattern=ConvPattern.decode(place), searched_at=size, at=size)
            for place, size in zip(places, self.groups, strict=True)
        )
        return ConvPolicy(groups=groups, resolution=self.resolution, provenance=provenance)

    def describe(self) -> str:
        at = f" at {by(self.resolution)}" if self.resolution else ""
        return (
            f"convnet space{at}: {counted(len(self.groups), 'group')} ({_sizes(self.groups)}), {_extent(self.tokens)}"
        )

    def __str__(self) -> str:
        return self.describe()

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class TransformerSpace(Record):
    """The policies of a Transformer: `sites` are the places of a layer it can mask, kept in canonical order."""

    kind: Literal["transformer"] = "transformer"
    sites: Annotated[tuple[SiteName, ...], BeforeValidator(as_tuple)] = TRANSFORMER_SITES

    @field_validator("sites")
    @classmethod
    def _canonical(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        if not sites or len(set(sites)) < len(sites):
            raise ValueError(f"the sites must be one or more, each named once, got {show(sites)}")
        return tuple(sorted(sites, key=TRANSFORMER_SITES.index))

    @property
    def tokens(self) -> tuple[Token, ...]:
        return _qualified(self.sites, SEQUENCE_TOKENS)

    @property
    def count(self) -> int:
        return _count(self.tokens)

    def sample(self, seed: int) -> TransformerPolicy:
        return self.decode(_uniform(self.tokens, seed))

    def encode(self, policy: Policy) -> tuple[int, ...]:
        if not isinstance(policy, TransformerPolicy):
            raise ValueError(f"a transformer space cannot encode {_kind_of(policy)}")
        if tuple(policy.sites) != self.sites:
            raise ValueError(f"the policy's sites are {', '.join(policy.sites)}; the space's: {', '.join(self.sites)}")
        return tuple(index for pattern in policy.sites.values() for index in pattern.encode())

    def decode(self, indices: Sequence[int], provenance: Provenance | None = None) -> TransformerPolicy:
        places = _split(_checked(self.tokens, indices), len(self.sites))
        patterns = (SequencePattern.decode(place) for place in places)
        return TransformerPolicy(sites=dict(zip(self.sites, patterns, strict=True)), provenance=provenance)

    def describe(self) -> str:
        sites = f"{counted(len(self.sites), 'site')} ({', '.join(self.sites)})"
        return f"transformer space: {sites}, {_extent(self.tokens)}"

    def __str__(self) -> str:
        return self.describe()

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def space_from_dict(data: Mapping[str, Any]) -> ConvSpace | TransformerSpace:
    """The space that `to_dict` wrote."""
    match data.get("kind"):
        case "convnet":
            return ConvSpace.model_validate(dict(data))
        case "transformer":
            return TransformerSpace.model_validate(dict(data))
        case other:
            raise ValueError(f"kind: {show(other)} is not one of 'convnet', 'transformer'")


def effective(space: Space, indices: Sequence[int]) -> tuple[bool, ...]:
    """Whether each token has an effect on the space's own maps, or on sequences of any length.

    Those of a place without a pattern have none, but for its size; those of a ConvNet's group with a side below 5 cells
    have none at all, because a rectangle of any size is empty there (moved to larger maps, they would). Where a
    rectangle is not repeated there is no gap, and its stride has none.
    """
    tokens = space.tokens
    names = [token.name.rpartition(".")[::2] for token in tokens]  # (place, name)
    chosen = {name: token.values[index] for name, token, index in zip(names, tokens, indices, strict=True)}

    maps = space.groups if isinstance(space, ConvSpace) else ()
    small = {f"group{number}" for number, sides in enumerate(maps, start=1) if min(sides) < 5}

    def acts(place: str, name: str) -> bool:
        if name == "size" or place in small:
            return place not in small
        return chosen[place, "size"] != 0 and (name != "stride" or chosen.get((place, "repeat")) != 1)

    return tuple(acts(place, name) for place, name in names)


def canonical(space: Space, indices: Sequence[int]) -> tuple[int, ...]:
    """The token string with zeros for tokens without effect: two that do the same become one."""
    return tuple(index if acts else 0 for index, acts in zip(indices, effective(space, indices), strict=True))


def _qualified(places: Sequence[str], tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    return tuple(Token(f"{place}.{token.name}", token.values) for place in places for token in tokens)


def _count(tokens: tuple[Token, ...]) -> int:
    return math.prod(len(token.values) for token in tokens)


def _uniform(tokens: tuple[Token, ...], seed: int) -> list[int]:
    if type(seed) is not int or not 0 <= seed < 2**63:  # as everywhere: those that torch takes, and ledgers keep
        raise ValueError(f"the seed must be an integer from 0 to 2^63 - 1, got {show(seed)}")
    texts = [f"autodropout sample 1, seed {seed}, position {position}" for position in range(len(tokens))]
    draws = [int.from_bytes(hashlib.sha256(text.encode("ascii")).digest(), "big") for text in texts]
    return [draw % len(token.values) for draw, token in zip(draws, tokens, strict=True)]


def _checked(tokens: tuple[Token, ...], indices: Sequence[int]) -> tuple[int, ...]:
    if len(indices) != len(tokens):
        raise ValueError(f"a token string of this space has {len(tokens)} positions, got {len(indices)}")
    for position, (token, index) in enumerate(zip(tokens, indices, strict=True)):
        if type(index) is not int or not 0 <= index < len(token.values):
            raise ValueError(
                f"position {position} ({token.name}): {show(index)} is not an index in 0..{len(token.values) - 1}"
            )
    return tuple(indices)


def _split(indices: tuple[int, ...], places: int) -> list[tuple[int, ...]]:
    each = len(indices) // places
    return [indices[place * each : (place + 1) * each] for place in range(places)]


def _kind_of(policy: object) -> str:
    return f"a {policy.kind} policy" if isinstance(policy, ConvPolicy | TransformerPolicy) else show(policy)


def _sizes(sizes: Sequence[tuple[int, int]]) -> str:
    return ", ".join(map(by, sizes))


def _extent(tokens: tuple[Token, ...]) -> str:
    return f"{len(tokens)} tokens, 10^{math.log10(_count(tokens)):.1f} strings"
