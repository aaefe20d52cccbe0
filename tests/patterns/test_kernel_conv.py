"""Triton's ConvNet masks and what puts masks on, in Triton's interpreter: equal to plain PyTorch, bit for bit.

The interpreter cuts off where a GPU rounds to bfloat16, so that type is left to `tests/gpu/test_cuda_kernels.py`.
"""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bits import RATES, SEEDS, STREAMS, patterns, seed_of
from torch import Tensor

from autodropout.layers import ConvRule, rescale
from autodropout.patterns.bits import conv_bits, conv_bits_together, conv_dropped, sequence_dropped
from autodropout.patterns.kernels import apply, conv
from autodropout.spaces import ConvPattern


def check(*arguments) -> Tensor:
    (bits, kept), (expected, count) = conv.conv_bits(*arguments), conv_bits(*arguments)
    assert torch.equal(bits, expected)
    assert torch.equal(kept, count)
    return kept


@given(
    patterns(ConvPattern), st.sampled_from([(1, 1), (2, 3), (1, 130), (3, 64), (5, 7)]),
    st.tuples(st.integers(1, 18), st.one_of(st.integers(1, 18), st.sampled_from([8, 16]))),
    st.tuples(*[st.integers(1, 40)] * 2), RATES, SEEDS, STREAMS, st.booleans(),
    st.sampled_from([1, 8, 4096]), st.sampled_from([1, 1 << 17]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_bits(pattern, units, cells, searched_at, rate, seed, stream, channels_last, programs, many) -> None:
    """However many programs share the work, and with several units to a thread or one."""
    tokens = torch.tensor(ConvRule(pattern, searched_at).tokens(), dtype=torch.int32)
    with mock.patch.multiple(conv, PROGRAMS=programs, MANY=many):
        check(tokens, torch.tensor(rate), seed_of(seed), stream, [*units, *cells], channels_last)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("cells", [(33, 33), (14, 40), (5, 224), (300, 6), (512, 5)])
def test_bits_of_large_maps(cells: tuple[int, int], channels_last: bool) -> None:
    """Turned and sheared, with tilings from the finest to ones that are far larger than the map."""
    for number, (size, stride, repeat) in enumerate([(1, 1, 32), (2, 2, 4), (4, 16, 32), (3, 8, 3)]):
        tokens = [size, stride, repeat, 0, 5 << 26, 1 << 27, 1 << 27, cells[0] - number, cells[1]]
        arguments = torch.tensor(0.7), seed_of(number), 7, [2, 3, *cells], channels_last
        with mock.patch.object(conv, "PROGRAMS", 4):
            kept = check(torch.tensor(tokens, dtype=torch.int32), *arguments)
        assert 0 < kept < 6 * cells[0] * cells[1]


def test_a_shared_pattern_hits_all_channels_of_a_sample() -> None:
    """More hits in a block of units than it has lanes, and blocks without any."""
    tokens = torch.tensor([2, 1, 3, 1, 1 << 28, 1 << 26, 0, 7, 7], dtype=torch.int32)
    with mock.patch.multiple(conv, MANY=1, PROGRAMS=8):
        check(tokens, torch.tensor(0.4), seed_of(2), 3, [4, 600, 7, 7], True)


def test_a_shared_pattern_is_even_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hits are whole samples; still no block of units has a multiple of its share of them, and few have none."""
    found = []

    class Watched:
        def __getitem__(self, grid):
            def launch(tokens, sites, fields, counts, *others, **options):
                found.append(counts[0].clone())

            return launch

    monkeypatch.setattr(conv, "_cover", Watched())
    tokens = torch.tensor([2, 2, 4, 1, 1 << 28, 1 << 26, 0, 7, 7], dtype=torch.int32)
    conv.conv_bits(tokens, torch.tensor(0.2), seed_of(4), 1, [128, 256, 7, 7], True)
    (hits,) = found
    assert hits.sum() % 256 == 0
    share = hits.float().mean()
    assert 0.1 < share / 512 < 0.3
    # A block meets 16 samples, as do 7 others, and 8 such sets are all there are: p of 2e-3 that in one 10 are hit.
    assert hits.max() < 3 * share
    assert (hits == 0).float().mean() < 0.25  # two sets: p of 0.02


@given(
    st.lists(
        st.tuples(patterns(ConvPattern), RATES, st.sampled_from([1, 3, 40, 128, 200]), STREAMS), min_size=1, max_size=4
    ),
    st.integers(1, 3), st.tuples(*[st.integers(1, 12)] * 2), SEEDS, st.booleans(),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_bits_of_several_sites(several, samples, cells, seed, channels_last) -> None:
    """Together they are what each is alone."""
    tokens = torch.tensor([ConvRule(pattern, (9, 9)).tokens() for pattern, _, _, _ in several], dtype=torch.int32)
    rates = torch.tensor([rate for _, rate, _, _ in several])
    channels = [count for _, _, count, _ in several]
    sites = torch.tensor([[count, stream] for _, _, count, stream in several])
    arguments = tokens, rates, sites, seed_of(seed), samples, channels, cells, channels_last
    (bits, kept), (expected, counts) = conv.conv_bits_together(*arguments), conv_bits_together(*arguments)
    assert torch.equal(bits, expected)
    assert torch.equal(kept, counts)
    first, *_ = conv_bits(
        tokens[0], rates[0], seed_of(seed), several[0][3], [samples, channels[0], *cells], channels_last
    )
    assert torch.equal(expected[: first.numel()], first.flatten())


def test_a_map_of_many_bytes() -> None:
    """More bytes to a unit than lanes to a program, and more units than are hit."""
    tokens = torch.tensor([1, 2, 5, 0, 1 << 28, 1 << 26, -(1 << 25), 40, 40], dtype=torch.int32)
    arguments = tokens, torch.tensor(0.1), seed_of(9), -3, [1, 30, 40, 37], True
    bits, kept = conv.conv_bits(*arguments)
    assert torch.equal(bits, conv_bits(*arguments)[0])
    assert 0 < kept < 30 * 40 * 37


@given(
    st.sampled_from([(1, 1), (2, 3), (2, 64), (1, 1030)]), st.tuples(*[st.integers(1, 9)] * 2), SEEDS,
    st.sampled_from([torch.float16, torch.float32]), st.booleans(), st.sampled_from([0.0, 0.5, 1.0]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_putting_bits_on_a_map(units, cells, seed, dtype, channels_last, rate) -> None:
    shape = (*units, *cells)
    tokens = torch.tensor([4, 1, 32, 0, 0, 0, 0, *cells], dtype=torch.int32)
    bits, kept = conv_bits(tokens, torch.tensor(rate), seed_of(seed), 0, shape, channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    h = torch.randn(shape, dtype=dtype).contiguous(memory_format=layout)

    expected = rescale(h, ~conv_dropped(bits, shape, channels_last), kept)
    if channels_last:
        assert torch.equal(apply.apply_last(h, bits, kept), expected)
    else:
        assert torch.equal(apply.apply_rows(h.flatten(2), bits, kept).view(shape), expected)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 70), SEEDS)
@settings(max_examples=20, deadline=None)
def test_putting_bits_on_rows(children, rows, values, seed) -> None:
    """Each child is rescaled by the share of its own values that are kept."""
    bits = torch.randint(0, 256, (children, rows, (values + 7) // 8), dtype=torch.uint8)
    dropped = sequence_dropped(bits, values)
    kept = (~dropped).flatten(1).sum(1)
    h = torch.randn(children, rows, values)
    expected = torch.stack([rescale(h[k], ~dropped[k], kept[k]) for k in range(children)])
    assert torch.equal(apply.apply_rows(h, bits, kept), expected)
