"""Models of which parts are in eval mode: a mask is made where its module trains, and reaches the sum either way."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformer_tools import LENGTH, WIDTH, Block

import autodropout as ad
from autodropout.attach import discover
from autodropout.spaces import ConvGroup

X = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
PATTERN = ad.SequencePattern(size=10, stride=0, share_t=False, share_c=False)
STYLES = {"Swap": "", "Carry": "", "SetAside": "inline"}  # blocks in which a skip input is reached so


def made(way: str) -> tuple[nn.Module, str, str, str]:
    """Two blocks; a sum whose skip input is reached this way, where its mask is made, and where the branch ends."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(STYLES[way]), Block(STYLES[way]))
    sites = discover(model, X).sites
    place = next(site.place for site in sites if "residual" in site.role and type(site.place).__name__ == way)
    role = "attention.residual" if way == "Swap" else "feedforward.residual"
    maker = {"Swap": "", "Carry": ".norm2", "SetAside": ".norm2"}[way]
    last = {"Swap": ".norm1", "Carry": ".mlp", "SetAside": ".fc2"}[way]
    assert place is not None
    return model, role, maker, last


def run(model: nn.Module) -> Tensor:
    torch.manual_seed(1)
    return model(X)


@pytest.mark.parametrize("way", STYLES)
def test_who_puts_back_or_adds_may_be_frozen(way: str) -> None:
    """Normalizations and linear layers do the same in eval mode: so does the model, masks included."""
    model, role, _, last = made(way)
    ad.attach(model, ad.TransformerPolicy(sites={role: PATTERN}), rate=0.4, example=X)
    expected = run(model.train())
    for block in "01":
        model.get_submodule(block + last).eval()
    assert torch.equal(run(model), expected)
    assert not torch.equal(run(model.eval()), expected)


@pytest.mark.parametrize("way", ["Carry", "SetAside"])
def test_where_the_maker_is_frozen_there_is_no_mask(way: str) -> None:
    model, role, maker, _ = made(way)
    bare = run(model.train())
    ad.attach(model, ad.TransformerPolicy(sites={role: PATTERN}), rate=0.4, example=X)
    for block in "01":
        model.get_submodule(block + maker).eval()
    assert torch.equal(run(model), bare)


class PreActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(torch.relu(self.norm(x)))


@pytest.mark.parametrize("trains", ["norms", "blocks"])
def test_normalizations_of_a_convnet_by_themselves(trains: str) -> None:
    """As when statistics are measured again, or kept: shortcuts are not dropped, or for the sum alone."""
    model, x = nn.Sequential(PreActivation(), PreActivation()), torch.randn(2, 4, 16, 16)
    pattern = ad.ConvPattern(
        size=2, stride=1, repeat=1, share_c=False, residual=True, rotate=0, shear_x=0.0, shear_y=0.0
    )
    policy = ad.ConvPolicy(groups=(ConvGroup(pattern=pattern, searched_at=(16, 16)),))
    ad.attach(model, policy, rate=0.5, example=x)
    model.train(trains == "blocks")
    for block in model:
        block.norm.train(trains == "norms")
    seen: list[Tensor] = []
    model[0].norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(x)
    assert torch.equal(seen[0], x), "the branch reads what the block was given"


def test_a_copy_after_a_checkpointed_step() -> None:
    """Its second forward stops early, before the change that it has put aside is taken up."""
    model, role, _, _ = made("SetAside")
    ad.attach(model, ad.TransformerPolicy(sites={role: PATTERN}), rate=0.4, example=X)
    h = X.clone().requires_grad_()
    for block in model.train():
        h = checkpoint(block, h, use_reentrant=False)
    h.sum().backward()
    twin = copy.deepcopy(model)
    assert torch.equal(run(twin), run(model))
