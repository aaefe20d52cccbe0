"""Transformer masks against the oracle, their ancestors, and their odd corners."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autodropout.patterns import Runs, bernoulli, oracle, sequence_mask


def dropped(runs: Runs, shape: tuple[int, ...], rate: float, seed: int) -> Tensor:
    mask, kept = sequence_mask(runs, shape, torch.tensor(rate), torch.tensor(seed))
    assert kept.item() == mask.expand(shape).sum().item()
    assert mask.shape[-1] == (1 if runs.share_c else shape[-1])
    return ~mask.expand(shape)


@given(
    runs=st.builds(Runs, st.integers(1, 14), st.integers(0, 6), st.booleans(), st.booleans()),
    heads=st.integers(1, 3),
    length=st.integers(1, 30),
    channels=st.integers(1, 5),
    rate=st.sampled_from([0.125, 0.5, 1.0]),
    seed=st.integers(0, 2**63 - 1),
)
@settings(max_examples=150, deadline=None)
def test_every_value_is_the_oracles(runs: Runs, heads: int, length: int, channels: int, rate: float, seed: int) -> None:
    values = dropped(runs, (2, heads, length, channels), rate, seed)
    expected = oracle.sequence_dropped(runs, 2 * heads, length, channels, rate, seed)
    assert values.flatten(0, 1).tolist() == expected


class TestAncestors:
    """One run over the whole sequence gives the classical methods, exactly: the same draws at the same rate."""

    SHAPE = (64, 20, 16)

    @pytest.mark.parametrize("size", [20, 70])
    def test_dropout(self, size: int) -> None:
        values = dropped(Runs(size, 0), self.SHAPE, 0.3, seed=4)
        assert torch.equal(values, bernoulli(self.SHAPE, torch.tensor(0.3), torch.tensor(4)))

    def test_word_dropout(self) -> None:
        values = dropped(Runs(20, 0, share_c=True), self.SHAPE, 0.3, seed=4)
        words = bernoulli((64, 20, 1), torch.tensor(0.3), torch.tensor(4))
        assert torch.equal(values, words.expand(self.SHAPE))

    def test_variational_dropout(self) -> None:
        values = dropped(Runs(20, 0, share_t=True), self.SHAPE, 0.3, seed=4)
        channels = bernoulli((64, 1, 16), torch.tensor(0.3), torch.tensor(4))
        assert torch.equal(values, channels.expand(self.SHAPE))


def test_blocks_share_their_draw_and_gaps_are_kept() -> None:
    """With rate 1 the covered tokens are seen; with rate 1/2 a run is dropped whole or not at all."""
    runs = Runs(4, 2, share_t=True, share_c=True)
    covered = dropped(runs, (200, 24, 3), 1.0, seed=9)[:, :, 0]
    half = dropped(runs, (200, 24, 3), 0.5, seed=9)[:, :, 0]
    assert not (half & ~covered).any()
    for row in range(200):
        start = oracle.sequence_start(runs, 24, 9, row)
        assert covered[row].tolist() == [(t - start) % 6 < 4 for t in range(24)]
        for first in range(start, 24 - 3, 6):
            assert half[row, first : first + 4].unique().numel() == 1


def test_starts_are_uniform() -> None:
    """Chi-square over 15 starts, 30,000 rows: below the 1e-6 quantile of 14 degrees of freedom."""
    runs = Runs(10, 5)
    counts = torch.zeros(15)
    for row in range(30_000):
        counts[oracle.sequence_start(runs, 70, 1, row)] += 1
    assert ((counts - 2000) ** 2 / 2000).sum() < 55.0


def test_realised_rate() -> None:
    """Share dropped = rate * size / (size + stride), over 200 random patterns and shapes.

    The sampling unit is a row; its share lies in [0, 1] with mean m, so its variance is at most m (1 - m). 200
    comparisons, 4,096 rows, p of 0.001 over all: 4.56 standard errors.
    """
    for number in range(200):
        r = random.Random(number)
        runs = Runs(r.randrange(1, 71), r.choice([0, 5, 10, 15, 20]), r.random() < 0.5, r.random() < 0.5)
        length, channels, rate = r.randint(1, 90), r.randint(1, 4), r.choice([0.1, 0.2, 0.5, 1.0])
        share = dropped(runs, (1024, 4, length, channels), rate, seed=number).double().mean().item()
        expected = rate * runs.size / (runs.size + runs.stride)
        assert abs(share - expected) <= 4.56 * (expected * (1 - expected) / 4096) ** 0.5 + 1e-9, (number, runs, length)


@pytest.mark.parametrize("share_t", [False, True])
@pytest.mark.parametrize("size", [3, 70])
def test_the_operators_are_well_formed(share_t: bool, size: int) -> None:
    args = (torch.tensor(3), torch.tensor(0.5), [2, 2, 9, 5], size, 0, share_t, False)
    torch.library.opcheck(torch.ops.autodropout.sequence_mask.default, args)
