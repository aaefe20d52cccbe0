"""Drops in their places: what they touch, what they leave alone, and how they are taken off again."""

import copy
import pickle

import pytest
import torch
from convnet_tools import (
    Block,
    PreActivation,
    SharedActivation,
    Times,
    attached,
    check_training_pass,
    library_model,
    pictures,
    small,
    snapshot,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from autodropout.attach.convnet.find import find
from autodropout.attach.convnet.places import IdentityShortcut
from autodropout.attach.hooks import KEY, remove_all
from autodropout.attach.sites import Role, Site
from autodropout.layers import ConvRule
from autodropout.layers.drop import Drop
from autodropout.spaces import ConvPattern
from autodropout.spaces.patterns import CONV_TOKENS


class AddsInPlace(nn.Module):
    """A block whose sum is in place on its input, so that its output is the very tensor it was handed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x += self.bn(self.conv(x))
        return x


class Outer(nn.Module):
    """A block whose branch begins with a block."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.after = Block(), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(x)) + x


class Pair(nn.Module):
    """A block whose branch is checkpointed inside it."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.branch(x) + x
        return checkpoint(self.branch, x, use_reentrant=self.reentrant, preserve_rng_state=False) + x


def identities(model: nn.Module, example: Tensor) -> tuple[Site, ...]:
    return tuple(site for site in find(model, example).sites if site.role == Role.IDENTITY)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) > 0 and all(map(torch.equal, first, second))


def branch_alone(model: nn.Module, x: Tensor) -> Tensor:
    """`small(Block(), PreActivation(4, 4))` without its shortcuts, written out."""
    x = F.relu(model.bn1(model.conv1(x)))
    first, second = model.stage
    x = F.relu(first.branch(x))
    x = second.conv2(F.relu(second.bn2(second.conv1(F.relu(second.bn1(x))))))
    return model.head(x.mean((2, 3)))


def test_a_dropped_identity_leaves_the_branch_alone():
    model, x = small(Block(), PreActivation(4, 4)), pictures(8)
    branch_alone(model, x).sum().backward()
    expected, expected_gradients = branch_alone(model, x), gradients(model)
    model.zero_grad()
    with attached(model, sites := identities(model, x), [Times(0.0)] * 2):
        assert len(sites) == 2
        output = model(x)
        output.sum().backward()
    assert torch.equal(output, expected)
    assert same(gradients(model), expected_gradients)


def test_the_gradient_passes_through_the_shortcuts_drop():
    block, x = Block(), pictures(8, channels=4).requires_grad_()
    (alone,) = torch.autograd.grad((block.branch(x) + 3 * x).relu().sum(), x)
    with attached(block, identities(block, x), [Times(3.0)]):
        (through,) = torch.autograd.grad(block(x).sum(), x)
    torch.testing.assert_close(through, alone)


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("reentrant", [None, False, True], ids=["stored", "recomputed", "recomputed, reentrant"])
def test_checkpointed_and_compiled_blocks_do_the_same(how: str, reentrant: bool | None):
    model, x = small(Block(), PreActivation(4, 4)), pictures(8)

    def run(x: Tensor) -> Tensor:
        x = F.relu(model.bn1(model.conv1(x)))
        for block in model.stage:
            x = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
        return model.head(x.mean((2, 3)))

    expected = branch_alone(model, x)
    expected.sum().backward()
    expected_gradients = gradients(model)
    model.zero_grad()
    with attached(model, identities(model, x), [Times(0.0)] * 2):
        torch._dynamo.reset()
        step = torch.compile(run, backend="aot_eager", fullgraph=True) if how == "compiled" else run
        output = step(x)
        output.sum().backward()
    assert torch.equal(output, expected)
    assert same(gradients(model), expected_gradients)


def test_a_branch_checkpointed_inside_its_block():
    """Its recomputation gets the original too; where that is lost, it is an error, never a wrong gradient."""
    x = pictures(8, channels=4).requires_grad_()
    block = Pair(reentrant=False)
    expected = torch.autograd.grad(block.branch(x).sum(), list(block.parameters()))
    with attached(block, identities(block, x), [Times(0.0)]):
        found = torch.autograd.grad(block(x).sum(), list(block.parameters()))
        nested = checkpoint(block, x, use_reentrant=False)
        with pytest.raises(RuntimeError, match="did not get its block's input"):
            nested.sum().backward()
    assert same(list(found), list(expected))
    block = Pair(reentrant=True)
    with (
        attached(block, identities(block, x), [Times(0.0)]),
        pytest.raises(RuntimeError, match="checkpoint whole blocks"),
    ):
        block(x)


def test_calling_forward_past_the_hooks_is_an_error():
    block, x = Block(), pictures(8, channels=4)
    with (
        attached(block, identities(block, x), [Times(0.0)]),
        pytest.raises(RuntimeError, match=r"call block\(x\), not block\.forward\(x\)"),
    ):
        block.forward(x)


def test_a_rate_of_zero_and_eval_mode_are_no_error():
    model, x = small(Block(), AddsInPlace(), Block()), pictures(8)
    expected = model(x)
    with attached(model, identities(model, x), [Times(0.0)] * 3) as drops:
        for drop in drops:
            drop.set_rate(0.0)
        assert torch.equal(model(x), expected)
        features = pictures(8, channels=4)
        model.stage[0](features)
        assert not vars(features)  # nothing is left on a tensor that was not dropped
        drops[1].set_rate(0.5)  # its output carries a tag into the next block, whose drop is not active
        reference = small_reference(model, x)
        assert torch.equal(model(x), reference)


def small_reference(model: nn.Module, x: Tensor) -> Tensor:
    """Block, AddsInPlace without its shortcut, Block; hooks stay out of it."""
    x = F.relu(model.bn1(model.conv1(x)))
    first, second, third = model.stage

    def branch(block: Block, x: Tensor) -> Tensor:
        return block.bn2(block.conv2(F.relu(block.bn1(block.conv1.forward(x)))))

    x = F.relu(branch(first, x) + x)
    x = second.bn(second.conv.forward(x))
    x = F.relu(branch(third, x) + x)
    return model.head(x.mean((2, 3)))


def test_nested_blocks_each_drop_what_they_were_given():
    model, x = Outer(), pictures(8, channels=4)
    expected = model.after(F.relu(model.inner.branch(x) + 5 * x)) + 3 * x
    sites = identities(model, x)
    assert [site.name for site in sites] == ["inner:identity", ":identity"]
    for order in (sites, sites[::-1]):
        rules = [Times(5.0 if site.name.startswith("inner") else 3.0) for site in order]
        with attached(model, order, rules):
            assert torch.equal(model(x), expected)


def test_an_entry_shared_with_other_uses_restores_only_the_blocks_input():
    block, x = SharedActivation(), pictures(8, channels=4)
    expected = block(x) - x
    with attached(block, identities(block, x), [Times(0.0)]):
        torch.testing.assert_close(block(x), expected)


def test_outputs_in_eval_mode_are_the_bare_models():
    for name in ("resnet18", "timm/efficientnet_b0"):
        model, x = library_model(name).eval(), pictures(64)
        with torch.no_grad():
            expected = model(x)
            with attached(model, sites := find(model, x).sites, [Times(0.0)] * len(sites)):
                assert torch.equal(model(x), expected)
                assert not torch.equal(model.train()(x), expected)
        model.eval()


@pytest.mark.parametrize("name", ["resnet18", "timm/efficientnet_b0"])
def test_taking_drops_off_restores_the_model(name: str):
    model, x = library_model(name), pictures(64)
    model.train()
    kept = model.register_forward_pre_hook(lambda *_: None)  # somebody else's hooks survive
    before, keys, modules = snapshot(model), list(model.state_dict()), dict(model.named_modules())
    with attached(model, sites := find(model, x).sites, [Times(2.0)] * len(sites)):
        assert snapshot(model) != before
        assert list(model.state_dict()) == keys
        assert dict(model.named_modules()) == modules
    assert snapshot(model) == before
    kept.remove()


def test_a_copy_has_drops_of_its_own_and_loses_them_alone():
    model, x = small(Block(), PreActivation(4, 4)), pictures(8)
    sites = find(model, x).sites
    with attached(model, sites, [Times(0.0)] * len(sites)) as drops:
        twin = copy.deepcopy(model)
        pickled = pickle.loads(pickle.dumps(model))
        for other in (twin, pickled):
            slots = [slot for module in other.modules() for slot in module.__dict__.get(KEY, {}).values()]
            found = [slot for slot in slots if isinstance(slot, Drop)]
            assert len(found) == len(drops)
            assert not any(mine is theirs for mine in drops for theirs in found)
        for drop in drops:
            drop.set_rate(0.0)
        assert torch.equal(model(x), small_like(model, x))
        assert not torch.equal(twin(x), small_like(model, x))  # still dropping
        remove_all(twin)
        assert not any(KEY in module.__dict__ or module._forward_pre_hooks for module in twin.modules())
        assert any(KEY in module.__dict__ for module in model.modules())


def small_like(model: nn.Module, x: Tensor) -> Tensor:
    bare = copy.deepcopy(model)
    remove_all(bare)
    return bare(x)


def test_entries_know_the_drop_of_their_own_copy():
    model, x = Block(), pictures(8, channels=4)
    with attached(model, identities(model, x), [Times(0.0)]):
        twin = copy.deepcopy(model)
        drop, block = twin.conv1.__dict__[KEY]["originals"][0]
        assert drop is twin.__dict__[KEY]["shortcut"]
        assert block is twin


class Nothing:
    """A rule that gives back its input, as a pattern does on a map of less than 5 cells."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        return h


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_rule_may_give_back_its_input(how: str):
    model, x = small(Block(), Block()), pictures(8)
    expected = copy.deepcopy(model)(x)
    sites = identities(model, x)
    with attached(model, sites, [Nothing()] * len(sites)):
        forward = torch.compile(model, backend="aot_eager", fullgraph=True) if how == "compiled" else model
        assert torch.equal(forward(x), expected)


def test_empty_batches_pass():
    model, x = Block(), pictures(8, channels=4)
    model.bn1.eval()
    model.bn2.eval()
    with attached(model, identities(model, x), [Times(0.0)]):
        assert model(x[:0]).shape == (0, 4, 8, 8)


def test_one_shortcut_takes_one_drop():
    block = Block()
    place = IdentityShortcut("", ("conv1",))
    place.put(block, Drop(Times(0.0), 0.5, 0))
    with pytest.raises(AssertionError, match="is taken"):
        place.put(block, Drop(Times(0.0), 0.5, 1))


def test_a_mask_of_rows_and_columns_where_channels_come_last():
    model = library_model("convnext_tiny").train()
    site = next(site for site in find(model, pictures(64)).sites if site.role == Role.MAIN)
    pattern = dict(zip([token.name for token in CONV_TOKENS], (2, 1, 2, True, False, 0, 0.0, 0.0), strict=True))
    norm, given = model.get_submodule(site.name), torch.randn(16, 16, 16, 96)
    bare = norm(given)
    with attached(model, (site,), [ConvRule(ConvPattern.model_validate(pattern), (16, 16))]):
        masked = norm(given)
    kept = masked != 0  # (N, H, W, C)
    assert torch.equal(kept, kept[..., :1].expand_as(kept)), "one mask for all channels"
    assert 0 < kept.float().mean() < 1
    torch.testing.assert_close(masked, bare * kept * kept.numel() / kept.sum())
    assert masked.is_contiguous(), "its axes are in the order in which they lie in memory"


# ---- on the libraries' models, by tensor identity

MUST = [
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "efficientnet_b0",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "densenet121",
    "regnet_y_400mf",
    "regnet_x_400mf",
    "vgg11_bn",
    "timm/resnet18",
    "timm/resnet50d",
    "timm/efficientnet_b0",
    "timm/rexnet_100",
    "convnext_tiny",
    "timm/convnext_atto",
]

# fmt: off
SWEEP = [
    "resnet26t", "resnet50_gn", "resnetv2_50", "resnetv2_50d_gn", "resnetrs50", "seresnet50", "ecaresnet26t",
    "gcresnet33ts", "resnext26ts", "res2net50_26w_4s", "resnest14d", "skresnet18", "regnetx_002", "regnety_002",
    "regnetz_b16", "efficientnet_es", "tf_efficientnetv2_b0", "mixnet_s", "mobilenetv2_050",
    "mobilenetv3_large_100", "mobilenetv4_conv_small", "lcnet_050", "mnasnet_small", "fbnetc_100",
    "hardcorenas_a", "ghostnet_050", "ghostnetv2_100", "densenet121", "dla34", "dpn48b", "hrnet_w18_small",
    "repvgg_a0", "mobileone_s0", "cspresnet50", "cspdarknet53", "darknetaa53", "selecsls42", "xception41",
    "legacy_xception", "tresnet_m", "rexnetr_200", "hgnetv2_b0", "repghostnet_050", "fastvit_t8", "starnet_s1",
    "gernet_s", "vovnet39a", "ese_vovnet19b_dw", "resnetblur18", "resnetaa50", "efficientvit_b0",
    "mobilevit_xxs", "repvit_m0_9", "inception_resnet_v2",
]
# fmt: on


@pytest.mark.parametrize("name", MUST)
def test_every_site_acts_once_on_the_tensor_it_claims(name: str):
    model, x = library_model(name), pictures(64)
    check_training_pass(model, x, find(model, x, stem=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEP)
def test_every_site_acts_once_in_timms_zoo(name: str):
    model, x = library_model(f"timm/{name}"), pictures(128)
    check_training_pass(model, x, find(model, x, stem=True))
    library_model.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEP)
def test_eval_outputs_are_bit_identical_in_timms_zoo(name: str):
    model, x = library_model(f"timm/{name}").eval(), pictures(128)
    with torch.no_grad():
        expected = model(x)
        before = snapshot(model)
        with attached(model, sites := find(model, x).sites, [Times(0.0)] * len(sites)):
            assert torch.equal(model(x), expected)
    assert snapshot(model) == before
    library_model.cache_clear()
