"""What the records of `spaces` are made of: one strict, frozen base, pairs (height, width), and a frozen mapping.

Policies come from files that strangers wrote, and serve as dictionary keys: so every record refuses what it does not
know, coerces nothing, cannot be changed, and hashes.
"""

import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

MAX_EXTENT = 2**20
"""The longest side of a map or an image a record accepts: far above any real one, far below what overflows."""

V = TypeVar("V")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def show(value: object) -> str:
    """The value as an error message shows it: `repr`, cut short, at any depth of nesting."""
    return _short.repr(value)


def scale(length: int, numerator: int, denominator: int) -> int:
    """`length * numerator / denominator` in exact arithmetic, rounded half up, at least 1."""
    return max(1, (2 * length * numerator + denominator) // (2 * denominator))


def as_pair(value: object) -> tuple[int, int]:
    """The value as (height, width). A list counts, since JSON has no tuples; a bool is not an integer here."""
    if isinstance(value, list | tuple) and len(value) == 2:
        height, width = value
        if type(height) is int and type(width) is int and 1 <= min(height, width) <= max(height, width) <= MAX_EXTENT:
            return height, width
    raise ValueError(f"{show(value)} is not a pair [height, width] of integers in 1..{MAX_EXTENT}")


def as_tuple(value: object) -> object:
    """Lists become tuples; anything else is left for validation to refuse."""
    return tuple(value) if isinstance(value, list) else value


def check_text(text: str) -> str:
    """The text, unless it holds half a surrogate pair: JSON can spell one, no file can store it."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{show(text)} is not valid Unicode")
    return text


Pair = Annotated[tuple[int, int], BeforeValidator(as_pair)]
Text = Annotated[str, AfterValidator(check_text)]


def by(pair: tuple[int, int]) -> str:
    return f"{pair[0]}x{pair[1]}"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


class Record(BaseModel):
    """Base of every record: frozen, hashable, no coercion, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class FrozenMap(Mapping[str, V]):
    """A mapping that cannot be changed and can be hashed; equal to any mapping with the same items."""

    pairs: tuple[tuple[str, V], ...]

    def __getitem__(self, key: str) -> V:
        for name, value in self.pairs:
            if name == key:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __hash__(self) -> int:
        return hash(frozenset(self.pairs))  # the order is presentation, not content: `==` ignores it too

    def __repr__(self) -> str:
        return f"FrozenMap({dict(self.pairs)!r})"


@dataclass(frozen=True)
class Frozen:
    """Marks a `Mapping[str, V]` field to be stored as a `FrozenMap`, sorted by `order`, and written as an object."""

    order: Callable[[str], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        key, value = get_args(source)
        items = handler.generate_schema(dict[key, value])  # type: ignore[valid-type]
        validated = core_schema.no_info_before_validator_function(_as_dict, items)
        return core_schema.no_info_after_validator_function(
            self._freeze,
            validated,
            serialization=core_schema.wrap_serializer_function_ser_schema(_write_dict, schema=items),
        )

    def _freeze(self, items: dict[str, V]) -> FrozenMap[V]:
        return FrozenMap(tuple((key, items[key]) for key in sorted(items, key=self.order)))


def _as_dict(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def _write_dict(value: Mapping[str, object], write: Callable[[dict[str, object]], object]) -> object:
    return write(dict(value))
