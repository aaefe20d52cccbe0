"""ConvNet masks against the oracle, their ancestors, and their odd corners."""

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autodropout.patterns import Tiling, conv_mask, oracle
from autodropout.patterns.conv import FRACTION, _inverse_map, covered
from autodropout.patterns.draws import words

ALWAYS = torch.tensor(1.0)


def dropped(tiling: Tiling, shape: tuple[int, ...], rate: float, seed: int) -> Tensor:
    mask, kept = conv_mask(tiling, shape, torch.tensor(rate), torch.tensor(seed))
    assert kept.item() == mask.expand(shape).sum().item()
    return ~mask


@st.composite
def tilings(draw: st.DrawFn, h: int, w: int) -> Tiling:
    """Any geometry, sizes beyond the map and empty ones included."""
    return Tiling(
        size=(draw(st.integers(0, 2 * h)), draw(st.integers(0, 2 * w))),
        stride=(draw(st.integers(1, 5)), draw(st.integers(1, 5))),
        repeat=draw(st.integers(1, 6)),
        share_c=draw(st.booleans()),
        rotate=draw(st.sampled_from([0, 15, 30, 45, 60, 75])),
        shear_x=draw(st.sampled_from([0.0, 0.05, 0.3, 0.55])),
        shear_y=draw(st.sampled_from([0.0, 0.05, 0.3, 0.55])),
    )


@given(data=st.data(), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=150, deadline=None)
def test_every_cell_is_the_oracles(data: st.DataObject, seed: int) -> None:
    n, c = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    h, w = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    tiling = data.draw(tilings(h, w))
    rate = data.draw(st.sampled_from([0.1, 0.5, 1.0]))
    cells = dropped(tiling, (n, c, h, w), rate, seed)
    channels = 1 if tiling.share_c else c
    for sample in range(n):
        for channel in range(channels):
            unit = sample * channels + channel
            draw = oracle.conv_draw(tiling, h, w, seed, unit)
            expected = [[False] * w for _ in range(h)]
            if draw.luck < rate:
                # The fast code's coefficients may round the other way at a tie: one step of 1/4096, no more.
                exact = oracle.inverse_map(draw.angle, draw.shear_x, draw.shear_y)
                raw = _inverse_map(tiling, words(torch.tensor(seed), torch.tensor([unit]), 6)[:, 3:])
                fast = tuple(tuple(c.item() / 2**FRACTION for c in row) for row in raw)
                assert all(abs(fast[i][j] - exact[i][j]) <= 2**-FRACTION for i in (0, 1) for j in (0, 1))
                expected = oracle.conv_cells(tiling, h, w, draw.centre, fast)
            assert cells[sample, channel].tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_whole_mask_is_the_oracles(seed: int) -> None:
    tiling = Tiling((2, 3), (1, 2), 2, share_c=seed % 2 == 0, rotate=75, shear_x=0.55, shear_y=0.3)
    shape = (2, 3, 7, 11)
    expected = torch.tensor(oracle.conv_dropped(tiling, shape, 0.5, seed))
    assert torch.equal(dropped(tiling, shape, 0.5, seed), expected)


def test_exact_small_case() -> None:
    """Two 1x2 rectangles per axis, one cell apart, no transformation, centred by the draw."""
    tiling = Tiling((1, 2), (1, 1), 2)
    seed = 5
    (y, x) = oracle.conv_draw(tiling, 6, 6, seed, 0).centre
    rows = {y - 1, y + 1}  # extent 3: first cell at y - 1
    columns = {x - 2, x - 1, x + 1, x + 2}  # extent 5: first at x - 2
    expected = [[r in rows and c in columns for c in range(6)] for r in range(6)]
    assert dropped(tiling, (1, 1, 6, 6), 1.0, seed)[0, 0].tolist() == expected


def test_draws_cover_their_ranges_uniformly() -> None:
    """Centres, angles and shears of 20,000 units: means within 5 standard errors of a uniform draw's (p < 1e-6)."""
    tiling = Tiling((1, 1), (1, 1), 1, rotate=60, shear_x=0.4, shear_y=0.2)
    draws = [oracle.conv_draw(tiling, 9, 5, 77, unit) for unit in range(20_000)]
    columns = torch.tensor([(d.luck, *d.centre, d.angle, d.shear_x, d.shear_y) for d in draws], dtype=torch.float64)
    angle = torch.pi / 3
    means = torch.tensor([0.5, 4.0, 2.0, 0.0, 0.0, 0.0])
    deviations = torch.tensor([1.0, (81 - 1) ** 0.5, (25 - 1) ** 0.5, 2 * angle, 0.8, 0.4]) / 12**0.5
    assert ((columns.mean(0) - means).abs() < 5 * deviations / 20_000**0.5).all()
    assert ((columns.std(0) / deviations - 1).abs() < 0.02).all()
    correlation = torch.corrcoef(columns.T) - torch.eye(6)
    assert correlation.abs().max() < 5 / 20_000**0.5


class TestAncestors:
    """Passed sizes directly, the mask function contains the methods the paper generalizes."""

    @pytest.mark.parametrize("size", [13, 14, 40])  # at least 2d - 1 for d = 7
    def test_a_rectangle_over_the_whole_map_is_spatial_dropout(self, size: int) -> None:
        cells = dropped(Tiling((size, size), (1, 1), 1), (64, 32, 7, 7), 0.3, seed=1)
        per_channel = cells.flatten(2)
        assert torch.equal(per_channel.all(-1), per_channel.any(-1))
        share = per_channel.all(-1).double().mean().item()
        assert abs(share - 0.3) < 4.9 * (0.21 / 2048) ** 0.5  # p < 1e-6

    def test_shared_along_channels_it_is_stochastic_depth(self) -> None:
        cells = dropped(Tiling((13, 13), (1, 1), 1, share_c=True), (2048, 5, 7, 7), 0.3, seed=1)
        assert cells.shape == (2048, 1, 7, 7)
        per_sample = cells.flatten(1)
        assert torch.equal(per_sample.all(-1), per_sample.any(-1))
        assert abs(per_sample.all(-1).double().mean().item() - 0.3) < 4.9 * (0.21 / 2048) ** 0.5

    @pytest.mark.parametrize("block", [1, 2, 3, 4, 7])
    def test_a_single_rectangle_is_a_dropblock_block(self, block: int) -> None:
        tiling, h, w, seed = Tiling((block, block), (1, 1), 1), 9, 8, 3
        cells = dropped(tiling, (50, 1, h, w), 1.0, seed)
        centres = torch.zeros(50, 1, h, w)
        for unit in range(50):
            y, x = oracle.conv_draw(tiling, h, w, seed, unit).centre
            centres[unit, 0, y, x] = 1
        before, after = block // 2, (block - 1) // 2  # a block reaches (b-1)//2 cells up and b//2 cells down
        blocks = F.max_pool2d(F.pad(centres, (before, after, before, after)), block, stride=1) > 0
        assert torch.equal(cells, blocks)


class TestRealisedRate:
    """The share of cells dropped is rate times the coverage that the oracle integrates, over 200 random patterns.

    The sampling unit is the draw unit. Its share of dropped cells lies in [0, 1] and has mean m, so its variance is
    at most m (1 - m). With 200 comparisons at 16,384 units, a Bonferroni-corrected p of 0.001 over all gives 4.56
    standard errors; 0.003 is left to the oracle's integration over angles and shears in 8 steps.
    """

    UNITS = 16_384

    @pytest.mark.parametrize("block", range(10))
    def test_conv(self, block: int) -> None:
        for number in range(block * 20, block * 20 + 20):
            r = random.Random(number)
            h, w = r.choice([(5, 5), (7, 7), (5, 9), (11, 6), (8, 8), (13, 7), (4, 10)])
            k = r.randint(1, 4)
            stride = r.choice([1, 2, 4, 8, 16])
            tiling = Tiling(
                size=(k * max(1, h // 5), k * max(1, w // 5)),
                stride=(stride, stride),
                repeat=r.randint(1, 32),
                share_c=r.random() < 0.5,
                rotate=r.choice([0, 15, 30, 45, 60, 75]),
                shear_x=r.randint(0, 11) / 20,
                shear_y=r.randint(0, 11) / 20,
            )
            rate = r.choice([0.1, 0.2, 0.5, 1.0])
            shape = (self.UNITS, 2, h, w) if tiling.share_c else (self.UNITS // 16, 16, h, w)
            expected = rate * oracle.conv_coverage(tiling, h, w)
            share = dropped(tiling, shape, rate, seed=number).double().mean().item()
            bound = 4.56 * (max(expected * (1 - expected), 1e-4) / self.UNITS) ** 0.5 + 0.003
            assert abs(share - expected) < bound, (number, tiling, (h, w), rate)


def test_same_seed_same_mask_and_another_seed_another() -> None:
    tiling = Tiling((3, 3), (1, 1), 2, rotate=30)
    one, again, other = (dropped(tiling, (4, 8, 9, 9), 0.5, seed) for seed in (7, 7, 8))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_masks_do_not_depend_on_the_memory_format() -> None:
    tiling = Tiling((3, 3), (1, 1), 2, rotate=30)
    plain, _ = conv_mask(tiling, (4, 8, 9, 9), torch.tensor(0.5), torch.tensor(3))
    last, _ = conv_mask(tiling, (4, 8, 9, 9), torch.tensor(0.5), torch.tensor(3), channels_last=True)
    assert torch.equal(plain, last)
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_large_maps_stay_within_the_fixed_point_range() -> None:
    """At 512 cells and the largest angle and shears every cell agrees with the oracle along the map's border."""
    tiling = Tiling((40, 40), (16, 16), 8, rotate=75, shear_x=0.55, shear_y=0.55)
    draws = words(torch.tensor(11), torch.arange(4), 6)[:, 1:]
    cells = covered(tiling, draws, 512, 512)
    for unit in range(4):
        raw = _inverse_map(tiling, draws[unit : unit + 1, 2:])
        matrix = tuple(tuple(c.item() / 2**FRACTION for c in row) for row in raw)
        centre = tuple(int(d) * 512 >> 32 for d in draws[unit, :2])
        for y, x in ((0, 0), (0, 511), (511, 0), (511, 511), (255, 256), (0, 255), (300, 17)):
            v, u = oracle.source(y, x, 512, 512, matrix)
            expected = oracle.drops(tiling, 0, v, centre[0]) and oracle.drops(tiling, 1, u, centre[1])
            assert cells[unit, y, x].item() is expected


@pytest.mark.parametrize("share_c", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_operator_is_well_formed(share_c: bool, channels_last: bool) -> None:
    args = (torch.tensor(3), torch.tensor(0.5), [2, 3, 6, 5], [2, 2], [1, 1], 2, share_c, 30.0, 0.1, 0.2, channels_last)
    torch.library.opcheck(torch.ops.autodropout.conv_mask.default, args)
