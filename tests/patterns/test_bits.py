"""Packed masks: the cells of the plain masks, in bits; as operators, under vmap, and under `torch.compile`."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autodropout.layers import ConvRule, SequenceRule
from autodropout.patterns.bits import conv_bits, conv_dropped, sequence_bits, sequence_dropped
from autodropout.spaces import ConvPattern, SequencePattern

RATES = st.sampled_from([0.0, 0.05, 0.2, 0.7, 1.0])
SEEDS = st.integers(0, 2**62 - 1)
STREAMS = st.integers(-(2**63), 2**63 - 1)


def patterns(kind: type[ConvPattern] | type[SequencePattern]) -> st.SearchStrategy:
    return st.tuples(*(st.integers(0, len(token.values) - 1) for token in kind.tokens)).map(kind.decode)


def seed_of(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int64)


@given(
    patterns(ConvPattern), st.tuples(*[st.integers(1, 4)] * 2, *[st.integers(1, 17)] * 2),
    st.tuples(*[st.integers(1, 20)] * 2), RATES, SEEDS, STREAMS, st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_convnet_rule_is_the_same_packed(pattern, shape, searched_at, rate, seed, stream, channels_last) -> None:
    h = torch.randn(shape)
    if channels_last:
        h = h.contiguous(memory_format=torch.channels_last)
    rule, rate = ConvRule(pattern, searched_at), torch.tensor(rate)
    packed = rule.packed(h, torch.tensor(rule.tokens(), dtype=torch.int32), rate, seed_of(seed), stream)
    assert torch.equal(packed, rule(h, rate, seed_of(seed) ^ stream))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert packed.is_contiguous(memory_format=layout) or 1 in shape  # where the layouts cannot be told apart


@given(
    patterns(SequencePattern).filter(lambda pattern: not pattern.is_none),
    st.lists(st.integers(1, 3), max_size=2), st.integers(1, 80), st.integers(1, 19), RATES, SEEDS, STREAMS,
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_transformer_rule_is_the_same_packed(pattern, leading, length, channels, rate, seed, stream) -> None:
    h = torch.randn(*leading, length, channels)
    rule, rate = SequenceRule(pattern), torch.tensor(rate)
    packed = rule.packed(h, torch.tensor(rule.tokens(), dtype=torch.int32), rate, seed_of(seed), stream)
    assert torch.equal(packed, rule(h, rate, seed_of(seed) ^ stream))


def test_no_pattern_drops_nothing() -> None:
    h = torch.randn(2, 3, 10, 10)
    nothing = ConvRule(ConvPattern.decode((0,) * 8), (10, 10))
    assert torch.equal(
        nothing.packed(h, torch.tensor(nothing.tokens(), dtype=torch.int32), torch.tensor(1.0), seed_of(1), 2), h
    )
    flat = SequenceRule(SequencePattern.decode((0,) * 4))
    tokens = torch.tensor(flat.tokens(), dtype=torch.int32)
    assert torch.equal(flat.packed(h, tokens, torch.tensor(1.0), seed_of(1), 2), h)


def test_the_layout() -> None:
    """Bit j of byte b is cell 8b + j; in channels_last the bytes of a cell's channels lie side by side."""
    tokens = torch.tensor([3, 1, 1, 0, 0, 0, 0, 5, 6], dtype=torch.int32)
    shape = [2, 3, 5, 6]
    last, kept = conv_bits(tokens, torch.tensor(0.7), seed_of(5), 0, shape, True)
    first, same = conv_bits(tokens, torch.tensor(0.7), seed_of(5), 0, shape, False)
    assert (last.shape, first.shape) == ((2, 4, 3), (2, 3, 4))
    assert torch.equal(last.mT, first)
    dropped = conv_dropped(first, shape, False)
    for n, c, cell in product(range(2), range(3), range(30)):
        assert bool(first[n, c, cell // 8] >> (cell % 8) & 1) == bool(dropped[n, c, cell // 6, cell % 6])
    assert 0 < dropped.sum() == 2 * 3 * 30 - kept == 2 * 3 * 30 - same
    assert not (first[..., 3] >> 6).any(), "what lies behind the last cell is 0"


@pytest.mark.parametrize("stacked", [False, True])
def test_as_operators(stacked: bool) -> None:
    rate, seed = torch.tensor(0.3), seed_of(3)
    tokens = torch.tensor([10, 5, 1, 0], dtype=torch.int32)
    if stacked:
        rate, seed, tokens = (value.expand(2, *value.shape).contiguous() for value in (rate, seed, tokens))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(sequence_bits, (tokens, rate, seed, 7, [2, 20, 9]), test_utils=checks)
    if not stacked:
        tokens = torch.tensor([2, 1, 2, 1, 0, 0, 0, 10, 10], dtype=torch.int32)
        for channels_last in (False, True):
            arguments = (tokens, rate, seed, 7, [2, 4, 10, 10], channels_last)
            torch.library.opcheck(conv_bits, arguments, test_utils=checks)


def test_children_side_by_side() -> None:
    """Under vmap each child has the mask it has alone, whatever the others' patterns are."""
    tokens = torch.tensor([[10, 5, 0, 0], [0, 0, 0, 0], [30, 0, 1, 1]], dtype=torch.int32)
    rates, seeds = torch.tensor([0.3, 0.5, 0.9]), torch.tensor([1, 2, 3])
    h = torch.randn(3, 2, 40, 6, requires_grad=True)
    rule = SequenceRule(SequencePattern.decode((1, 0, 0, 0)))  # of which only the kind matters
    together = torch.vmap(lambda h, t, r, s: rule.packed(h, t, r, s, 11))(h, tokens, rates, seeds)
    alone = torch.stack([rule.packed(h[k], tokens[k], rates[k], seeds[k], 11) for k in range(3)])
    assert torch.equal(together, alone)
    assert not torch.equal(alone[0], h[0])
    assert torch.equal(alone[1], h[1])
    (gradient,) = torch.autograd.grad(together.square().sum(), h)
    (expected,) = torch.autograd.grad(alone.square().sum(), h)
    assert torch.equal(gradient, expected)
    shared = torch.vmap(lambda seed: sequence_bits(tokens[0], rates[0], seed, 11, [2, 40, 6]))(seeds)[0]
    assert torch.equal(shared[0], sequence_bits(tokens[0], rates[0], seeds[0], 11, [2, 40, 6])[0])


@pytest.mark.parametrize("channels_last", [False, True])
def test_unpacked_by_compiled_code(channels_last: bool) -> None:
    torch.compiler.reset()
    tokens = torch.tensor([2, 1, 3, 0, 1 << 27, 0, 1 << 26, 12, 12], dtype=torch.int32)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    h = torch.randn(3, 8, 12, 12).contiguous(memory_format=layout).requires_grad_()
    rule = ConvRule(ConvPattern.decode((1,) * 8), (12, 12))

    def masked(h: Tensor, tokens: Tensor, seed: Tensor) -> Tensor:
        return rule.packed(torch.relu(h), tokens, torch.tensor(0.5), seed, 3)

    compiled = torch.compile(masked, fullgraph=True)
    for seed in (1, 2):
        tokens[0] = seed + 1
        results = []
        for function in (masked, compiled):
            out = function(h, tokens, seed_of(seed))
            (gradient,) = torch.autograd.grad(out.sum(), h)
            results.append((out, gradient))
        for eager, fast in zip(*results, strict=True):
            torch.testing.assert_close(eager, fast)
            assert torch.equal(eager == 0, fast == 0)


def test_unpacking_a_sequence() -> None:
    bits = torch.tensor([[0b00000101, 0b1]], dtype=torch.uint8)
    assert sequence_dropped(bits, 9).tolist() == [[True, False, True, False, False, False, False, False, True]]
