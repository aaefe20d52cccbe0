"""The tokens, and the two patterns they make: 8 for a ConvNet group, 4 for a Transformer site.

The paper's appendix, "Details on the Search Spaces for ConvNets" and "... for Transformer". `CONV_TOKENS` and
`SEQUENCE_TOKENS` are the only place where names, order and available values stand: validation, encoding, counting and
sampling all read them. What a pattern does to a tensor is in `autodropout.patterns`.

Departures from the paper:
1. Binary tokens list False first, so that an index is `int(value)`; the tables list True first.
2. On maps whose sides differ, the rectangle and the stride are computed per axis; the paper's maps are square.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, ValidationInfo, field_validator

from autodropout.spaces.records import Record, as_pair, scale, show

TokenValue = bool | int | float


@dataclass(frozen=True, slots=True)
class Token:
    """One decision of the controller: its name and the values it may take, all of one type."""

    name: str
    values: tuple[TokenValue, ...]

    def index(self, value: object) -> int:
        """The position of `value` in `values`; an integer stands for an equal float, a bool for nothing but itself."""
        wanted = type(self.values[0])
        if type(value) is not wanted and (type(value), wanted) != (int, float):
            raise ValueError(f"{show(value)} ({type(value).__name__}) is not one of {self.allowed} ({wanted.__name__})")
        for index, available in enumerate(self.values):
            if available == value:
                return index
        raise ValueError(f"{show(value)} is not one of {self.allowed}")

    def canonical(self, value: object) -> TokenValue:
        """The available value equal to `value`: 0.0 for 0."""
        return self.values[self.index(value)]

    @property
    def allowed(self) -> str:
        """The available values in words: `1, 2, 3, ..., 32`."""
        texts = [repr(value) for value in self.values]
        return ", ".join(texts if len(texts) <= 8 else [*texts[:3], "...", texts[-1]])


_BINARY = (False, True)
_SHEARS = tuple(twentieths / 20 for twentieths in range(12))  # correctly rounded: 3/20 is the literal 0.15

CONV_TOKENS = (
    Token("size", (0, 1, 2, 3, 4)),
    Token("stride", (1, 2, 4, 8, 16)),
    Token("repeat", tuple(range(1, 33))),
    Token("share_c", _BINARY),
    Token("residual", _BINARY),
    Token("rotate", (0, 15, 30, 45, 60, 75)),
    Token("shear_x", _SHEARS),
    Token("shear_y", _SHEARS),
)
"""The tokens of a ConvNet group. `size` is the k of the paper's `k * floor(d/5)`."""

SEQUENCE_TOKENS = (
    Token("size", (0, 10, 20, 30, 40, 50, 60, 70)),
    Token("stride", (0, 5, 10, 15, 20)),
    Token("share_t", _BINARY),
    Token("share_c", _BINARY),
)
"""The tokens of a Transformer site."""

TRANSFORMER_SITES = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.probabilities",
    "attention.context",
    "attention.output",
    "attention.residual",
    "feedforward.input",
    "feedforward.hidden",
    "feedforward.output",
    "feedforward.residual",
)
"""Where a Transformer layer can be masked, in the order of the computation."""


def check_site(name: str) -> str:
    """The name, if it is a site's."""
    if name not in TRANSFORMER_SITES:
        raise ValueError(f"{show(name)} is not a site; the sites are {', '.join(TRANSFORMER_SITES)}")
    return name


SiteName = Annotated[str, AfterValidator(check_site)]


@dataclass(frozen=True, slots=True)
class Cells:
    """A ConvNet pattern on one map, in cells: the rectangle and the gap between two of them, each (height, width)."""

    size: tuple[int, int]
    stride: tuple[int, int]


class Pattern(Record):
    """The tokens for one place. Each field is the token of its name, and holds one of that token's values."""

    tokens: ClassVar[tuple[Token, ...]]

    size: int
    stride: int

    @property
    def is_none(self) -> bool:
        """Whether this is no pattern at all."""
        return self.size == 0

    @field_validator("*", mode="before")
    @classmethod
    def _in_space(cls, value: object, info: ValidationInfo) -> TokenValue:
        (token,) = (token for token in cls.tokens if token.name == info.field_name)
        return token.canonical(value)

    @classmethod
    def none(cls) -> Self:
        """No pattern at all."""
        return cls.decode((0,) * len(cls.tokens))

    def encode(self) -> tuple[int, ...]:
        """The index of each token's value among the available ones."""
        return tuple(token.index(getattr(self, token.name)) for token in self.tokens)

    @classmethod
    def decode(cls, indices: tuple[int, ...]) -> Self:
        """The pattern of such indices."""
        return cls.model_validate({t.name: t.values[index] for t, index in zip(cls.tokens, indices, strict=True)})

    def __str__(self) -> str:
        if self.is_none:
            return "none"
        said = ((name, value) for name, value in self if value is not False)
        return " ".join(name if value is True else f"{name}={value}" for name, value in said)


class ConvPattern(Pattern):
    """The pattern of a ConvNet group; `size` counts fifths of the map's side."""

    tokens: ClassVar[tuple[Token, ...]] = CONV_TOKENS

    repeat: int
    share_c: bool
    residual: bool
    rotate: int
    shear_x: float
    shear_y: float

    def cells(self, at: tuple[int, int], searched_at: tuple[int, int]) -> Cells:
        """Rectangle and stride on a map of (height, width) `at`, the pattern having been searched on `searched_at`.

        The rectangle is `k * floor(d/5)` cells, hence empty on a side below 5. The stride was chosen in cells of the
        searched map, so it grows with the map: times `d/d0`, rounded half up, at least 1.
        """
        height, width = as_pair(at)
        searched_height, searched_width = as_pair(searched_at)
        return Cells(
            size=(self.size * (height // 5), self.size * (width // 5)),
            stride=(scale(self.stride, height, searched_height), scale(self.stride, width, searched_width)),
        )


class SequencePattern(Pattern):
    """The pattern of a Transformer site; `size` and `stride` count tokens of the sequence."""

    tokens: ClassVar[tuple[Token, ...]] = SEQUENCE_TOKENS

    share_t: bool
    share_c: bool
