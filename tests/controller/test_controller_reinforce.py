"""Learning: the gradient is the paper's, checked against every string of a small space; weights, baseline, entropy."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from autodropout.controller import FAST, PAPER, Settings, Weighting
from autodropout.controller.reinforce import (
    Baseline,
    Imitation,
    Learner,
    importance_weights,
    objective,
    token_entropies,
)
from autodropout.controller.transformer import ControllerNetwork
from autodropout.spaces import TransformerSpace

CHOICES = [len(token.values) for token in TransformerSpace(sites=("attention.query",)).tokens]  # 160 strings
STRINGS = torch.tensor(list(itertools.product(*map(range, CHOICES))))
REWARDS = torch.rand(len(STRINGS), dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def network() -> ControllerNetwork:
    network = ControllerNetwork(CHOICES, seed=1).double()  # exact enough to compare gradients
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4.0)
    return network


def gradient(network: ControllerNetwork, value: Tensor) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(value, list(network.parameters()))])


def exact_gradient(network: ControllerNetwork) -> Tensor:
    """Of the expected reward, by summing over all strings."""
    probabilities = network.log_prob(network(STRINGS), STRINGS).exp()
    return gradient(network, (probabilities * REWARDS).sum())


@pytest.mark.parametrize("baseline", [0.0, 0.6])
@pytest.mark.parametrize("stale", [False, True])
def test_expected_update_is_the_gradient_of_the_expected_reward(
    network: ControllerNetwork, baseline: float, stale: bool
) -> None:
    """Trials from any older controller, weighted by the paper's ratio, give the gradient of now: no bias."""
    log_probs = network.log_prob(network(STRINGS), STRINGS)
    old = ControllerNetwork(CHOICES, seed=2).double() if stale else network
    sampled = old.log_prob(old(STRINGS), STRINGS).detach()
    unclipped = replace(PAPER, greatest_weight=1e9)
    advantages = REWARDS - baseline
    ratio = importance_weights(log_probs.detach() - sampled, advantages, len(CHOICES), unclipped).weights
    how_often = sampled.exp() * len(STRINGS)  # the mean over all strings becomes the mean over the sampling
    estimate = gradient(network, objective(log_probs, torch.zeros(1), advantages, ratio * how_often, 0.0))
    exact = exact_gradient(network)
    assert (ratio.max() > 1.5) == stale
    assert exact.norm() > 1e-3
    torch.testing.assert_close(estimate, exact, rtol=1e-6, atol=1e-9)


def test_without_weights_stale_trials_give_another_gradient(network: ControllerNetwork) -> None:
    old = ControllerNetwork(CHOICES, seed=2).double()
    sampled = old.log_prob(old(STRINGS), STRINGS).detach()
    log_probs = network.log_prob(network(STRINGS), STRINGS)
    estimate = gradient(network, objective(log_probs, torch.zeros(1), REWARDS, sampled.exp() * len(STRINGS), 0.0))
    exact = exact_gradient(network)
    assert (estimate - exact).norm() > 0.1 * exact.norm()


def test_sampled_updates_agree_with_the_exact_gradient(network: ControllerNetwork) -> None:
    """20,000 sampled trials, projected on the exact gradient: within 4 standard errors of its norm."""
    draws = torch.rand(20_000, len(CHOICES), dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    tokens, _ = network.sample(draws)
    place = (tokens * torch.tensor([20, 4, 2, 1])).sum(-1)
    assert torch.equal(STRINGS[place], tokens)
    direction = exact_gradient(network)
    projections = ((REWARDS - REWARDS.mean()) * scores_along(network, direction))[place]
    error = projections.std() / math.sqrt(len(projections))
    assert abs(projections.mean() - direction.square().sum()) < 4 * error
    assert direction.square().sum() > 8 * error, "too noisy to show anything"


@torch.no_grad()
def scores_along(network: ControllerNetwork, direction: Tensor) -> Tensor:
    """The gradient of each string's log-probability in one direction, by central differences."""
    weights = nn.utils.parameters_to_vector(network.parameters())
    step = 1e-5 / direction.norm()
    ends = []
    for sign in (1, -1):
        nn.utils.vector_to_parameters(weights + sign * step * direction, network.parameters())
        ends.append(network.log_prob(network(STRINGS), STRINGS))
    return (ends[0] - ends[1]) / (2 * step)


def test_entropy_of_a_uniform_and_of_a_sharp_controller() -> None:
    network = ControllerNetwork(CHOICES, seed=1)
    with torch.no_grad():
        network.head.zero_()
    assert token_entropies(network(STRINGS)).mean().item() == pytest.approx(math.log(160), rel=1e-6)
    with torch.no_grad():
        network.head_bias[:, 0] = 50.0
    assert token_entropies(network(STRINGS)).abs().max().item() < 1e-6


def test_expected_token_entropies_are_the_entropy_of_the_distribution(network: ControllerNetwork) -> None:
    by_value = network(STRINGS)
    log_probs = network.log_prob(by_value, STRINGS)
    exact = -(log_probs.exp() * log_probs).sum()
    assert (log_probs.exp() * token_entropies(by_value)).sum().item() == pytest.approx(exact.item(), rel=1e-9)


def test_the_entropy_term_keeps_a_controller_open() -> None:
    def entropy_after(weight: float) -> float:
        network = ControllerNetwork(CHOICES, seed=1)
        with torch.no_grad():
            network.head_bias[:, 0] = 2.0
        learner = Learner(network, Settings(entropy=weight, learning_rate=1e-3))
        for _ in range(20):
            record = learner.step(STRINGS[:16], torch.full((16,), -4.0), torch.ones(16, dtype=torch.float64))
        return record["entropy"]

    assert entropy_after(1.0) > entropy_after(0.0) + 0.1


LOG_RATIOS = torch.tensor([0.0, math.log(2), math.log(50), -math.log(4)], dtype=torch.float64)
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("weighting", "weights"),
    [
        (Weighting.RATIO, [1, 2, 5, 1 / 4]),
        (Weighting.GEOMETRIC, [1, 2**0.25, 50**0.25, 4**-0.25]),
        (Weighting.TAPERED, [1, 1, 1, 1 / 4]),
        (Weighting.NONE, [1, 1, 1, 1]),
    ],
)
def test_weights_and_their_clip(weighting: Weighting, weights: list[float]) -> None:
    found = importance_weights(LOG_RATIOS, SIGNS, 4, replace(PAPER, weighting=weighting))
    torch.testing.assert_close(found.weights, torch.tensor(weights, dtype=torch.float64))
    assert found.clip_share == 1 / 4
    assert found.effective_size == pytest.approx((1 + 2 + 50 + 0.25) ** 2 / (1 + 4 + 2500 + 1 / 16))


@pytest.mark.parametrize("weighting", Weighting)
def test_on_policy_every_weight_is_one(weighting: Weighting) -> None:
    found = importance_weights(torch.zeros(16, dtype=torch.float64), torch.randn(16), 24, Settings(weighting=weighting))
    assert found.weights.tolist() == [1.0] * 16
    assert found.effective_size == 16


@pytest.mark.parametrize("settings", [PAPER, FAST])
def test_a_ratio_beyond_every_float_moves_the_weights_by_finite_steps(settings: Settings) -> None:
    learner = Learner(ControllerNetwork(CHOICES, seed=1), settings)
    record = learner.step(STRINGS[:2], torch.tensor([-5000.0, -5.0]).double(), torch.tensor([1.0, 0.0]).double())
    assert all(math.isfinite(value) for value in record.values())
    assert record["effective_size"] == pytest.approx(1)
    assert all(parameter.isfinite().all() for parameter in learner.network.parameters())


def test_the_baseline_starts_at_the_first_mean_and_judges_before_it_moves() -> None:
    baseline = Baseline(0.95)
    assert baseline.advantages(torch.tensor([1.0, 3.0]), scaled=False).tolist() == [-1, 1]
    assert baseline.mean == 2
    assert baseline.advantages(torch.tensor([4.0, 8.0]), scaled=False).tolist() == [2, 6]
    assert baseline.mean == pytest.approx(0.95 * 2 + 0.05 * 6)


def test_scaled_advantages_do_not_know_the_unit_of_the_reward() -> None:
    values = torch.tensor([[1.0, 3.0, 5.0], [2.0, 2.5, 9.0]], dtype=torch.float64)
    units = [Baseline(0.8), Baseline(0.8)]
    for batch in values:
        small, large = (b.advantages(f * batch, scaled=True) for b, f in zip(units, (1.0, 1000.0), strict=True))
        torch.testing.assert_close(small, large)


@pytest.mark.parametrize("trials", [1, 3, 12, 20])
@pytest.mark.parametrize("value", [0.0, 0.1, 0.7, 1 / 3, -5e9])
def test_equal_values_are_no_advantage_however_their_mean_is_rounded(trials: int, value: float) -> None:
    baseline = Baseline(0.5)
    for _ in range(3):
        advantages = baseline.advantages(torch.full((trials,), value, dtype=torch.float64), scaled=True)
        assert advantages.tolist() == [0.0] * trials
    values = torch.tensor([value, value + 1e-3 * abs(value) + 1e-6], dtype=torch.float64)
    assert baseline.advantages(values, scaled=True).abs().max() > 1, "small differences are some"


@pytest.mark.parametrize("settings", [PAPER, FAST])
@pytest.mark.parametrize("value", [-1e160, -1e300, 1e40])
def test_a_value_beyond_all_reason_leaves_a_learner_that_learns(settings: Settings, value: float) -> None:
    learner = Learner(ControllerNetwork(CHOICES, seed=1), settings)
    values = torch.tensor([0.5, value, 0.7, 0.9], dtype=torch.float64)
    for _ in range(2):
        record = learner.step(STRINGS[:4], torch.full((4,), -5.0).double(), values)
        assert all(math.isfinite(number) for number in record.values())
    before = nn.utils.parameters_to_vector(learner.network.parameters()).detach().clone()
    learner.step(STRINGS[:4], torch.full((4,), -5.0).double(), REWARDS[:4])
    after = nn.utils.parameters_to_vector(learner.network.parameters())
    assert after.isfinite().all()
    assert math.isfinite(learner.baseline.square)
    assert not torch.equal(before, after)


def test_the_best_are_imitated_each_once_in_one_order() -> None:
    imitation = Imitation(3)
    for tokens, value in [((0,), 1.0), ((1,), 3.0), ((1,), 2.0), ((2,), 3.0), ((3,), 0.0), ((4,), 2.0)]:
        imitation.add(tokens, value)
    assert imitation.best == [((1,), 3.0), ((2,), 3.0), ((4,), 2.0)]


def test_imitation_makes_the_best_likelier() -> None:
    learner = Learner(ControllerNetwork(CHOICES, seed=1), replace(PAPER, imitated=1, imitation=1.0))
    values = torch.zeros(16, dtype=torch.float64)
    values[3] = 1e-12  # no advantage to speak of: what moves the weights is imitation
    before = learner.network(STRINGS[3:4])
    learner.step(STRINGS[:16], torch.full((16,), -5.0).double(), values)
    after = learner.network(STRINGS[3:4])
    best = STRINGS[3:4]
    assert learner.network.log_prob(after, best).item() > learner.network.log_prob(before, best).item() + 0.01


def test_settings_are_the_papers() -> None:
    assert Settings() == PAPER
    assert (PAPER.learning_rate, PAPER.baseline_momentum, PAPER.entropy) == (3.5e-4, 0.95, 1e-5)
    assert PAPER.weighting is Weighting.RATIO
    assert not PAPER.scaled_advantages
    assert PAPER.greatest_norm is None
    assert not PAPER.imitated


def test_the_gradient_norm_is_bounded_where_asked() -> None:
    def moved(limit: float | None) -> tuple[float, float]:
        learner = Learner(ControllerNetwork(CHOICES, seed=1), replace(PAPER, greatest_norm=limit))
        record = learner.step(STRINGS[::10], torch.full((16,), -5.0).double(), 100 * REWARDS[::10])
        norms = [parameter.grad.norm() for parameter in learner.network.parameters() if parameter.grad is not None]
        return record["gradient_norm"], torch.stack(norms).norm().item()

    reported, used = moved(None)
    assert used == pytest.approx(reported)
    assert used > 1
    bounded, used = moved(0.5)
    assert bounded == pytest.approx(reported), "the norm before it was bounded is what is worth recording"
    assert used == pytest.approx(0.5, rel=1e-4)
