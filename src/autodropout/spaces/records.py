"""What the records of `spaces` are made of: one strict, frozen base, pairs (height, width), and a frozen mapping; and
what is said of values that are refused.

Policies come from files that strangers wrote, and serve as dictionary keys: so every record refuses what it does not
know, coerces nothing, cannot be changed, and hashes.
"""

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

MAX_EXTENT = 2**20
"""The longest side of a map or an image a record accepts: far above any real one, far below what overflows."""

V = TypeVar("V")
Where = tuple[str | int, ...]
"""A path inside of a record."""

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

    if not TYPE_CHECKING:  # which knows the fields

        def __init__(self, /, **values: object) -> None:
            """Refuse values in the words in which a file is refused: pydantic's own are long, and end in URLs."""
            try:
                super().__init__(**values)
            except ValidationError as invalid:
                problems = problems_of(invalid, type(self))
                missing = [str(path[0]) for path, problem in problems.items() if problem == "missing" and not path[1:]]
                said = [f"{where(path)}{problem}" for path, problem in problems.items() if path[0] not in missing]
                said += [f"missing: {', '.join(missing)}"] if missing else []
                raise ValueError(listed(type(self).__name__, said)) from None

        __init__.__pydantic_base_init__ = True  # records inside of records are validated without it, to know the path


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


# What is said of values that are refused

_WANTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "string_unicode": "valid Unicode",
    "finite_number": "a finite number",
    "dict_type": "an object",
    "model_type": "an object",
    "tuple_type": "an array",
}


MAX_LISTED = 20


def listed(source: str, problems: Sequence[str]) -> str:
    """The problems of one source: one on its line, several below it."""
    if len(problems) == 1:
        return f"{source}: {problems[0]}"
    more = len(problems) - MAX_LISTED
    lines = [*problems[:MAX_LISTED], *([f"and {more} more"] if more > 0 else [])]
    return f"{source}: {len(problems)} problems" + "".join(f"\n  - {line}" for line in lines)


def problems_of(invalid: ValidationError, model: type[BaseModel], others: tuple[str, ...] = ()) -> dict[Where, str]:
    """What is wrong, by path; `others` are keys that the form has beside the model's fields."""
    problems: dict[Where, str] = {}
    for error in invalid.errors(include_url=False):
        if error["type"] != "default_factory_not_called":  # says only that another field, listed too, is wrong
            of_key = error["loc"][-1:] == ("[key]",) and error["type"] != "extra_forbidden"  # pydantic's mark
            path = error["loc"][:-1] if of_key else error["loc"]
            problems.setdefault(path, _problem(error, path, model, others))
    return problems


def _problem(error: ErrorDetails, path: Where, model: type[BaseModel], others: tuple[str, ...]) -> str:
    match error["type"]:
        case "missing":
            return "missing"
        case "extra_forbidden":
            keys = [*([] if path[1:] else others), *_model_at(model, path[:-1]).model_fields]
            return f"unknown key (its value is {show(error['input'])}); the keys here are {', '.join(keys)}"
        case "value_error":
            return str(error["ctx"]["error"])
        case kind if kind in _WANTED:
            return f"{show(error['input'])} is not {_WANTED[kind]}"
        case _:
            return f"{show(error['input'])}: {error['msg']}"


def _model_at(model: type[BaseModel], path: Where) -> type[BaseModel]:
    """The record that stands at a path inside `model`."""
    parts = iter(path)
    for field in parts:
        annotation = model.model_fields[str(field)].annotation
        model = next(_models_in(annotation))
        if get_origin(annotation) in (tuple, Mapping):
            next(parts)  # the index in an array, the key in a mapping
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def where(path: Where) -> str:
    """The path as the message shows it, colon included: `groups[1].pattern.stride: `."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and len(part) <= 80:
            text += f".{part}" if text else part
        else:
            text += f"[{show(part)}]"
    return f"{text}: " if text else ""
