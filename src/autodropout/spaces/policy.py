"""A policy: all patterns of one model, where they come from, and their JSON form.

A ConvNet policy has one pattern per group and records the map each group was searched at; a Transformer policy has one
pattern per site of a layer. Both are frozen, hash, compare by content, and are written by `to_json` and `save`.
Reading is in `autodropout.spaces.files`. Moving to another resolution follows the paper's "Baselines" paragraph, which
scales sizes and strides proportionally for the larger EfficientNets.

Departures from the paper:
1. A moved policy keeps its tokens, which stay inside the space, and carries the new map sizes beside them: sizes and
   strides in cells are computed from both (`ConvGroup.cells`), so moving back and forth loses nothing.
"""

import importlib.metadata
import json
import os
import platform
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from autodropout.spaces.atomic import write_atomically
from autodropout.spaces.patterns import TRANSFORMER_SITES, Cells, ConvPattern, SequencePattern, SiteName
from autodropout.spaces.records import Frozen, Pair, Record, Text, as_pair, as_tuple, by, counted, scale, show

SCHEMA = 1
"""The version of the JSON form, the first key of every file."""

MAX_BYTES = 2**20
"""The largest file we write or read. A real policy takes a few KiB."""

_ISO_8601 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)


def _check_date(text: str) -> str:
    problem = f"{text[:40]!r} is not an ISO 8601 date or time such as 2026-01-31 or 2026-01-31T12:00:00Z"
    # The expression comes first because what `fromisoformat` accepts beyond it has grown with Python's versions.
    if not _ISO_8601.fullmatch(text):
        raise ValueError(problem)
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{problem}: {error}") from None
    return text


class Provenance(Record):
    """Where a policy comes from. Every field is optional; none changes what the policy does."""

    space: Text | None = None
    study: Text | None = None
    trial: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    model: Text | None = None
    data: Text | None = None
    rate: Annotated[float, Field(ge=0, le=1)] | None = None
    date: Annotated[str, AfterValidator(_check_date)] | None = None
    software: Annotated[Mapping[Text, Text], Frozen(order=str)] | None = None
    note: Text | None = None


def software_versions() -> dict[str, str]:
    """The versions of Python and of the packages a result depends on, for `Provenance.software`. Imports none."""
    versions = {"python": platform.python_version()}
    for package in ("autodropout", "torch"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # run from a source tree, or without torch: no version is better than a wrong one
    return versions


class ConvGroup(Record):
    """A pattern, the (height, width) of the map it was searched at, and of the map it is to be used at."""

    pattern: ConvPattern
    searched_at: Pair
    at: Pair = Field(default_factory=lambda validated: validated.get("searched_at"))

    def cells(self) -> Cells:
        """Rectangle and stride in cells of the map `at`."""
        return self.pattern.cells(at=self.at, searched_at=self.searched_at)

    def __str__(self) -> str:
        moved = "" if self.at == self.searched_at else f" (searched at {by(self.searched_at)})"
        if self.pattern.is_none:
            return f"{by(self.at)}{moved}  {self.pattern}"
        cells = self.cells()
        return f"{by(self.at)}{moved}  {self.pattern} = {by(cells.size)} cells, gaps {by(cells.stride)}"


class _Policy(Record, ABC):
    """What both kinds of policy can do: be written, and be told in words."""

    @property
    def recorded_rate(self) -> float | None:
        """The drop rate that its provenance has; None where nothing is known."""
        known: Provenance | None = self.provenance  # type: ignore[attr-defined]  # the last field of either kind
        return None if known is None else known.rate

    @property
    @abstractmethod
    def drops_nothing(self) -> bool:
        """Whether it leaves every tensor as it is, at any rate."""

    def to_json(self) -> str:
        """The policy as JSON text: keys in a fixed order, one short object or array a line."""
        return _pretty({"schema": SCHEMA, **self.model_dump(mode="json", exclude_none=True)}) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a file. The file is replaced as a whole: nobody ever sees half of it."""
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"save wants the path of a file, got {show(path)}")
        content = self.to_json().encode()
        if len(content) > MAX_BYTES:
            raise ValueError(f"cannot save {path}: the policy takes {len(content)} bytes, more than {MAX_BYTES}")
        write_atomically(Path(path), content)

    def __str__(self) -> str:
        return self.summary()

    @abstractmethod
    def summary(self) -> str: ...


class ConvPolicy(_Policy):
    """The patterns of a ConvNet, one per group in forward order."""

    kind: Literal["convnet"] = "convnet"
    resolution: Pair | None = None
    """(height, width) of the input the policy was searched at."""
    groups: Annotated[tuple[ConvGroup, ...], BeforeValidator(as_tuple)]
    provenance: Provenance | None = None

    @field_validator("groups")
    @classmethod
    def _one_per_size(cls, groups: tuple[ConvGroup, ...]) -> tuple[ConvGroup, ...]:
        check_groups(group.searched_at for group in groups)
        return groups

    @property
    def drops_nothing(self) -> bool:
        return not any(all(group.cells().size) for group in self.groups)  # on a side below 5 cells any size is empty

    def at(self, resolution: int | tuple[int, int]) -> "ConvPolicy":
        """The same policy for inputs of another resolution, as the paper moves EfficientNet-B0's to B7.

        Each group's map becomes its searched one times new/searched resolution, rounded half up; sizes and strides
        in cells follow (`ConvGroup.cells`). Computed from the searched maps, so any sequence of moves is exact.
        """
        if self.resolution is None:
            raise ValueError("this policy does not record the resolution it was searched at, so it cannot be moved")
        new = as_pair((resolution, resolution) if isinstance(resolution, int) else resolution)
        groups = tuple(
            ConvGroup(
                pattern=group.pattern,
                searched_at=group.searched_at,
                at=(
                    scale(group.searched_at[0], new[0], self.resolution[0]),
                    scale(group.searched_at[1], new[1], self.resolution[1]),
                ),
            )
            for group in self.groups
        )
        return ConvPolicy(resolution=self.resolution, groups=groups, provenance=self.provenance)

    def summary(self) -> str:
        """The policy in words, one line a group."""
        where = f", searched at {by(self.resolution)}" if self.resolution else ""
        lines = [f"  group{number}  {group}" for number, group in enumerate(self.groups, start=1)]
        return "\n".join(
            [f"convnet policy, {counted(len(self.groups), 'group')}{where}", *lines, *_provenance(self.provenance)]
        )


class TransformerPolicy(_Policy):
    """The patterns of a Transformer layer by site, the same for all layers of the model."""

    kind: Literal["transformer"] = "transformer"
    sites: Annotated[Mapping[SiteName, SequencePattern], Frozen(order=TRANSFORMER_SITES.index)]
    provenance: Provenance | None = None

    @field_validator("sites")
    @classmethod
    def _some_site(cls, sites: Mapping[str, SequencePattern]) -> Mapping[str, SequencePattern]:
        if not sites:
            raise ValueError(f"no site; name at least one of {', '.join(TRANSFORMER_SITES)}")
        return sites

    @property
    def drops_nothing(self) -> bool:
        return all(pattern.is_none for pattern in self.sites.values())

    def at(self, resolution: int | tuple[int, int]) -> NoReturn:
        """Refused: only ConvNet policies depend on a resolution."""
        raise ValueError(
            f"cannot move a transformer policy to resolution {resolution}: its sizes count tokens, whatever the length"
        )

    def summary(self) -> str:
        """The policy in words, one line a site."""
        width = max(map(len, self.sites))
        lines = [f"  {name:{width}}  {pattern}" for name, pattern in self.sites.items()]
        return "\n".join([f"transformer policy, {len(self.sites)} sites", *lines, *_provenance(self.provenance)])


Policy = ConvPolicy | TransformerPolicy


def check_groups(sizes: Iterable[tuple[int, int]]) -> None:
    """Refuse an empty list of groups, and two of one size: groups are told apart by the size of their maps."""
    numbers: dict[tuple[int, int], int] = {}
    for number, size in enumerate(sizes, start=1):
        if size in numbers:
            raise ValueError(f"group{numbers[size]} and group{number} have the same size, {by(size)}")
        numbers[size] = number
    if not numbers:
        raise ValueError("no group; there must be at least one")


def _provenance(provenance: Provenance | None) -> list[str]:
    if provenance is None:
        return []
    # repr, since strings of a stranger's file may hold terminal control sequences
    return [f"  {name}: {value!r}" for name, value in provenance.model_dump(exclude_none=True).items()]


def _pretty(value: Any, indent: str = "") -> str:
    """JSON with two spaces of indentation, where a container of plain values stays on one line."""
    inner = indent + "  "
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        lines = [f"{inner}{_plain(key)}: {_pretty(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _pretty(item, inner) for item in value) + f"\n{indent}]"
    return _plain(value)


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
