"""Tokens, patterns, and a ConvNet pattern's geometry on a map."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodropout.spaces import (
    CONV_TOKENS,
    SEQUENCE_TOKENS,
    TRANSFORMER_SITES,
    Cells,
    ConvPattern,
    SequencePattern,
    Token,
)

from .strategies import conv_patterns, pairs

CONV = {
    "size": 2,
    "stride": 4,
    "repeat": 3,
    "share_c": True,
    "residual": False,
    "rotate": 15,
    "shear_x": 0.15,
    "shear_y": 0.0,
}
SEQUENCE = {"size": 20, "stride": 5, "share_t": True, "share_c": False}


def test_tokens_are_the_papers_tables():
    assert [(token.name, token.values) for token in CONV_TOKENS] == [
        ("size", (0, 1, 2, 3, 4)),
        ("stride", (1, 2, 4, 8, 16)),
        ("repeat", tuple(range(1, 33))),
        ("share_c", (False, True)),
        ("residual", (False, True)),
        ("rotate", (0, 15, 30, 45, 60, 75)),
        ("shear_x", (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55)),
        ("shear_y", (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55)),
    ]
    assert [(token.name, token.values) for token in SEQUENCE_TOKENS] == [
        ("size", (0, 10, 20, 30, 40, 50, 60, 70)),
        ("stride", (0, 5, 10, 15, 20)),
        ("share_t", (False, True)),
        ("share_c", (False, True)),
    ]
    assert len(TRANSFORMER_SITES) == len(set(TRANSFORMER_SITES)) == 11


@pytest.mark.parametrize("model", [ConvPattern, SequencePattern])
def test_fields_are_the_tokens_in_order(model):
    assert list(model.model_fields) == [token.name for token in model.tokens]
    for token in model.tokens:
        assert {type(value) for value in token.values} == {model.model_fields[token.name].annotation}


@pytest.mark.parametrize(("model", "fields"), [(ConvPattern, CONV), (SequencePattern, SEQUENCE)])
def test_every_available_value_is_accepted_and_kept(model, fields):
    for token in model.tokens:
        for index, value in enumerate(token.values):
            pattern = model(**{**fields, token.name: value})
            kept = getattr(pattern, token.name)
            assert kept == value
            assert type(kept) is type(value)
            assert token.index(kept) == index
            assert model.decode(pattern.encode()) == pattern


@pytest.mark.parametrize(
    ("model", "fields", "name", "value"),
    [
        (ConvPattern, CONV, "size", True),
        (ConvPattern, CONV, "size", 5),
        (ConvPattern, CONV, "size", -1),
        (ConvPattern, CONV, "size", 2.0),
        (ConvPattern, CONV, "size", "2"),
        (ConvPattern, CONV, "size", None),
        (ConvPattern, CONV, "stride", 3),
        (ConvPattern, CONV, "repeat", 0),
        (ConvPattern, CONV, "repeat", 33),
        (ConvPattern, CONV, "share_c", 1),
        (ConvPattern, CONV, "residual", "true"),
        (ConvPattern, CONV, "rotate", 90),
        (ConvPattern, CONV, "shear_x", 0.1 + 0.05),  # 0.15000000000000002
        (ConvPattern, CONV, "shear_x", 0.6),
        (ConvPattern, CONV, "shear_x", 1),
        (ConvPattern, CONV, "shear_y", False),
        (ConvPattern, CONV, "shear_y", math.nan),
        (SequencePattern, SEQUENCE, "size", 15),
        (SequencePattern, SEQUENCE, "stride", False),
        (SequencePattern, SEQUENCE, "share_t", 0),
    ],
)
def test_other_values_are_refused_by_field_and_value(model, fields, name, value):
    with pytest.raises(ValueError, match=name) as refused:
        model(**{**fields, name: value})
    assert f"{value!r}" in str(refused.value)
    assert "is not one of" in str(refused.value)


def test_integer_and_negative_zero_become_the_canonical_shear():
    pattern = ConvPattern(**{**CONV, "shear_x": 0, "shear_y": -0.0})
    assert [repr(pattern.shear_x), repr(pattern.shear_y)] == ["0.0", "0.0"]


def test_unknown_and_missing_fields_are_refused():
    with pytest.raises(ValueError, match="height"):
        ConvPattern(**CONV, height=3)
    with pytest.raises(ValueError, match="share_c"):
        SequencePattern(size=20, stride=5, share_t=True)


def test_patterns_are_immutable_hashable_values():
    pattern = ConvPattern(**CONV)
    with pytest.raises(ValueError, match="frozen"):
        pattern.size = 3
    assert {pattern: 1}[ConvPattern(**CONV)] == 1
    assert pattern != ConvPattern(**{**CONV, "size": 3})


def test_size_zero_is_no_pattern():
    assert ConvPattern(**{**CONV, "size": 0}).is_none
    assert SequencePattern(**{**SEQUENCE, "size": 0}).is_none
    assert not ConvPattern(**{**CONV, "size": 1}).is_none
    assert str(SequencePattern(**{**SEQUENCE, "size": 0})) == "none"
    assert str(SequencePattern(**SEQUENCE)) == "size=20 stride=5 share_t"


def test_long_lists_of_values_are_abbreviated_in_messages():
    with pytest.raises(ValueError, match=r"^40 is not one of 1, 2, 3, \.\.\., 32$"):
        Token("repeat", tuple(range(1, 33))).index(40)


@pytest.mark.parametrize(
    ("at", "searched_at", "size", "stride"),
    [
        ((56, 56), (56, 56), (22, 22), (4, 4)),
        ((32, 32), (32, 32), (12, 12), (4, 4)),
        ((7, 7), (7, 7), (2, 2), (4, 4)),
        ((4, 4), (4, 4), (0, 0), (4, 4)),  # floor(4/5) = 0: nothing to drop
        ((4, 9), (4, 9), (0, 2), (4, 4)),
        ((28, 56), (28, 28), (10, 22), (4, 8)),  # per axis
        ((35, 36), (56, 56), (14, 14), (3, 3)),  # 2.5 and 2.57: half rounds up
        ((1, 6), (56, 56), (0, 2), (1, 1)),  # 0.07 and 0.43: at least 1
        ((300, 300), (112, 112), (120, 120), (11, 11)),
    ],
)
def test_cells_on_a_map(at, searched_at, size, stride):
    assert ConvPattern(**CONV).cells(at=at, searched_at=searched_at) == Cells(size=size, stride=stride)


@given(conv_patterns, pairs, pairs)
def test_cells_follow_the_formula_on_every_axis(pattern, at, searched_at):
    cells = pattern.cells(at=at, searched_at=searched_at)
    for d, d0, size, stride in zip(at, searched_at, cells.size, cells.stride, strict=True):
        assert size == pattern.size * math.floor(Fraction(d, 5))
        assert stride == max(1, math.floor(Fraction(pattern.stride * d, d0) + Fraction(1, 2)))


@given(conv_patterns, pairs)
def test_cells_at_the_searched_map_keep_the_stride(pattern, searched_at):
    assert pattern.cells(at=searched_at, searched_at=searched_at).stride == (pattern.stride, pattern.stride)


@pytest.mark.parametrize("bad", [(0, 5), (5, -1), (5,), (True, 5), (5.0, 5), 5, (2**20 + 1, 5)])
@pytest.mark.parametrize("which", ["at", "searched_at"])
def test_cells_refuse_what_is_no_map(which, bad):
    with pytest.raises(ValueError, match="is not a pair"):
        ConvPattern(**CONV).cells(**{"at": (5, 5), "searched_at": (5, 5), which: bad})


@given(st.sampled_from(CONV_TOKENS + SEQUENCE_TOKENS), st.none() | st.booleans() | st.integers() | st.floats())
def test_index_accepts_exactly_the_available_values(token, value):
    available = any(value == v for v in token.values)
    typed = type(value) is type(token.values[0]) or (type(token.values[0]) is float and type(value) is int)
    if available and typed:
        assert token.values[token.index(value)] == value
    else:
        with pytest.raises(ValueError, match="is not one of"):
            token.index(value)
