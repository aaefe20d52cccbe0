"""Sums, stems and normalizations of small ConvNets: which are sites, and of which group."""

import pytest
import torch
from convnet_tools import Block, conv, names, pictures, rows, sizes, small
from torch import Tensor, nn
from torch.nn import functional as F

from autodropout.attach.convnet.find import find
from autodropout.attach.convnet.places import IdentityShortcut, ModuleInput, ModuleOutput
from autodropout.attach.convnet.residual import find_residuals
from autodropout.attach.record import record
from autodropout.attach.sites import NoSites, Role


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


@pytest.mark.parametrize("identity", [False, True])
def test_of_many_convolutions_side_by_side_none_is_a_shortcut(identity: bool):
    """As a re-parametrized block has them in training; its normalized input alone is a shortcut to them."""
    branches = [normed(), normed(), normed(), *([nn.BatchNorm2d(4)] if identity else [])]
    finding = find(small(Block(), Sum(*branches, identity=False)), pictures(8))
    assert names(finding, Role.SHORTCUT) == ["stage.1.branches.3"] * identity
    assert {f"stage.1.branches.{number}.1" for number in range(3)} <= set(names(finding, Role.MAIN))
    assert finding.unreached[1] == "stage.1: adds more than two branches: which of them is the shortcut is not clear"


def test_stochastic_depth_leaves_long_skips_alone():
    """A branch by way of smaller maps, as in a U-Net: its end is no end of a residual block."""
    down = nn.Sequential(conv(4, 4, 2), nn.BatchNorm2d(4), nn.ReLU())
    up = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, 2), nn.BatchNorm2d(4))
    finding = find(small(Sum(nn.Sequential(down, Block(), up))), pictures(8))
    assert [site.name for site in finding.sites if site.ends_block] == ["stage.0.branches.0.1.bn2"]
    assert names(finding, Role.IDENTITY) == ["stage.0.branches.0.1:identity", "stage.0:identity"]


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


def test_every_kind_of_normalization():
    blocks = [Block() for _ in range(3)]
    blocks[0].bn1 = nn.GroupNorm(2, 4)
    blocks[1].bn1 = nn.InstanceNorm2d(4)
    blocks[2].bn1 = nn.SyncBatchNorm(4)
    finding = find(small(*blocks), pictures(8))
    assert names(finding, Role.MAIN) == [f"stage.{block}.bn{n}" for block in range(3) for n in (1, 2)]


class Frozen(nn.Module):
    """A batch normalization by hand, of buffers, as detectors have it; with its activation, as timm has it."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.act = act
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, mean, var = (buffer.reshape(1, -1, 1, 1) for buffer in self.buffers(recurse=False))
        scale = weight * (var + 1e-5).rsqrt()
        x = x * scale + (bias - mean * scale)
        return x if self.act is None else self.act(x)


class Counting(nn.Module):
    """Statistics of what passes, and no normalization."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


def test_frozen_batch_normalizations_are_sites():
    blocks = [Block(), Block(shortcut=nn.Sequential(conv(4, 4, 2), Frozen()), stride=2)]
    for block in blocks:
        block.bn1, block.bn2 = Frozen(nn.ReLU()), Frozen()
    net = small(*blocks)
    net.bn1, net.stage[0].conv2 = Frozen(), nn.Sequential(net.stage[0].conv2, Counting())
    finding = find(net, pictures(8))
    assert rows(finding) == [
        ("stage.0.bn1", "main", 1),
        ("stage.0.bn2", "main", 1),
        ("stage.0:identity", "identity", 1),
        ("stage.1.bn1", "main", 2),
        ("stage.1.bn2", "main", 2),
        ("stage.1.shortcut.1", "shortcut", 2),
    ]
    assert [site.place for site in finding.sites[:2]] == [ModuleInput("stage.0.bn1.act"), ModuleOutput("stage.0.bn2")]


def test_maps_of_one_and_of_three_dimensions_are_named():
    series = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.LazyLinear(5), nn.BatchNorm1d(5))
    series.eval()(torch.randn(2, 2, 9))
    with pytest.raises(NoSites, match=r"not reached, in 1: its output is \(N, C, T\): patterns are for \(N, C, H, W\)"):
        find(series, torch.randn(2, 2, 9))
    volumes = nn.Sequential(nn.Conv3d(1, 4, 3), nn.InstanceNorm3d(4))
    with pytest.raises(NoSites, match=r"in 1: its output is \(N, C, T, H, W\)"):
        find(volumes, torch.randn(2, 1, 5, 5, 5))
    both = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.Flatten(2), nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4))
    finding = find(both, pictures(8))
    assert names(finding, Role.MAIN) == ["1"]
    assert finding.unreached == ("4: its output is (N, C, T): patterns are for (N, C, H, W)",)


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
