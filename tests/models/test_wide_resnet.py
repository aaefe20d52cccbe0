"""Wide ResNets: as large as published, of the right shapes, and with the sites of a policy where they belong."""

import pytest
import torch

import autodropout as ad
from autodropout.attach import discover
from autodropout.models import wide_resnet


@pytest.mark.parametrize(
    ("depth", "width", "millions"),  # the table of CIFAR results in "Wide Residual Networks"; 28-2: 1.5 million
    [(40, 1, 0.6), (40, 2, 2.2), (40, 4, 8.9), (28, 10, 36.5), (22, 8, 17.2), (16, 8, 11.0), (28, 2, 1.5)],
)
def test_as_many_weights_as_published(depth: int, width: int, millions: float) -> None:
    with torch.device("meta"):
        model = wide_resnet(depth, width, classes=10)
    count = sum(weight.numel() for weight in model.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.05)


def test_shapes_of_the_groups() -> None:
    model = wide_resnet(16, 2, classes=7, channels=1).eval()
    x = model.stem(torch.randn(3, 1, 20, 28))
    assert x.shape == (3, 16, 20, 28)
    x = model.group1(x)
    assert x.shape == (3, 32, 20, 28)
    x = model.group2(x)
    assert x.shape == (3, 64, 10, 14)
    assert model.group3(x).shape == (3, 128, 5, 7)
    assert model(torch.randn(3, 1, 20, 28)).shape == (3, 7)


def test_sites_and_groups() -> None:
    finding = discover(wide_resnet(10, 1, classes=10, channels=1), torch.randn(2, 1, 20, 20))
    assert [(site.name, site.role, site.group) for site in finding.sites] == [
        ("group1.0.norm1", "main", 1),  # the stem has no normalization, so nothing of it is lost
        ("group1.0.norm2", "main", 1),
        ("group1.0:identity", "identity", 1),
        ("group2.0.norm1", "main", 1),  # runs before its block halves the map
        ("group2.0.norm2", "main", 2),
        ("group2.0.projection:identity", "identity", 2),
        ("group3.0.norm1", "main", 2),
        ("group3.0.norm2", "main", 3),
        ("group3.0.projection:identity", "identity", 3),
        ("norm", "main", 3),
    ]
    assert finding.unreached == ()


def test_the_cifar_model_has_three_groups_and_every_block_its_shortcut() -> None:
    model, example = wide_resnet(28, 2, classes=10), torch.randn(2, 3, 32, 32)
    assert ad.space(model, example) == ad.ConvSpace(groups=((32, 32), (16, 16), (8, 8)), resolution=(32, 32))
    roles = [site.role for site in discover(model, example).sites]
    assert (roles.count("main"), roles.count("identity")) == (25, 12)


def test_an_untrained_network_neither_fades_nor_explodes() -> None:
    """Before any training the logits of unlike images differ, and stay moderate: the initial weights fit the depth."""
    model = wide_resnet(28, 1, classes=10).train()
    logits = model(torch.randn(32, 3, 32, 32))
    assert 1e-3 < logits.std(0).mean() < 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((11, 1, 10), "depth must be 6 n [+] 4 .* got 11"),
        ((4, 1, 10), "depth .* got 4"),
        ((10, 0, 10), "width .* got 0"),
        ((10, 1, 0), "classes .* got 0"),
    ],
)
def test_mistakes(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wide_resnet(*arguments)
