"""Which sites are found in torchvision's and timm's ConvNets."""

import pytest
import torch
from convnet_tools import library_model, names, pictures, rows, sizes, snapshot
from torch import nn

from autodropout.attach.convnet.find import find
from autodropout.attach.convnet.places import IdentityShortcut, ModuleInput, ModuleOutput
from autodropout.attach.sites import NoSites, Role


def test_resnet18():
    finding = find(library_model("resnet18"), pictures(64))
    expected = []
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            path = f"layer{layer}.{block}"
            projected = layer > 1 and block == 0
            expected += [(f"{path}.bn1", "main", layer), (f"{path}.bn2", "main", layer)]
            expected += [(f"{path}.downsample.1", "shortcut", layer)] if projected else []
            expected += [(f"{path}:identity", "identity", layer)] if not projected else []
    assert rows(finding) == expected
    assert finding.kind == "convnet"
    assert finding.unreached == ()
    assert [site.name for site in finding.sites if site.ends_block] == [
        f"layer{layer}.{block}.bn2" for layer in (1, 2, 3, 4) for block in (0, 1)
    ]
    assert all(site.block == ".".join(site.name.split(":")[0].split(".")[:2]) for site in finding.sites)
    by_name = {site.name: site for site in finding.sites}
    assert by_name["layer2.0.bn1"].shape == (2, 128, 8, 8)
    assert by_name["layer2.0.bn1"].place == ModuleOutput("layer2.0.bn1")
    assert by_name["layer2.0.downsample.1"].place == ModuleOutput("layer2.0.downsample.1")
    assert by_name["layer2.1:identity"].place == IdentityShortcut("layer2.1", ("layer2.1.conv1",))


def test_resnet50_at_the_papers_resolution():
    finding = find(library_model("resnet50"), pictures(224, batch=1))
    expected = []
    for layer, blocks in ((1, 3), (2, 4), (3, 6), (4, 3)):
        for block in range(blocks):
            path = f"layer{layer}.{block}"
            # The stride is in the second convolution: the first normalization of a stage still runs at the size before.
            first = layer - 1 if layer > 1 and block == 0 else layer
            expected += [(f"{path}.bn1", "main", first), (f"{path}.bn2", "main", layer), (f"{path}.bn3", "main", layer)]
            expected += [(f"{path}.downsample.1", "shortcut", layer)] if block == 0 else []
            expected += [(f"{path}:identity", "identity", layer)] if block > 0 else []
    assert rows(finding) == expected
    assert sizes(finding) == [(56, 56), (28, 28), (14, 14), (7, 7)]
    assert {site.name.split(".")[-1] for site in finding.sites if site.ends_block} == {"bn3"}


@pytest.mark.parametrize(
    ("name", "main", "shortcut", "identity", "groups", "stem"),
    [
        ("wide_resnet50_2", 48, 4, 12, 4, ["bn1"]),
        ("resnext50_32x4d", 48, 4, 12, 4, ["bn1"]),
        ("efficientnet_b0", 48, 0, 9, 5, ["features.0.1"]),
        ("mobilenet_v3_small", 33, 0, 6, 4, ["features.0.1"]),
        ("mobilenet_v3_large", 45, 0, 10, 5, ["features.0.1"]),
        ("densenet121", 121, 0, 0, 5, []),
        ("regnet_y_400mf", 48, 4, 12, 5, ["stem.1"]),
        ("regnet_x_400mf", 66, 4, 18, 5, ["stem.1"]),
        ("vgg11_bn", 8, 0, 0, 5, []),
        ("mnasnet1_0", 49, 0, 10, 5, ["layers.1", "layers.4", "layers.7"]),
        ("timm/resnet18", 16, 3, 5, 4, ["bn1"]),
        ("timm/resnet50", 48, 4, 12, 4, ["bn1"]),
        ("timm/resnet50d", 48, 4, 12, 4, ["conv1.1", "conv1.4", "bn1"]),
        ("timm/efficientnet_b0", 48, 0, 9, 5, ["bn1"]),
        ("timm/rexnet_100", 48, 0, 11, 5, ["stem.bn"]),
        ("timm/resnetv2_50", 49, 0, 16, 4, []),  # pre-activation: normalizes nothing before the first block
        ("timm/darknetaa53", 51, 0, 23, 5, ["stem.conv1.bn"]),  # stem and body are containers of one type, side by side
        ("timm/hgnetv2_b0", 37, 0, 0, 4, [f"stem.stem{n}.bn" for n in ("1", "2a", "2b", "3", "4")]),  # skips come late
        ("timm/xception41", 78, 4, 8, 5, ["stem.0.bn", "stem.1.bn"]),
        ("convnext_tiny", 18, 0, 18, 4, []),  # layer normalizations: those of blocks alone
        ("timm/convnext_atto", 12, 0, 12, 4, []),
        ("timm/convnextv2_atto", 12, 0, 12, 4, []),
    ],
)
def test_library_models(name: str, main: int, shortcut: int, identity: int, groups: int, stem: list[str]):
    model, example = library_model(name), pictures(96)
    finding = find(model, example)
    assert [len(names(finding, role)) for role in Role] == [main, shortcut, identity]
    main = [site.group for site in finding.sites if site.role == Role.MAIN]
    assert list(dict.fromkeys(main)) == list(range(1, groups + 1))
    assert {site.group for site in finding.sites} == set(main)
    assert len({site.name for site in finding.sites}) == len(finding.sites)
    with_stem = find(model, example, stem=True)
    assert sorted(set(names(with_stem, Role.MAIN)) - set(names(finding, Role.MAIN))) == sorted(stem)


BIG = [pytest.param(f"efficientnet_b{n}", marks=pytest.mark.slow) for n in (5, 6, 7)]


@pytest.mark.parametrize("name", [*(f"efficientnet_b{n}" for n in (1, 2, 3, 4)), *BIG])
def test_efficientnets_have_all_normalizations_but_the_stems(name: str):
    model = library_model(name)
    finding = find(model, pictures(64))
    norms = [path for path, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert names(finding, Role.MAIN) == [path for path in norms if path != "features.0.1"]
    skipping = [path for path, module in model.named_modules() if getattr(module, "use_res_connect", False)]
    assert [site.block for site in finding.sites if site.role == Role.IDENTITY] == skipping
    assert finding.unreached == ()
    library_model.cache_clear()  # these are large, and used once


def test_normalizations_with_activation_are_masked_between_the_two():
    finding = find(library_model("timm/efficientnet_b0"), pictures(64))
    site = next(site for site in finding.sites if site.name == "blocks.1.0.bn1")
    assert site.place == ModuleInput("blocks.1.0.bn1.drop")


def test_finding_leaves_the_model_alone():
    model, example = library_model("resnet18"), pictures(64)
    model.train()
    before, state = snapshot(model), torch.get_rng_state()
    find(model, example, stem=True)
    assert snapshot(model) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_layer_normalizations_of_either_layout():
    theirs = find(library_model("convnext_tiny"), pictures(64)).sites
    assert theirs[0].place == ModuleOutput("features.1.0.block.2", channels_last=True)
    assert theirs[0].shape == (2, 96, 16, 16)
    permuting = find(library_model("timm/convnext_atto"), pictures(64)).sites[0]
    assert permuting.place == ModuleOutput("stages.0.blocks.0.norm")
    assert permuting.shape == (2, 40, 16, 16)
    assert not any(site.ends_block for site in theirs), "behind them a sample of zeros does not stay zeros"


@pytest.mark.parametrize("name", ["vit_b_16", "swin_t", "squeezenet1_1"])
def test_a_model_without_sites_is_refused(name: str):
    with pytest.raises(
        NoSites, match=r"looked for batch, instance or group normalizations.*\n  saw run: .*Conv2d"
    ) as told:
        find(library_model(name), pictures(224, batch=1) if name == "vit_b_16" else pictures(64))
    assert isinstance(told.value, ValueError)


def test_mlp_is_refused():
    with pytest.raises(NoSites, match="saw run: BatchNorm1d, Linear, Sequential"):
        find(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(2, 4))
