"""The image classifiers by name: as large as published, the proxies exactly half as wide, every site within reach."""

import sys

import pytest
import torch
from torch import nn

import autodropout as ad
from autodropout.attach import discover
from autodropout.models import IMAGE_MODELS, head, image_model

FULL_AND_HALF = [("resnet50", "resnet50-half"), ("efficientnet-b0", "efficientnet-b0-half")]


def on_meta(name: str, classes: int = 1000) -> nn.Module:
    with torch.device("meta"):
        return image_model(name, classes)


@pytest.mark.parametrize(
    ("name", "millions"),  # torchvision's documentation; the Wide ResNets have tests of their own
    [
        ("resnet50", 25.557),
        ("efficientnet-b0", 5.289),
        ("efficientnet-b3", 12.233),
        ("efficientnet-b5", 30.390),
        ("efficientnet-b7", 66.348),
    ],
)
def test_as_many_weights_as_published(name: str, millions: float) -> None:
    count = sum(weight.numel() for weight in on_meta(name).parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.001)


@pytest.mark.parametrize(("full", "half"), FULL_AND_HALF)
def test_every_layer_of_a_proxy_has_exactly_half_the_channels(full: str, half: str) -> None:
    def widths(name: str) -> dict[str, tuple[int, ...]]:
        """In and out; of the first convolution and the classifier only the side that is not the task's."""
        found: dict[str, tuple[int, ...]] = {}
        for path, module in on_meta(name).named_modules():
            if isinstance(module, nn.Conv2d):
                found[path] = (module.in_channels, module.out_channels) if found else (module.out_channels,)
            elif isinstance(module, nn.BatchNorm2d):
                found[path] = (module.num_features,)
            elif isinstance(module, nn.Linear):
                found[path] = (module.in_features,)
        return found

    narrow = widths(half)
    assert {path: tuple(2 * width for width in one) for path, one in narrow.items()} == widths(full)


@pytest.mark.parametrize("half", [half for _, half in FULL_AND_HALF])
def test_a_proxy_learns_from_a_sound_start(half: str) -> None:
    model = image_model(half, classes=5).train()
    logits = model(torch.randn(8, 3, 64, 64))
    assert logits.shape == (8, 5)
    assert 1e-3 < logits.std(0).mean() < 10
    logits.sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize(
    ("name", "size", "groups", "main", "shortcuts"),
    [
        ("resnet50", 160, ((40, 40), (20, 20), (10, 10), (5, 5)), 48, 16),
        ("resnet50-half", 160, ((40, 40), (20, 20), (10, 10), (5, 5)), 48, 16),
        ("efficientnet-b0", 160, ((80, 80), (40, 40), (20, 20), (10, 10), (5, 5)), 48, 9),
        ("efficientnet-b0-half", 160, ((80, 80), (40, 40), (20, 20), (10, 10), (5, 5)), 48, 9),
    ],
)
def test_every_site_is_within_reach(
    name: str, size: int, groups: tuple[tuple[int, int], ...], main: int, shortcuts: int
) -> None:
    model, example = image_model(name, classes=3), torch.randn(1, 3, size, size)
    assert ad.space(model, example) == ad.ConvSpace(groups=groups, resolution=(size, size))
    finding = discover(model, example)
    roles = [site.role for site in finding.sites]
    assert finding.unreached == ()
    assert (roles.count("main"), len(roles) - roles.count("main")) == (main, shortcuts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet-b3", "efficientnet-b5", "efficientnet-b7", "wrn-28-10"])
def test_every_site_of_the_large_models_is_within_reach(name: str) -> None:
    size = 32 if name.startswith("wrn") else 160
    model, example = image_model(name, classes=3), torch.randn(1, 3, size, size)
    on = ad.attach(model, ad.space(model, example).sample(seed=0), rate=0.5, example=example)
    assert on.unreached == ()
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    stem = 0 if name.startswith("wrn") else 1  # a Wide ResNet's has no normalization
    assert sum(bound.role == "main" for bound in on.sites) == norms - stem


def test_the_models_own_stochastic_depth_is_off_and_the_baseline_brings_it_back() -> None:
    model, images = image_model("efficientnet-b0-half", classes=3), torch.randn(2, 3, 64, 64)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.Dropout):
            module.eval()  # what is left at random in training would be stochastic depth
    assert torch.equal(model(images), model(images))
    on = ad.attach(model, ad.baseline("stochastic_depth"), rate=0.2, example=images)
    dropping = [bound for bound in on.sites if bound.drop is not None]
    assert len(dropping) == 9, "one for each block that has a shortcut"
    assert 0.15 < max(bound.rate for bound in dropping) <= 0.2


def test_the_head_is_the_last_normalization_and_the_classifier() -> None:
    for name in ("wrn-10-1", "resnet50-half", "efficientnet-b0-half"):
        model = on_meta(name, classes=7)
        norm, classifier = head(model)
        assert isinstance(norm, nn.BatchNorm2d)
        assert (classifier.in_features, classifier.out_features) == (norm.num_features, 7)
    with pytest.raises(ValueError, match="no linear classifier after a batch normalization"):
        head(nn.Linear(2, 2))


def test_names() -> None:
    for name in IMAGE_MODELS:
        assert isinstance(on_meta(name, classes=2), nn.Module)
    assert sum(weight.numel() for weight in image_model("wrn-10-1", 10, channels=1).parameters()) < 80_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet51", 10, 3), "'resnet51' is not an image model; there are wrn-28-2, .* and any wrn-DEPTH-WIDTH"),
        (("wrn-11-1", 10, 3), "depth .* got 11"),
        (("resnet50", 0, 3), "classes .* got 0"),
        (("resnet50", 10, 1), "resnet50 takes images of 3 channels, got 1"),
    ],
)
def test_mistakes(arguments: tuple[str, int, int], message: str) -> None:
    name, classes, channels = arguments
    with pytest.raises(ValueError, match=message):
        image_model(name, classes, channels=channels)


def test_torchvision_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    assert isinstance(image_model("wrn-10-1", 2), nn.Module)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'autodropout\[images\]'"):
        image_model("resnet50", 2)
