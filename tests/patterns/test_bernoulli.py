"""Independent draws: one of 16 bits, or two where that is too few."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autodropout.patterns import bernoulli, rare
from autodropout.patterns.bernoulli import two_rates


@given(shape=st.lists(st.integers(0, 7), min_size=1, max_size=4), seed=st.integers(0, 2**63 - 1))
@settings(deadline=None)
def test_bernoulli_takes_any_shape(shape: list[int], seed: int) -> None:
    none, some, all_ = (bernoulli(shape, torch.tensor(rate), torch.tensor(seed)) for rate in (0.0, 0.4, 1.0))
    assert list(some.shape) == shape
    assert not none.any()
    assert all_.all()


def test_bernoulli_is_independent_of_how_much_is_drawn() -> None:
    """Element i is a function of (seed, i), across the chunks in which a CPU works."""
    long = bernoulli((200_001,), torch.tensor(0.3), torch.tensor(5))
    assert torch.equal(long[:70_001], bernoulli((70_001,), torch.tensor(0.3), torch.tensor(5)))
    assert abs(long.double().mean().item() - 0.3) < 5 * (0.21 / 200_001) ** 0.5


def test_draws_of_one_hash_are_independent() -> None:
    """And those of neighbouring ones: correlations at ten distances, five standard deviations each, p of 6e-6."""
    drawn = bernoulli((400_000,), torch.tensor(0.3), torch.tensor(5)).double() - 0.3
    for distance in range(1, 11):
        together = drawn[distance:] * drawn[:-distance]
        assert abs(together.mean().item() / 0.21) < 5 / len(together) ** 0.5, distance
    places = drawn.view(-1, 4).mean(0)  # each quarter of a hash has the rate
    assert (places.abs() < 5 * (0.21 / 100_000) ** 0.5).all()


def test_a_rate_is_a_multiple_of_one_in_65536() -> None:
    """The nearest; draws at one rate are among those at a higher one; rates near 0 and 1 draw nothing and all."""

    def drawn(rate: float) -> Tensor:
        return bernoulli((300_000,), torch.tensor(rate, dtype=torch.float64), torch.tensor(6))

    assert torch.equal(drawn(0.3), drawn(round(0.3 * 2**16) / 2**16))
    assert not drawn(2**-18).any()
    assert drawn(1 - 2**-18).all()
    fewer, more = drawn(0.3), drawn(0.3 + 2**-16)
    assert not (fewer & ~more).any()
    # Poisson of mean 300,000 / 65,536 = 4.6: none with p of 0.01, more than 20 with p of 1e-8; the seed is fixed.
    assert 0 < (more & ~fewer).sum() <= 20


@given(density=st.one_of(st.just(0.0), st.floats(2**-20, 1.0), st.floats(-20, 0).map(lambda power: 2.0**power)))
def test_two_draws_are_as_rare_as_one_should_be(density: float) -> None:
    """Also below what one draw of 16 bits can tell from nothing."""
    first, second = ((rate * 2**16).round() / 2**16 for rate in two_rates(torch.tensor(density)))
    assert float(first) <= 1.0
    assert float(first * second) == pytest.approx(density, rel=0.01)


@given(
    shape=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    rate=st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 0.7, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
@settings(deadline=None)
def test_a_rare_draw_is_two_that_both_hit(shape: list[int], rate: float, seed: int) -> None:
    """Though the second is made only where the first hits."""
    first, second = two_rates(torch.tensor(rate))
    both = bernoulli(shape, first, torch.tensor(seed)) & bernoulli(shape, second, ~torch.tensor(seed))
    assert torch.equal(rare(shape, torch.tensor(rate), torch.tensor(seed)), both)


@pytest.mark.parametrize("shape", [[2, 5], [3, 3], [0, 3]], ids=str)
def test_the_operators_are_well_formed(shape: list[int]) -> None:
    """Of several children, too: compiled code refuses strides that it was not told of."""
    arguments = (torch.tensor(3), torch.tensor(0.5), shape)
    torch.library.opcheck(torch.ops.autodropout.bernoulli.default, arguments)
    torch.library.opcheck(torch.ops.autodropout.rare.default, arguments)
    children = (torch.tensor([3, 4]), torch.tensor([0.5, 0.2]), shape)
    torch.library.opcheck(torch.ops.autodropout.bernoulli.default, children)
