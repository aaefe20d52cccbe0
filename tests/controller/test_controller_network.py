"""The controller's network: the paper's shape, probabilities that are probabilities, a cache that changes nothing."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from autodropout.controller.transformer import ControllerNetwork
from autodropout.spaces import ConvSpace, TransformerSpace

CHOICES = {
    "convnet": [len(token.values) for token in ConvSpace(groups=((32, 32), (16, 16), (8, 8))).tokens],
    "transformer": [len(token.values) for token in TransformerSpace().tokens],
    "one position": [3],
    "a token without a choice": [2, 1, 4],
}
TINY = [2, 3, 1, 4]


@pytest.fixture(params=CHOICES)
def network(request: pytest.FixtureRequest) -> ControllerNetwork:
    return sharpened(ControllerNetwork(CHOICES[request.param], seed=1))


def sharpened(network: ControllerNetwork) -> ControllerNetwork:
    """Far from uniform, so that a wrong probability is seen; attention far from flat, so that a wrong cache is."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4.0)
    return network


def draws(count: int, positions: int) -> Tensor:
    return torch.rand(count, positions, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def all_strings(choices: list[int]) -> Tensor:
    return torch.tensor(list(itertools.product(*map(range, choices))))


def test_the_papers_shape_and_initialization() -> None:
    network = ControllerNetwork(CHOICES["convnet"], seed=0)
    assert len(network.blocks) == 4
    block = network.blocks[0]
    assert isinstance(block.project, nn.Linear)
    assert block.project.weight.shape == (3 * 4 * 32, 128)
    assert isinstance(block.inner, nn.Linear)
    assert block.inner.weight.shape == (32, 128)
    for name, parameter in network.named_parameters():
        assert parameter.dtype == torch.float32
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:  # a standard deviation from n normal numbers is within 5 / sqrt(2n) of the truth but once in a million
            error = 5 / math.sqrt(2 * parameter.numel())
            assert parameter.std().item() == pytest.approx(0.02, rel=error), name
            assert abs(parameter.mean().item()) < 5 * 0.02 / math.sqrt(parameter.numel()), name


def test_weights_are_a_function_of_the_seed_and_leave_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (ControllerNetwork(TINY, seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.head, other.head)


def test_the_cache_changes_nothing(network: ControllerNetwork) -> None:
    network.double()
    tokens, log_prob = network.sample(draws(50, len(network.choices)))
    whole = network.log_prob(network(tokens), tokens)
    torch.testing.assert_close(log_prob, whole, rtol=1e-11, atol=1e-11)


def test_in_float32_the_two_differ_by_rounding() -> None:
    """So that a weight on policy is 1 within 1e-4."""
    network = ControllerNetwork(CHOICES["convnet"], seed=1)
    tokens, log_prob = network.sample(draws(50, len(network.choices)))
    whole = network.log_prob(network(tokens), tokens).double()
    torch.testing.assert_close(log_prob, whole, rtol=0, atol=1e-4)


def test_tokens_are_values_of_their_positions(network: ControllerNetwork) -> None:
    tokens, _ = network.sample(draws(200, len(network.choices)))
    assert (tokens >= 0).all()
    assert (tokens < torch.tensor(network.choices)).all()


@pytest.mark.parametrize("draw", [0.0, 1 - 2.0**-53])
def test_extreme_draws_give_the_first_and_the_last_value(network: ControllerNetwork, draw: float) -> None:
    tokens, _ = network.sample(torch.full((1, len(network.choices)), draw, dtype=torch.float64))
    assert tokens[0].tolist() == [0 if draw == 0 else count - 1 for count in network.choices]


def test_probabilities_sum_to_one_and_absent_values_have_none() -> None:
    network = sharpened(ControllerNetwork(TINY, seed=1))
    strings = all_strings(TINY)
    by_value = network(strings)
    assert network.log_prob(by_value, strings).double().exp().sum().item() == pytest.approx(1, abs=1e-5)
    for position, count in enumerate(TINY):
        assert not by_value[:, position, count:].exp().any()


def test_a_token_depends_on_those_before_it_and_on_no_other() -> None:
    network = sharpened(ControllerNetwork([3, 3, 3], seed=1))
    reference = network(torch.tensor([[0, 0, 0]]))[0]
    changed = network(torch.tensor([[0, 1, 0]]))[0]
    assert torch.equal(reference[:2], changed[:2])
    assert (reference[2] - changed[2]).abs().max() > 1e-3


def test_samples_follow_the_probabilities() -> None:
    """Chi-square over all 24 strings; the 0.999 quantile at 23 degrees of freedom is 49.7."""
    network = sharpened(ControllerNetwork(TINY, seed=1))
    strings = all_strings(TINY)
    expected = 20_000 * network.log_prob(network(strings), strings).detach().double().exp()
    tokens, _ = network.sample(draws(20_000, len(TINY)))
    code = torch.tensor([12, 4, 4, 1])
    counts = torch.bincount((tokens * code).sum(-1), minlength=24).double()
    assert ((counts - expected) ** 2 / expected).sum().item() < 49.7
    assert expected.max() > 2 * expected.min(), "a test of uniform sampling would show nothing"
