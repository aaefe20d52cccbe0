"""Random policies and provenances for Hypothesis, over the whole of what the records accept."""

import math

from hypothesis import strategies as st

from autodropout.spaces import (
    TRANSFORMER_SITES,
    ConvGroup,
    ConvPattern,
    ConvPolicy,
    ConvSpace,
    Provenance,
    SequencePattern,
    TransformerPolicy,
    TransformerSpace,
)

sides = st.integers(1, 2**20)
pairs = st.tuples(sides, sides)
texts = st.text(max_size=30)  # surrogates excluded by Hypothesis' default, control characters and quotes included
dates = st.datetimes().map(lambda moment: moment.isoformat()) | st.dates().map(lambda day: day.isoformat())


def patterns(model):
    values = {token.name: st.sampled_from(token.values) for token in model.tokens}
    return st.builds(model, **values)


conv_patterns, sequence_patterns = patterns(ConvPattern), patterns(SequencePattern)

provenances = st.builds(
    Provenance,
    space=st.none() | texts,
    study=st.none() | texts,
    trial=st.none() | st.integers(0, 2**63 - 1),
    score=st.none() | st.floats(allow_nan=False, allow_infinity=False).filter(math.isfinite),
    model=st.none() | texts,
    data=st.none() | texts,
    rate=st.none() | st.floats(0, 1),
    date=st.none() | dates,
    software=st.none() | st.dictionaries(texts, texts, max_size=4),
    note=st.none() | texts,
)

conv_spaces = st.builds(
    ConvSpace, groups=st.lists(pairs, min_size=1, max_size=6, unique=True).map(tuple), resolution=st.none() | pairs
)
transformer_spaces = st.builds(
    TransformerSpace, sites=st.lists(st.sampled_from(TRANSFORMER_SITES), min_size=1, unique=True).map(tuple)
)

conv_groups = st.builds(ConvGroup, pattern=conv_patterns, searched_at=pairs, at=pairs)
conv_policies = st.builds(
    ConvPolicy,
    groups=st.lists(conv_groups, min_size=1, max_size=6, unique_by=lambda group: group.searched_at).map(tuple),
    resolution=st.none() | pairs,
    provenance=st.none() | provenances,
)
transformer_policies = st.builds(
    TransformerPolicy,
    sites=st.dictionaries(st.sampled_from(TRANSFORMER_SITES), sequence_patterns, min_size=1),
    provenance=st.none() | provenances,
)
policies = conv_policies | transformer_policies
