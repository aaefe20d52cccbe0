"""Shortcuts, one shape of block each: which are sites, where a drop acts on them, and why it cannot."""

import pytest
import torch
from convnet_tools import Block, PreActivation, SharedActivation, conv, names, pictures, rows, small
from torch import Tensor, nn
from torch.nn import functional as F

from autodropout.attach.convnet.find import find
from autodropout.attach.convnet.places import IdentityShortcut, ModuleOutput
from autodropout.attach.sites import Role


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


def test_an_activation_shared_within_the_block_is_a_shared_entry():
    site = find(small(SharedActivation()), pictures(8)).sites[-1]
    assert site.place == IdentityShortcut("stage.0", ("stage.0.relu",), shared=("stage.0.relu",))


def test_an_input_changed_in_place_is_not_mistaken_for_the_blocks_input():
    class Changing(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.branch(F.relu(x, inplace=True)) + x  # adds the activated input

    finding = find(small(Changing()), pictures(8))
    assert names(finding, Role.IDENTITY) == []
    assert finding.unreached == ("stage.0: the shortcut begins inside the block, not at its first argument",)


def test_a_model_that_runs_twice_has_the_sites_of_one_run():
    """As for two views of an image: in the second run, too, the shortcut has its normalization."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shortcut = nn.Sequential(nn.Conv2d(4, 4, 1, 2), nn.BatchNorm2d(4))
            self.net = small(Block(shortcut=shortcut, stride=2), Block())

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) - self.net(x.flip(3))

    model = Twice()
    finding, once = find(model, pictures(16)), find(model.net, pictures(16))
    assert [(site.name.removeprefix("net."), site.role) for site in finding.sites] == [
        (site.name, site.role) for site in once.sites
    ]
    assert finding.unreached == ()


class DropoutFirst(Block):
    """A branch that begins with dropout, by a function: in eval mode that is the very tensor of the shortcut."""

    def branch(self, x: Tensor) -> Tensor:
        return super().branch(F.dropout(x, 0.1, self.training))


def test_what_returns_its_input_does_not_take_its_place():
    inside, outside = DropoutFirst(), Block()
    outside.conv1 = nn.Sequential(nn.Dropout(0.1), outside.conv1)
    finding = find(small(inside, outside), pictures(8))
    assert names(finding, Role.IDENTITY) == ["stage.1:identity"]
    assert finding.sites[-1].place == IdentityShortcut("stage.1", ("stage.1.conv1",))
    assert finding.unreached == (
        "stage.0: the shortcut shares its input with a branch that begins with a function (dropout), not with a module",
    )


class Adapted(nn.Module):
    """A convolution with a low-rank adapter beside it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base, self.down, self.up = conv(width, width), conv(width, 2), nn.Conv2d(2, width, 1, bias=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(self.dropout(x))) * 2.0


def test_convolutions_side_by_side_are_one_linear_map_and_no_block():
    """Else the convolution that an adapter adapts would be a shortcut, and the first one in a stem would end it."""
    block = Block()
    block.conv1 = Adapted(4)
    net = small(block)
    net.conv1 = nn.Sequential(conv(3, 4), Adapted(4))
    finding = find(net, pictures(8))
    assert rows(finding) == rows(find(small(Block()), pictures(8)))
    assert finding.unreached == ()
