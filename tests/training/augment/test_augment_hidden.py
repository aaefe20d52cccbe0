"""Manifold Mixup and MoEx: what they change in a forward, that no other changes, and that models stay as they were."""

import copy
import itertools

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import autodropout as ad
from autodropout.models import wide_resnet
from autodropout.training.augment import ManifoldMixup, MoEx, mixing, stages
from autodropout.training.augment.hidden import exchange_moments

EXAMPLE = torch.randn(2, 3, 20, 20)


class Chain(nn.Module):
    """Linear maps of images, so that mixing anywhere gives the same mixture of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(6, 6, 1, bias=False)
        self.second = nn.Conv2d(6, 6, 1, bias=False)
        for module in (self.first, self.second):
            module.weight.data = torch.eye(6)[:, :, None, None]

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(images)).mean((2, 3))
        return out


def one_of_each() -> tuple[Tensor, Tensor]:
    return torch.eye(6)[:, :, None, None].expand(-1, -1, 3, 4).clone(), torch.arange(6)


@pytest.mark.parametrize("per_sample", [False, True])
def test_labels_are_mixed_as_the_features_are(per_sample: bool) -> None:
    model = Chain()
    images, labels = one_of_each()
    mix = ManifoldMixup(6, model, ("first", "second"), per_sample=per_sample)
    for _ in range(30):
        logits, target = mix(model, images, labels)
        torch.testing.assert_close(logits, target)
        torch.testing.assert_close(target.sum(1), torch.ones(6))


def test_images_and_places_are_equally_likely_and_one_at_a_time() -> None:
    """Chi-square over 3 places, 1,500 batches: below the 1e-6 quantile of 2 degrees of freedom."""
    model = Chain()
    images, labels = one_of_each()
    mix = ManifoldMixup(6, model, ("first", "second"))
    seen: dict[str, Tensor] = {}
    model.first.register_forward_pre_hook(lambda _, args: seen.__setitem__("first", args[0]))
    model.first.register_forward_hook(lambda _, args, output: seen.__setitem__("between", output))
    model.second.register_forward_pre_hook(lambda _, args: seen.__setitem__("second", args[0]))
    counts = torch.zeros(3)
    for _ in range(1500):
        given: list[Tensor] = []
        handle = model.register_forward_pre_hook(lambda _, args, given=given: given.append(args[0]))
        _, target = mix(model, images, labels)
        handle.remove()
        steps = (images, given[0], seen["first"], seen["second"])
        changes = [not torch.equal(before, after) for before, after in itertools.pairwise(steps)]
        if torch.equal(target, torch.eye(6)):  # the permutation was the identity
            assert not any(changes)
            continue
        assert sum(changes) == 1
        counts += torch.tensor(changes)
    expected = counts.sum() / 3
    assert counts.sum() > 1450
    assert ((counts - expected) ** 2 / expected).sum() < 27.6


def test_only_the_forward_that_asked_is_mixed() -> None:
    model = Chain()
    images, labels = one_of_each()
    mix = MoEx(6, model, "second", probability=1.0)
    mixed, _ = mix(model, images + torch.rand_like(images), labels)
    assert torch.equal(model(images), torch.eye(6))
    assert not torch.equal(mixed, torch.eye(6))


def test_another_model_is_refused() -> None:
    """A copy has hooks and notes of its own; called in the model's place it would be trained on wrong labels."""
    model = Chain()
    images, labels = one_of_each()
    mix = MoEx(6, model, "second", probability=1.0)
    with pytest.raises(ValueError, match="not, and does not contain"):
        mix(copy.deepcopy(model), images, labels)
    assert torch.equal(model(images), torch.eye(6))
    mix(nn.Sequential(model), images, labels)


def test_moments_are_exchanged() -> None:
    h = torch.randn(5, 7, 3, 4) * torch.rand(5, 1, 1, 1) * 3 + torch.randn(5, 1, 1, 1)
    order = torch.tensor([1, 2, 3, 4, 0])
    moved = exchange_moments(h, order, torch.zeros(1))
    torch.testing.assert_close(moved.mean(1), h[order].mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moved.std(1), h[order].std(1), rtol=1e-2, atol=1e-4)
    again = exchange_moments(moved, order.argsort(), torch.zeros(1))
    torch.testing.assert_close(again, h, rtol=1e-2, atol=1e-2)
    assert exchange_moments(h, order, torch.ones(1)).equal(h)
    assert exchange_moments(h.bfloat16(), order, torch.zeros(1)).dtype == torch.bfloat16


def test_moex_labels() -> None:
    """Share of batches with an exchange, of 2,000 at probability 0.25: within 4.9 standard errors, p < 1e-6."""
    model = Chain()
    images, labels = one_of_each()
    mix = MoEx(6, model, "second", weight=0.9, probability=0.25)
    exchanged = 0
    for _ in range(2000):
        _, target = mix(model, images, labels)
        torch.testing.assert_close(target.sum(1), torch.ones(6))
        if not torch.equal(target, torch.eye(6)):
            exchanged += 1
            moved = target.diag()[target.diag() < 1]
            torch.testing.assert_close(moved, torch.full_like(moved, 0.9))
    assert abs(exchanged / 2000 - 0.25) < 4.9 * (0.25 * 0.75 / 2000) ** 0.5 + 0.25 / 720  # 1 of 720 orders moves none


class TestStages:
    def test_of_known_models(self) -> None:
        assert stages(wide_resnet(10, 1, 10), EXAMPLE) == ("group1", "group2", "group3")
        resnet = torchvision.models.resnet18(num_classes=10)
        assert stages(resnet, torch.randn(1, 3, 64, 64)) == ("layer1", "layer2", "layer3", "layer4")

    def test_of_efficientnet(self) -> None:
        model = torchvision.models.efficientnet_b0(num_classes=4)
        assert stages(model, torch.randn(1, 3, 64, 64)) == tuple(f"features.{number}" for number in range(1, 8))

    def test_the_model_is_left_as_it_was(self) -> None:
        model = wide_resnet(10, 1, 10)
        model.group1.eval()
        before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        stages(model, EXAMPLE)
        assert model.training
        assert not model.group1.training
        assert not any(module._forward_hooks for module in model.modules())
        assert torch.equal(random, torch.get_rng_state())
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_too_few(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        with pytest.raises(ValueError, match="name the places"):
            mixing("moex", 4, model=model, example=EXAMPLE)


class TestOnRealModels:
    @pytest.fixture(params=["manifold_mixup", "moex"])
    def name(self, request: pytest.FixtureRequest) -> str:
        return request.param

    def test_by_name(self) -> None:
        model = wide_resnet(10, 1, 10)
        mix = mixing("manifold_mixup", 10, model=model, example=EXAMPLE)
        assert isinstance(mix, ManifoldMixup)
        assert (mix.places, mix.alpha) == (("group2", "group3"), 2.0)
        mix.remove()
        for setting, expected in (("cifar", (0.5, 0.25)), ("imagenet", (0.9, 1.0))):
            mix = mixing("moex", 10, model=model, example=EXAMPLE, setting=setting)
            assert isinstance(mix, MoEx)
            assert (mix.place, mix.weight, mix.probability) == ("group1", *expected)
            mix.remove()
        assert mixing("moex", 10, model=model, places=("group3",)).place == "group3"

    def test_models_stay_as_they_were(self, name: str) -> None:
        model = wide_resnet(10, 1, 10)
        names, keys = [n for n, _ in model.named_modules()], list(model.state_dict())
        model.eval()
        expected = model(EXAMPLE)
        mix = mixing(name, 10, model=model, example=EXAMPLE, setting="imagenet")
        mix(model, EXAMPLE, torch.tensor([1, 2]))
        assert torch.equal(model(EXAMPLE), expected)
        assert [n for n, _ in model.named_modules()] == names
        assert list(model.state_dict()) == keys
        twin = copy.deepcopy(model)
        assert torch.equal(twin(EXAMPLE), expected)
        mix.remove()
        for module in model.modules():
            assert not module._forward_pre_hooks
            assert not [key for key in module.__dict__ if key.startswith("_autodropout")]
        with pytest.raises(RuntimeError, match="was removed"):
            mix(model, EXAMPLE, torch.tensor([1, 2]))

    @pytest.mark.parametrize("attach_first", [True, False])
    def test_with_a_policy_attached(self, name: str, attach_first: bool) -> None:
        """The mix's hook comes before the policy's, whichever was put on first; at rate 0 nothing is dropped."""

        def loss(rate: float | None) -> Tensor:
            torch.manual_seed(0)
            model = wide_resnet(10, 1, 10)
            policy = ad.space(model, EXAMPLE).sample(seed=2)
            if rate is not None and attach_first:
                ad.attach(model, policy, rate=rate, example=EXAMPLE)
            mix = mixing(name, 10, model=model, example=EXAMPLE, setting="imagenet")
            if rate is not None and not attach_first:
                ad.attach(model, policy, rate=rate, example=EXAMPLE)
            torch.manual_seed(1)
            images = torch.randn(6, 3, 20, 20)
            logits, target = mix(model, images, torch.arange(6))
            value = F.cross_entropy(logits, target)
            value.backward()
            assert all(parameter.grad is not None for parameter in model.parameters())
            return value.detach()

        assert torch.equal(loss(0.0), loss(None))
        assert loss(0.5).isfinite()
        assert not torch.equal(loss(0.5), loss(None))

    def test_checkpointing_recomputes_the_same(self, name: str) -> None:
        class Net(nn.Module):
            def __init__(self, recompute: bool) -> None:
                super().__init__()
                self.recompute = recompute
                self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 3)

            def body(self, x: Tensor) -> Tensor:
                return self.two(F.relu(self.one(x))).mean((2, 3))

            def forward(self, x: Tensor) -> Tensor:
                return checkpoint(self.body, x, use_reentrant=False) if self.recompute else self.body(x)

        grads = []
        for recompute in (False, True):
            torch.manual_seed(0)
            model = Net(recompute)
            mix = mixing(name, 5, model=model, places=("two",), setting="imagenet")
            for _ in range(3):
                logits, target = mix(model, torch.randn(4, 3, 8, 8), torch.arange(4))
                F.cross_entropy(logits, target).backward()
            grads.append([parameter.grad for parameter in model.parameters()])
        for first, second in zip(*grads, strict=True):
            torch.testing.assert_close(first, second)

    def test_one_graph_when_compiled(self, name: str) -> None:
        """The model compiled before its first call, in one graph and without recompiling: same numbers as eager."""
        torch.manual_seed(0)
        model = wide_resnet(10, 1, 10)
        mix = mixing(name, 10, model=model, example=EXAMPLE, setting="imagenet")
        count = CompileCounter()
        compiled = torch.compile(model, fullgraph=True, backend=count)
        images, labels = torch.randn(6, 3, 20, 20), torch.arange(6)
        for seed in range(4):
            torch.manual_seed(seed)
            expected = mix(model, images, labels)
            torch.manual_seed(seed)
            torch.testing.assert_close(mix(compiled, images, labels), expected)
        assert count.frame_count == 1

    def test_a_whole_step_in_one_graph(self, name: str) -> None:
        model = wide_resnet(10, 1, 10)
        mix = mixing(name, 10, model=model, example=EXAMPLE, setting="imagenet")

        @torch.compile(fullgraph=True, backend="eager")
        def loss(images: Tensor, labels: Tensor) -> Tensor:
            logits, target = mix(model, images, labels)
            return F.cross_entropy(logits, target)

        for _ in range(2):
            assert loss(torch.randn(6, 3, 20, 20), torch.arange(6)).isfinite()


def test_mistakes() -> None:
    model = Chain()
    for places in ((), ("third",), ("",), ("first", "first")):
        with pytest.raises(ValueError, match="places must name modules"):
            ManifoldMixup(6, model, places)
    with pytest.raises(ValueError, match="weight must lie in"):
        MoEx(6, model, "first", weight=1.5)
    with pytest.raises(ValueError, match="one place"):
        mixing("moex", 6, model=model, places=("first", "second"))
    ManifoldMixup(6, model, ("first",))
    with pytest.raises(ValueError, match="mixed inside already"):
        MoEx(6, model, "second")
