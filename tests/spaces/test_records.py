"""What the constructors of records say of values that they refuse: the words in which a file is refused."""

import copy
import inspect
import pickle

import pytest

from autodropout.spaces import (
    ConvGroup,
    ConvPattern,
    ConvPolicy,
    ConvSpace,
    Provenance,
    SequencePattern,
    TransformerPolicy,
    TransformerSpace,
)

TOKENS = {
    "size": 1,
    "stride": 2,
    "repeat": 3,
    "share_c": True,
    "residual": False,
    "rotate": 0,
    "shear_x": 0,
    "shear_y": 0,
}


def refused(record, **values):
    with pytest.raises(ValueError, match=f"^{record.__name__}: ") as problem:
        record(**values)
    assert type(problem.value) is ValueError
    assert problem.value.__suppress_context__, "nothing of pydantic's is shown beside it"
    return str(problem.value)


def test_what_is_missing_is_one_problem():
    assert refused(ConvPattern, size=9) == (
        "ConvPattern: 2 problems\n"
        "  - size: 9 is not one of 0, 1, 2, 3, 4\n"
        "  - missing: stride, repeat, share_c, residual, rotate, shear_x, shear_y"
    )


@pytest.mark.parametrize(
    ("record", "values", "said"),
    [
        (ConvPattern, {**TOKENS, "size": 9}, "size: 9 is not one of 0, 1, 2, 3, 4"),
        (ConvPattern, {**TOKENS, "share_c": 1}, "share_c: 1 (int) is not one of False, True (bool)"),
        (
            ConvPattern,
            {**TOKENS, "colour": 1},
            f"colour: unknown key (its value is 1); the keys here are {', '.join(TOKENS)}",
        ),
        (SequencePattern, {}, "missing: size, stride, share_t, share_c"),
        (ConvPolicy, {"groups": []}, "groups: no group; there must be at least one"),
        (
            ConvPolicy,
            {"groups": [{"pattern": {**TOKENS, "stride": 3}, "searched_at": (8, 8)}]},
            "groups[0].pattern.stride: 3 is not one of 1, 2, 4, 8, 16",
        ),
        (ConvPolicy, {"groups": [{"searched_at": (8, 8)}]}, "groups[0].pattern: missing"),
        (Provenance, {"rate": 2.0}, "rate: 2.0: Input should be less than or equal to 1"),
        (ConvSpace, {"groups": ((0, 3),)}, "groups[0]: (0, 3) is not a pair [height, width] of integers in 1..1048576"),
    ],
)
def test_field_and_value_are_named(record, values, said):
    assert refused(record, **values) == f"{record.__name__}: {said}"


def test_sites_are_named():
    assert "sites.query: 'query' is not a site; the sites are attention.query, " in refused(
        TransformerPolicy, sites={"query": 1}
    )
    assert "sites[0]: 'query' is not a site" in refused(TransformerSpace, sites=("query",))


def test_records_are_what_they_were():
    """Validated once, whatever stands in them, and made in all the ways that pydantic and Python have."""
    pattern = ConvPattern(**TOKENS)
    group = ConvGroup(pattern=pattern, searched_at=(8, 8))
    assert group.pattern is pattern
    assert ConvGroup.model_validate({"pattern": TOKENS, "searched_at": [8, 8]}) == group
    assert copy.deepcopy(group) == pickle.loads(pickle.dumps(group)) == group.model_copy() == group
    assert list(inspect.signature(ConvPattern).parameters) == list(TOKENS)
