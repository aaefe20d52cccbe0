"""Adam for children side by side: what torch's does for each, and its kernels in Triton's interpreter."""

import math

import pytest
import torch
from torch import nn

from autodropout.training import adam_kernel, stacked
from autodropout.training.clipped_adam import ClippedAdam
from autodropout.training.stacked import Stack, StackedAdam


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.gain = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("half", [False, True])
def test_adam_is_clipped_adam_for_each_child(half: bool) -> None:
    """Gradients of all sizes, some not finite: the weights of three children, each against torch's own Adam."""
    models = [Two() for _ in range(3)]
    stack = Stack(models[0], 3, torch.device("cpu"), half=half)
    for number, model in enumerate(models):
        stack.put(number, model.named_parameters())
    adam = StackedAdam(stack, 0.5)
    alone = [ClippedAdam(model, 1.0, 0.5) for model in models]
    draw = torch.Generator().manual_seed(0)
    for step in range(12):
        sizes = torch.tensor([0.01, 1.0, 1e4])
        gradients = {
            name: (torch.randn((*leaf.shape[1:], 3), generator=draw) * sizes).movedim(-1, 0).to(leaf.dtype)
            for name, leaf in stack.leaves.items()
        }
        if step in (0, 4):
            gradients["gain"][step // 4, 1] = math.nan
        if step == 7:
            gradients["linear.weight"][2, 0, 0] = -math.inf
        lr = torch.tensor([1e-2, 1e-3 * (step + 1), 0.1])
        skipped = adam.step(gradients, lr)
        for number, (model, own) in enumerate(zip(models, alone, strict=True)):
            own.adam.param_groups[0]["lr"] = lr[number].item()
            loss = sum((weight * gradients[name][number].float()).sum() for name, weight in model.named_parameters())
            assert own.step(loss) == skipped[number]
            for name, weight in model.named_parameters():
                torch.testing.assert_close(stack.child(number)[name], weight.detach(), rtol=1e-5, atol=1e-7)
        assert skipped.tolist() == [step == 0, step == 4, step == 7]
    assert adam.taken.tolist() == [11, 11, 11]
    for name, leaf in stack.leaves.items():
        assert leaf.dtype == (torch.bfloat16 if half and name.startswith("linear.") else torch.float32)
        assert torch.equal(leaf.detach(), stack.weights[name].to(leaf.dtype)), "forward sees what was learned"


@pytest.mark.parametrize("size", [1, 30, 2500])
@pytest.mark.parametrize("half", [False, True])
def test_adams_kernel_does_the_same(size: int, half: bool) -> None:
    """In Triton's interpreter, but for the copies, which a GPU rounds and it cuts off."""
    draw = torch.Generator().manual_seed(size)
    weight, first, gradient = (torch.randn(3, size, generator=draw) for _ in range(3))
    second = torch.rand(3, size, generator=draw)
    goes = torch.tensor([[True], [False], [True]])
    scalars = [goes, *torch.rand(3, 3, 1, generator=draw)]
    gradient = gradient.to(torch.bfloat16 if half else torch.float32)
    gradient[1] = torch.nan
    plain, ours = ([state.clone() for state in (weight, weight, first, second)] for _ in range(2))
    stacked.descend(*plain, gradient, *scalars)
    adam_kernel.descend(*ours, gradient, *scalars, stacked.BETAS, stacked.EPSILON)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
        assert not torch.equal(one, weight)
    assert torch.equal(ours[0][1], weight[1]), "left out"


def test_norms_by_kernels_are_the_same() -> None:
    draw = torch.Generator().manual_seed(0)
    gradients = [torch.randn(3, size, generator=draw) for size in (1, 30, 8192, 20_000)]
    gradients[2][1, 8000] = math.inf
    expected = stacked.norms(gradients)
    torch.testing.assert_close(adam_kernel.norms(gradients), expected)
    assert expected.isfinite().tolist() == [True, False, True]
    torch.testing.assert_close(expected[0], torch.cat([one[0] for one in gradients]).norm())


def test_gradients_may_be_cut_out_of_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compiler pads a product and cuts: the kernels read them as one piece, here in Triton's interpreter."""
    monkeypatch.setattr(stacked, "on_gpu", lambda h: True)
    draw = torch.Generator().manual_seed(0)
    found = []
    for spare in (0, 3):
        stack = Stack(Two(), 2, torch.device("cpu"), half=False)
        draw.manual_seed(0)
        gradients = {}
        for name, leaf in stack.leaves.items():
            last = leaf.shape[-1]
            padded = torch.zeros((*leaf.shape[:-1], last + spare))
            padded[..., :last] = torch.randn(leaf.shape, generator=draw)
            gradients[name] = padded[..., :last]
        StackedAdam(stack, 0.5).step(gradients, torch.full((2,), 0.1))
        found.append(stack.weights)
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert any(weight.any() for weight in found[0].values())
