"""Adam with clipped gradients: Adam where all is well, and nothing at all where a gradient is not finite."""

import copy

import pytest
import torch
from torch import Tensor, nn

from autodropout.training.clipped_adam import ClippedAdam


def weights(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def loss_of(model: nn.Module, scale: float = 1.0) -> Tensor:
    x = torch.linspace(-1, 1, 12).view(4, 3)
    return (model(x) * scale).square().sum()


def test_it_is_adam_with_clipped_gradients() -> None:
    model = nn.Linear(3, 2)
    other = copy.deepcopy(model)
    clipped, adam = ClippedAdam(model, 0.1, clip=0.5), torch.optim.Adam(other.parameters(), 0.1)
    for scale in (1.0, 30.0, 0.01, 2.0):  # some of these norms are above the bound, some below
        assert not clipped.step(loss_of(model, scale))
        adam.zero_grad()
        loss_of(other, scale).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        adam.step()
        torch.testing.assert_close(weights(model), weights(other))


@pytest.mark.parametrize("bad", [torch.inf, torch.nan, 1e30], ids=["inf", "nan", "a norm beyond float32"])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    model = nn.Linear(3, 2)
    untroubled = copy.deepcopy(model)
    one, other = ClippedAdam(model, 0.1, clip=0.5), ClippedAdam(untroubled, 0.1, clip=0.5)
    for training, network in ((one, model), (other, untroubled)):
        training.step(loss_of(network))
    before = weights(model)
    assert one.step(loss_of(model) + (model.bias * torch.tensor([bad, 1.0])).sum())
    assert torch.equal(weights(model), before)
    for training, network in ((one, model), (other, untroubled)):
        assert not training.step(loss_of(network))
    assert torch.equal(weights(model), weights(untroubled)), "nor does Adam remember it"
