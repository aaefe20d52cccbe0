"""For the ConvNet tests: rules that mark instead of masking, small models, and a witness of a training pass."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from autodropout.attach.convnet.normalizations import LAYER_NORMALIZING, NORMALIZING, PERMUTATIONS
from autodropout.attach.convnet.places import IdentityShortcut
from autodropout.attach.convnet.residual import SUMS
from autodropout.attach.hooks import remove_all
from autodropout.attach.sites import Finding, Role, Site
from autodropout.layers.drop import Drop, Rule


@dataclass(frozen=True)
class Times:
    """A rule that multiplies: by 0, to see what a wholly dropped tensor leaves; by 2 or 3, to see who was touched."""

    factor: float

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        return h * self.factor


@dataclass
class Witnessed:
    """A rule that copies, and keeps what it saw and what it gave."""

    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        given = h.clone()
        self.seen.append((h, given))
        return given


@contextmanager
def attached(model: nn.Module, sites: tuple[Site, ...], rules: list[Rule]) -> Iterator[list[Drop]]:
    drops = [Drop(rule, 0.5, number) for number, rule in enumerate(rules)]
    try:
        for site, drop in zip(sites, drops, strict=True):
            site.place.put(model, drop)
        yield drops
    finally:
        remove_all(model)


class Ledger(TorchFunctionMode):
    """Every function with the tensors it read and made, all kept alive so that `is` can be asked of them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[Any, list[Tensor], Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.rows.append((func, [arg for arg in args if isinstance(arg, Tensor)], output))
        return output

    def readers(self, tensor: Tensor) -> list[Any]:
        """The functions that made a tensor from this one."""
        return [f for f, read, made in self.rows if isinstance(made, Tensor) and any(one is tensor for one in read)]

    def normalizer(self, tensor: Tensor) -> Any:
        """The function that made a tensor, but for the order of its axes."""
        function, read = next((f, read) for f, read, made in self.rows if made is tensor)
        return self.normalizer(read[0]) if function in PERMUTATIONS else function


def check_training_pass(model: nn.Module, example: Tensor, finding: Finding) -> None:
    """Every site acts once for each run of its module, on the tensor it claims; nobody else is given what it made."""
    ran: Counter[nn.Module] = Counter()
    paths = {module: path for path, module in model.named_modules()}
    counting = [module.register_forward_hook(lambda module, *_: ran.update([module])) for module in paths]
    rules: list[Any] = [Witnessed() for _ in finding.sites]
    model.train()
    with attached(model, finding.sites, rules), torch.no_grad(), Ledger() as ledger:
        model(example)
    for hook in counting:
        hook.remove()
    for site, rule in zip(finding.sites, rules, strict=True):
        owner = site.place.block if isinstance(site.place, IdentityShortcut) else site.place.path
        assert len(rule.seen) == ran[model.get_submodule(owner)] > 0, site
        for h, given in rule.seen:
            assert h.shape[1:] == site.shape[1:], site
            if site.role != Role.IDENTITY:
                assert ledger.normalizer(h) in NORMALIZING | LAYER_NORMALIZING, site
                assert [f for f in ledger.readers(h) if f is not Tensor.clone] == [], site
            else:
                assert set(ledger.readers(given)) <= SUMS, site
                assert ledger.readers(given), site


def snapshot(model: nn.Module) -> list[Any]:
    """Everything of a model that attaching could leave something in: attributes, hooks, flags, values."""
    return [
        (path, module.training, {name: _frozen(value) for name, value in module.__dict__.items()})
        for path, module in model.named_modules()
    ]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _frozen(one)) for name, one in value.items()]
    if isinstance(value, Tensor):
        return (id(value), value._version, value.detach().numpy().tobytes())
    return id(value)


@cache
def library_model(name: str) -> nn.Module:
    """A torchvision model, or timm's after `timm/`; built once, so tests leave it as they found it."""
    if name.startswith("timm/"):
        return timm.create_model(name.removeprefix("timm/"))
    return torchvision.models.get_model(name, weights=None)


def pictures(size: int = 64, batch: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, size, size)


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class Block(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + x), with any module as the shortcut."""

    def __init__(self, width: int = 4, shortcut: nn.Module | None = None, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(width, width, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width), nn.BatchNorm2d(width)
        self.shortcut = shortcut

    def branch(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + (x if self.shortcut is None else self.shortcut(x)))


class SharedActivation(Block):
    """A block that begins with the activation it uses again further on."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(self.relu(self.bn1(self.conv1(self.relu(x)))))) + x


class PreActivation(nn.Module):
    """A block of a Wide ResNet: normalize, activate, convolve; the projection reads the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, outputs, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), conv(outputs, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.project = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.relu(self.bn1(x))
        shortcut = x if self.project is None else self.project(activated)
        out = self.conv2(self.relu(self.bn2(self.conv1(activated))))
        out += shortcut
        return out


class Net(nn.Module):
    """A stem, the blocks as one stage, a head."""

    def __init__(self, *blocks: nn.Module, width: int = 4) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(3, width), nn.BatchNorm2d(width)
        self.stage = nn.Sequential(*blocks)
        self.head = nn.LazyLinear(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


def small(*blocks: nn.Module) -> Net:
    net = Net(*blocks)
    with torch.no_grad():
        net.eval()(pictures(8))
    return net.train()


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
