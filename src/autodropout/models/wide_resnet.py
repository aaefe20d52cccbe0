"""Wide ResNet for small images (Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016).

    stem: conv 3x3 -> group of width 16k -> group of 32k, half the size -> group of 64k, a quarter -> norm -> classes

WRN-28-10, the model of the paper's CIFAR-10 and CIFAR-100 experiments, is `wide_resnet(28, 10, classes)`.
"""

from torch import Tensor, nn
from torch.nn import functional as F

STEM_CHANNELS = 16


class Block(nn.Module):
    """A pre-activation block: normalize, activate, convolve, twice. A projection reads the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        same = inputs == outputs and stride == 1
        self.projection = None if same else nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        shortcut = x if self.projection is None else self.projection(active)
        branch = self.conv1(active)
        branch = self.conv2(F.relu(self.norm2(branch)))
        total: Tensor = shortcut + branch  # (N, outputs, H / stride, W / stride)
        return total


class WideResNet(nn.Module):
    """Three groups of blocks between a bare convolution and a linear classifier; see `wide_resnet`."""

    def __init__(self, blocks: int, width: int, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = _conv3x3(channels, STEM_CHANNELS)
        self.group1 = _group(blocks, STEM_CHANNELS, 16 * width, stride=1)
        self.group2 = _group(blocks, 16 * width, 32 * width, stride=2)
        self.group3 = _group(blocks, 32 * width, 64 * width, stride=2)
        self.norm = nn.BatchNorm2d(64 * width)
        self.classifier = nn.Linear(64 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)  # (N, 16, H, W)
        x = self.group1(x)  # (N, 16k, H, W)
        x = self.group2(x)  # (N, 32k, H/2, W/2)
        x = self.group3(x)  # (N, 64k, H/4, W/4)
        x = F.relu(self.norm(x)).mean((2, 3))  # (N, 64k)
        logits: Tensor = self.classifier(x)  # (N, classes)
        return logits


def wide_resnet(depth: int, width: int, classes: int, *, channels: int = 3) -> WideResNet:
    """WRN-`depth`-`width`, with fresh weights.

    Args:
        depth: convolutions in a row, projections not counted: 6 n + 4 for n blocks a group (10, 16, 22, 28, 40, ...).
        width: the factor k; a plain ResNet has 1.
        classes: how many logits.
        channels: of the images.
    """
    check_depth(depth)
    for name, value in (("width", width), ("classes", classes), ("channels", channels)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    return WideResNet((depth - 4) // 6, width, classes, channels)


def check_depth(depth: int) -> None:
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth must be 6 n + 4 with n at least 1 (10, 16, 22, 28, ...), got {depth}")


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


def _group(blocks: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    rest = (Block(outputs, outputs, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(Block(inputs, outputs, stride), *rest)
