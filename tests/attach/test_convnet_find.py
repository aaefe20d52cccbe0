"""Which sites are found in ConvNets, in small models of every shape of block and in the libraries' models."""

import pytest
import torch
from convnet_tools import Block, PreActivation, conv, library_model, pictures, small, snapshot
from torch import Tensor, nn
from torch.nn import functional as F

from autodropout.attach.convnet.find import find
from autodropout.attach.convnet.places import IdentityShortcut, ModuleInput, ModuleOutput
from autodropout.attach.convnet.residual import find_residuals
from autodropout.attach.record import record
from autodropout.attach.sites import Finding, NoSites, Role


def rows(finding: Finding) -> list[tuple[str, str, int | None]]:
    return [(site.name, str(site.role), site.group) for site in finding.sites]


def names(finding: Finding, role: Role) -> list[str]:
    return [site.name for site in finding.sites if site.role == role]


def sizes(finding: Finding) -> list[tuple[int, ...]]:
    """(H, W) of each group, by its main sites, which must agree."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for site in finding.sites:
        if site.role == Role.MAIN:
            found.setdefault(site.group, set()).add(site.shape[2:])
    assert all(len(one) == 1 for one in found.values())
    return [found[group].pop() for group in sorted(found)]


# ---- the libraries' models


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


# ---- one shape of block each


def test_pre_activation_blocks():
    finding = find(small(PreActivation(4, 8, stride=2), PreActivation(8, 8)), pictures(16))
    assert rows(finding) == [
        ("stage.0.bn1", "main", 1),
        ("stage.0.bn2", "main", 2),
        ("stage.0.project:identity", "identity", 2),  # a projection without a normalization
        ("stage.1.bn1", "main", 2),
        ("stage.1.bn2", "main", 2),
        ("stage.1:identity", "identity", 2),
    ]
    assert [site.place for site in finding.sites if site.role == Role.IDENTITY] == [
        ModuleOutput("stage.0.project"),
        IdentityShortcut("stage.1", ("stage.1.bn1",)),
    ]
    assert [site.ends_block for site in finding.sites] == [False, True, False, False, True, False]


def test_a_normalization_before_the_branches_part_belongs_to_the_main_branch():
    finding = find(small(Block(), PreActivation(4, 8)), pictures(8))
    site = next(site for site in finding.sites if site.name == "stage.1.bn1")
    assert (site.role, site.block) == (Role.MAIN, None)  # both branches of the projecting block read it


def test_a_shortcut_with_convolution_and_normalization():
    shortcut = nn.Sequential(nn.Conv2d(4, 4, 1, 2), nn.BatchNorm2d(4))
    finding = find(small(Block(shortcut=shortcut, stride=2)), pictures(16))
    assert rows(finding) == [
        ("stage.0.bn1", "main", 1),
        ("stage.0.bn2", "main", 1),
        ("stage.0.shortcut.1", "shortcut", 1),
    ]


@pytest.mark.parametrize("shortcut", [nn.Identity(), nn.Sequential(), nn.Dropout(0.1)], ids=lambda module: str(module))
def test_a_module_that_is_the_shortcut_takes_the_drop(shortcut: nn.Module):
    finding = find(small(Block(shortcut=shortcut)), pictures(8))
    assert finding.sites[-1].place == ModuleOutput("stage.0.shortcut")


def test_a_pooled_shortcut_is_masked_at_the_size_of_the_sum():
    site = find(small(Block(shortcut=nn.AvgPool2d(2), stride=2)), pictures(16)).sites[-1]
    assert (site.role, site.shape, site.group) == (Role.IDENTITY, (2, 4, 8, 8), 1)
    assert site.place == ModuleOutput("stage.0.shortcut")


class PooledByFunction(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x) + F.avg_pool2d(x, 2)


class ByFunction(Block):
    """A branch that begins with a function."""

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(F.relu(x)) + x


class ReadTwice(Block):
    """A shortcut that the sum shares with a gate."""

    def __init__(self) -> None:
        super().__init__(shortcut=nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        return (self.branch(x) + shortcut) * torch.sigmoid(shortcut)


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(4, 4)

    def forward(self, share: float, x: Tensor) -> Tensor:
        return share * self.conv(x)


class SecondArgument(Block):
    def __init__(self) -> None:
        super().__init__()
        self.mix = Mixing()

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(F.relu(self.bn1(self.mix(0.5, x))))) + x


class Parting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.conv(x), x.abs()


class OneModuleForBoth(Block):
    def __init__(self) -> None:
        super().__init__()
        self.part = Parting()

    def forward(self, x: Tensor) -> Tensor:
        branch, shortcut = self.part(x)
        return self.bn2(self.conv2(self.bn1(self.conv1(branch)))) + shortcut


class AddedTwice(Block):
    """Adds its input, and later once more, by modules that add."""

    def __init__(self) -> None:
        super().__init__()
        self.between, self.add1, self.add2 = conv(4, 4), Adding(), Adding()

    def forward(self, x: Tensor) -> Tensor:
        return self.add2(x, self.between(self.add1(x, self.branch(x))))


class Adding(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Twice(Block):
    """Two residual sums in one module: the second's shortcut is no module's input or output."""

    def __init__(self) -> None:
        super().__init__()
        self.more = conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.branch(x) + x
        return self.more(x) + x


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (PooledByFunction(stride=2), "changes the spatial size in a function"),
        (ByFunction(), "begins with a function (relu)"),
        (Twice(), "begins inside the block"),
        (ReadTwice(), "is read by more than the sum"),
        (SecondArgument(), "with stage.0.mix, which does not take it as its first argument"),
        (OneModuleForBoth(), "begins in the same module as the branch"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, nn.Module) else "",
)
def test_shortcuts_out_of_reach_are_named(block: nn.Module, reason: str):
    finding = find(small(block), pictures(16))
    (told,) = finding.unreached
    assert told.startswith("stage.0: the shortcut ")
    assert reason in told
    assert names(finding, Role.MAIN) == ["stage.0.bn1", "stage.0.bn2"]


def test_an_input_added_twice_is_one_site():
    finding = find(small(AddedTwice()), pictures(8))
    (site,) = (site for site in finding.sites if site.role == Role.IDENTITY)
    assert site.place == IdentityShortcut("stage.0", ("stage.0.conv1", "stage.0.add2"))
    assert finding.unreached == ("stage.0: adds its input more than once; only the first sum is a site",)


def test_a_shortcut_shared_by_blocks_is_reached_through_the_blocks():
    shared = nn.Identity()
    finding = find(small(Block(shortcut=shared), Block(shortcut=shared)), pictures(8))
    assert [site.place for site in finding.sites if site.role == Role.IDENTITY] == [
        IdentityShortcut(f"stage.{n}", (f"stage.{n}.conv1",)) for n in (0, 1)
    ]


def test_a_shortcut_belongs_to_the_group_of_the_sum():
    shortcut = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.AvgPool2d(2))
    finding = find(small(Block(), Block(shortcut=shortcut, stride=2)), pictures(16))
    (site,) = (site for site in finding.sites if site.role == Role.SHORTCUT)
    assert (site.shape, site.group) == ((2, 4, 16, 16), 2)


class Sum(nn.Module):
    """x plus any number of branches."""

    def __init__(self, *branches: nn.Module, identity: bool = True) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.identity = identity

    def forward(self, x: Tensor) -> Tensor:
        out = x if self.identity else 0
        for branch in self.branches:
            out = out + branch(x)
        return out


def normed(width: int = 4, convolutions: int = 1) -> nn.Sequential:
    return nn.Sequential(*(conv(width, width) for _ in range(convolutions)), nn.BatchNorm2d(width))


def test_branches_that_cannot_be_told_apart_are_named_and_stay_main():
    finding = find(small(Block(), Sum(normed(), normed(), identity=False)), pictures(8))
    assert finding.unreached == ("stage.1: adds two branches of 1 convolution each: neither is the shortcut",)
    assert names(finding, Role.MAIN)[-2:] == ["stage.1.branches.0.1", "stage.1.branches.1.1"]


def test_a_third_branch_is_named():
    finding = find(small(Sum(normed(convolutions=2), normed())), pictures(8))
    assert finding.unreached == ("stage.0: adds more than two branches: which of them is the shortcut is not clear",)
    assert names(finding, Role.IDENTITY) == ["stage.0:identity"]
    assert finding.sites[-1].place != finding.sites[0].place
    place = next(site.place for site in finding.sites if site.role == Role.IDENTITY)
    assert place == IdentityShortcut("stage.0", ("stage.0.branches.0", "stage.0.branches.1"))


class Crossing(nn.Module):
    """Two branches that exchange what they made before they are added."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.join = conv(4, 4), conv(4, 4), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        return self.join(torch.cat([left, right], 1)) + left * right


class Slices(nn.Module):
    """One half of the channels is convolved and added to the other, as in Res2Net."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return torch.cat([left, self.conv(left) + right], 1)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Crossing(), "adds two branches that meet more than once before: neither is a shortcut of the other"),
        (Slices(), "adds a slice of a tensor to what was made from it: that is no shortcut"),
        (
            Sum(nn.Sequential(Block(), Block()), nn.Sequential(Block()), identity=False),
            "adds two branches that both hold residual blocks: neither is the shortcut",
        ),
    ],
    ids=["crossing", "slices", "both residual"],
)
def test_sums_that_are_no_residual_blocks_are_named(block: nn.Module, reason: str):
    finding = find(small(Block(), block), pictures(8))
    assert finding.unreached == (f"stage.1: {reason}",)
    assert not any(site.block == "stage.1" for site in finding.sites)


def test_nested_blocks():
    """The inner block decides for its normalizations; the outer one has an identity of its own."""
    finding = find(small(Sum(nn.Sequential(Block(), conv(4, 4), nn.BatchNorm2d(4)))), pictures(8))
    inner = "stage.0.branches.0.0"
    assert [(site.name, site.block, site.ends_block) for site in finding.sites] == [
        (f"{inner}.bn1", inner, False),
        (f"{inner}.bn2", inner, True),
        (f"{inner}:identity", inner, False),
        ("stage.0.branches.0.2", "stage.0", True),
        ("stage.0:identity", "stage.0", False),
    ]
    assert finding.sites[-1].place == IdentityShortcut("stage.0", ("stage.0.branches.0",))


def test_what_runs_in_a_residual_branch_is_no_stem():
    """The first sum is the inner block's; the normalization before it belongs to the outer block."""
    finding = find(small(Sum(nn.Sequential(normed(), Block()))), pictures(8))
    assert names(finding, Role.MAIN)[0] == "stage.0.branches.0.0.1"


class Plain(Block):
    """Of the residual block's type, but without a skip."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x))


class Optional(Block):
    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x) + x if self.skip else self.branch(x)


@pytest.mark.parametrize(
    ("parts", "first"),
    [
        # A container of the same type follows: those right before are stages too, but for one that normalizes itself.
        ([normed(), nn.Sequential(Optional(False)), nn.Sequential(Optional(True)), nn.Sequential(Plain())], "1.0.bn1"),
        ([nn.MaxPool2d(1), nn.Sequential(Plain()), nn.Sequential(Optional(True)), nn.Sequential()], "1.0.bn1"),
        ([nn.Sequential(Plain()), nn.MaxPool2d(1), nn.Sequential(Optional(True)), nn.Sequential(Plain())], "2.0.bn1"),
        # None follows: only those count that hold blocks of the same type.
        ([normed(), nn.Sequential(Optional(False)), nn.Sequential(Optional(False), Optional(True))], "1.0.bn1"),
        ([nn.Sequential(Plain()), nn.Sequential(Optional(False), Optional(True))], "1.0.bn1"),
        # Blocks and stem side by side.
        ([conv(4, 4), nn.BatchNorm2d(4), Plain(), Optional(False), Optional(True)], "3.bn1"),
    ],
)
def test_where_the_body_begins(parts: list[nn.Module], first: str):
    finding = find(nn.Sequential(*parts), pictures(8, channels=4))
    assert finding.sites[0].name == first


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = normed(), normed(convolutions=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.two(x)], 1)


def test_concatenated_branches_are_all_main_and_a_model_without_sums_has_no_stem():
    finding = find(small(Inception()), pictures(8))
    assert rows(finding) == [("bn1", "main", 1), ("stage.0.one.1", "main", 1), ("stage.0.two.2", "main", 1)]
    assert not any(site.ends_block or site.block for site in finding.sites)


class SqueezeExcite(nn.Module):
    """A gate with a normalization of its own, as in ReXNet."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce, self.bn, self.expand = nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.expand(F.relu(self.bn(self.reduce(x.mean((2, 3), keepdim=True))))))


def test_gates_and_stochastic_depth_do_not_confuse_the_walk():
    branch = nn.Sequential(conv(4, 4), nn.BatchNorm2d(4), SqueezeExcite(), nn.Dropout2d(0.1), nn.Identity())
    finding = find(small(Sum(branch)), pictures(8))
    assert rows(finding) == [("stage.0.branches.0.1", "main", 1), ("stage.0:identity", "identity", 1)]
    assert finding.sites[0].ends_block


def test_arithmetic_is_no_residual():
    class Gelu(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x + x**3)

    graph = record(nn.Sequential(conv(3, 3), Gelu()), pictures(8))
    assert find_residuals(graph) == ([], [])


def test_a_block_run_twice_is_one_place():
    block = Block()
    finding = find(small(block, block), pictures(8))
    assert rows(finding) == [
        ("stage.0.bn1", "main", 1),
        ("stage.0.bn2", "main", 1),
        ("stage.0:identity", "identity", 1),
    ]


def test_an_activation_shared_within_the_block_is_a_shared_entry():
    class Shared(Block):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.bn2(self.conv2(self.relu(self.bn1(self.conv1(self.relu(x)))))) + x

    site = find(small(Shared()), pictures(8)).sites[-1]
    assert site.place == IdentityShortcut("stage.0", ("stage.0.relu",), shared=("stage.0.relu",))


def test_an_input_changed_in_place_is_not_mistaken_for_the_blocks_input():
    class Changing(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.branch(F.relu(x, inplace=True)) + x  # adds the activated input

    finding = find(small(Changing()), pictures(8))
    assert names(finding, Role.IDENTITY) == []
    assert finding.unreached == ("stage.0: the shortcut begins inside the block, not at its first argument",)


def test_every_kind_of_normalization():
    blocks = [Block() for _ in range(3)]
    blocks[0].bn1 = nn.GroupNorm(2, 4)
    blocks[1].bn1 = nn.InstanceNorm2d(4)
    blocks[2].bn1 = nn.SyncBatchNorm(4)
    finding = find(small(*blocks), pictures(8))
    assert names(finding, Role.MAIN) == [f"stage.{block}.bn{n}" for block in range(3) for n in (1, 2)]


def test_a_normalization_that_casts_is_reached_and_one_that_activates_is_named():
    class Casting(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float()).to(x.dtype)

    class Activating(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(super().forward(x))

    block = Block()
    block.bn1, block.bn2 = Casting(4), Activating(4)
    finding = find(small(block), pictures(8))
    assert names(finding, Role.MAIN) == ["stage.0.bn1"]
    assert finding.unreached == ("stage.0.bn2: applies its activation itself, with no module between the two",)


def test_a_child_shared_by_normalizations_is_no_place():
    class Activating(nn.BatchNorm2d):
        def __init__(self, between: nn.Module) -> None:
            super().__init__(4)
            self.between = between

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.between(super().forward(x)))

    block, between = Block(), nn.Identity()
    block.bn1, block.bn2 = Activating(between), Activating(between)
    other = Block()
    other.bn1 = Activating(nn.Identity())
    finding = find(small(block, other), pictures(8))
    assert names(finding, Role.MAIN) == ["stage.1.bn1", "stage.1.bn2"]
    site = next(site for site in finding.sites if site.name == "stage.1.bn1")
    assert site.place == ModuleInput("stage.1.bn1.between")
    assert [told.split(":")[0] for told in finding.unreached] == ["stage.0.bn1", "stage.0.bn2"]


def test_non_square_maps_are_grouped_by_height_and_width():
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.MaxPool2d((1, 2)), conv(4, 4), nn.BatchNorm2d(4))
    finding = find(model, torch.randn(2, 3, 8, 8))
    assert sizes(finding) == [(8, 8), (8, 4)]


@pytest.mark.parametrize("name", ["vit_b_16", "convnext_tiny"])
def test_a_model_without_sites_is_refused(name: str):
    with pytest.raises(NoSites, match=r"looked for batch, instance or group normalizations.*Conv2d") as told:
        find(library_model(name), pictures(224, batch=1) if name == "vit_b_16" else pictures(64))
    assert isinstance(told.value, ValueError)


def test_mlp_is_refused():
    with pytest.raises(NoSites, match="these types run: BatchNorm1d, Linear, Sequential"):
        find(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(2, 4))
