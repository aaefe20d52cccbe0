"""The paper's image classifiers by name: Wide ResNets (ours), ResNet-50, EfficientNets (torchvision's), its proxies.

    model = image_model("resnet50-half", classes=1000)

- `wrn-DEPTH-WIDTH`: any Wide ResNet; the paper's are wrn-28-2 and wrn-28-10.
- `resnet50`, `efficientnet-b0`, `-b3`, `-b5`, `-b7`: torchvision's, with fresh weights.
- `resnet50-half`, `efficientnet-b0-half`: each layer has half the channels (paper, "Search Configurations and Proxy
  Tasks"), exactly half: EfficientNet's own rule would round 12 channels to 16.

Two choices, so that a comparison of policies compares nothing else:

1. EfficientNet's built-in stochastic depth is off. It is a regularizer of the paper's table like any other, and comes
   back as `ad.baseline("stochastic_depth")`.
2. EfficientNet's dropout before the classifier stays, at its authors' rate (0.2 to 0.5): no policy reaches that place,
   and the paper keeps EfficientNet's values.

ResNet-50 starts with the last normalization of each branch at zero, as the code that DropBlock's authors trained with.
"""

import re
from typing import Any

from torch import nn

from autodropout.models.wide_resnet import check_depth, wide_resnet

_WIDE = re.compile(r"wrn-(\d+)-(\d+)")
EFFICIENTNETS = {"b0": 224, "b3": 300, "b5": 456, "b7": 600}  # the resolutions they were designed for
IMAGE_MODELS = (
    "wrn-28-2",
    "wrn-28-10",
    "resnet50",
    "resnet50-half",
    *(f"efficientnet-{size}" for size in EFFICIENTNETS),
    "efficientnet-b0-half",
)


def image_model(name: str, classes: int, *, channels: int = 3) -> nn.Module:
    """A classifier with fresh weights: images (N, channels, H, W) to logits (N, classes).

    Args:
        name: one of `IMAGE_MODELS`, or wrn-DEPTH-WIDTH.
        classes: how many logits.
        channels: of the images; only Wide ResNets take another number than 3.
    """
    if classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}")
    check_image_model(name, channels)
    if wide := _WIDE.fullmatch(name):
        return wide_resnet(int(wide[1]), int(wide[2]), classes, channels=channels)
    if name == "resnet50-half":
        return _half_resnet50(classes)
    if name == "efficientnet-b0-half":
        return _half_efficientnet_b0(classes)
    models = _torchvision_models()
    model: nn.Module
    if name == "resnet50":
        model = models.resnet50(num_classes=classes, zero_init_residual=True)
    else:
        model = getattr(models, name.replace("-", "_"))(num_classes=classes, stochastic_depth_prob=0.0)
    return model


def check_image_model(name: str, channels: int) -> None:
    """That there is such a model: to be said before images are read, which may take hours.

    Raises:
        ValueError: there is none.
    """
    if wide := _WIDE.fullmatch(name):
        check_depth(int(wide[1]))
        return
    if name not in IMAGE_MODELS:
        raise ValueError(
            f"{name!r} is not an image model; there are {', '.join(IMAGE_MODELS)}, and any wrn-DEPTH-WIDTH"
        )
    if channels != 3:
        raise ValueError(f"{name} takes images of 3 channels, got {channels}")


def head(model: nn.Module) -> tuple[nn.BatchNorm2d, nn.Linear]:
    """The last normalization and the classifier after it: what FixRes trains when the resolution changes."""
    modules = list(model.modules())
    classifier = next((module for module in reversed(modules) if isinstance(module, nn.Linear)), None)
    norm = next((module for module in reversed(modules) if isinstance(module, nn.BatchNorm2d)), None)
    if classifier is None or norm is None:
        raise ValueError("the model has no linear classifier after a batch normalization, so nothing to fine-tune")
    return norm, classifier


def _half_resnet50(classes: int) -> nn.Module:
    """Blocks take their widths from public arguments; the stem of 64 channels does not, so it is put in by hand."""
    resnet = _torchvision_models().resnet
    block = type("HalfBottleneck", (resnet.Bottleneck,), {"expansion": 2})  # 128 to 1024 channels, not 256 to 2048
    model: nn.Module = resnet.ResNet(
        block, [3, 4, 6, 3], num_classes=classes, width_per_group=32, zero_init_residual=True
    )
    narrow = {
        "conv1": nn.Conv2d(3, 32, kernel_size=7, stride=2, padding=3, bias=False),
        "bn1": nn.BatchNorm2d(32),
        "layer1.0.conv1": nn.Conv2d(32, 32, kernel_size=1, bias=False),
        "layer1.0.downsample.0": nn.Conv2d(32, 128, kernel_size=1, bias=False),
    }
    for path, module in narrow.items():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        model.set_submodule(path, module, strict=True)
    return model


def _half_efficientnet_b0(classes: int) -> nn.Module:
    """Table 1 of the EfficientNet paper, with half of each number of channels."""
    efficientnet = _torchvision_models().efficientnet
    stages = [  # expansion, kernel, stride, channels in and out, layers
        (1, 3, 1, 16, 8, 1),
        (6, 3, 2, 8, 12, 2),
        (6, 5, 2, 12, 20, 2),
        (6, 3, 2, 20, 40, 3),
        (6, 5, 1, 40, 56, 3),
        (6, 5, 2, 56, 96, 4),
        (6, 3, 1, 96, 160, 1),
    ]
    settings = []
    for expansion, kernel, stride, inputs, outputs, layers in stages:
        setting = efficientnet.MBConvConfig(expansion, kernel, stride, inputs, outputs, layers)
        setting.input_channels, setting.out_channels = inputs, outputs  # it had rounded them to multiples of 8
        settings.append(setting)
    model: nn.Module = efficientnet.EfficientNet(
        settings, dropout=0.2, stochastic_depth_prob=0.0, num_classes=classes, last_channel=640
    )
    return model


def _torchvision_models() -> Any:
    """Imported when asked for: torchvision is an extra."""
    try:
        import torchvision.models
    except ModuleNotFoundError:
        raise ModuleNotFoundError("this model comes with torchvision: pip install 'autodropout[images]'") from None
    return torchvision.models
