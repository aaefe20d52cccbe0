"""Augmentation pipelines: raw images on the device in, normalized float32 out.

    augment = standard(CIFAR_MEAN, CIFAR_STD).to("cuda")
    images = augment(bytes_on_the_device)        # (N, 3, 32, 32), uint8 -> float32

Random numbers come from the device's default generator. A pipeline has no parameters and no state: `train()` and
`eval()` make no difference, training and testing have a pipeline each.

What goes in where, and from whom:

    standard      padded crop and flip, CIFAR-10's standard: black borders (He et al. 2016) or, as the recipes have it,
                  reflected ones (UDA's and FixMatch's code)
    randaugment   that, RandAugment at n = 3, m = 5, from memory its paper's for WRN-28-10, and Cutout of 16 pixels
    uda           that, UDA's operations: two of them, each done with probability 1/2, at levels 1..9 of 10, and Cutout
    fixmatch      the same with FixMatch's operations, and reflected borders instead of black ones
    imagenet      random resized crop and flip (Szegedy et al. 2015); its RandAugment has n = 2 and m = 9 of 10, as its
                  authors' code (TensorFlow's TPU models) for ResNet-50; FixMatch's there draws levels from 0 to 10
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from autodropout.data import cifar10
from autodropout.training.augment.operations import square
from autodropout.training.augment.randaugment import FIXMATCH, FIXMATCH_IMAGENET, IMAGENET, UDA, RandAugment, Space
from autodropout.training.augment.sampling import CentreCrop, CropFlip, Padding, RandomResizedCrop, in_unit

CIFAR_MEAN, CIFAR_STD = cifar10.MEAN, cifar10.STD
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Numbers = tuple[float, ...]  # one per channel


class Augment(nn.Module):
    """Steps on images, then normalization, then Cutout, whose zeros are then the mean, as its authors did it.

    Args:
        steps: modules from images to images, uint8 or float in [0, 1].
        mean, std: of pixels in [0, 1], one per channel.
        cutout: side of the square that is blanked, in cells; 0 for none.
    """

    mean: Tensor  # (C, 1, 1)
    std: Tensor

    def __init__(self, steps: Iterable[nn.Module], mean: Numbers, std: Numbers, cutout: int = 0) -> None:
        super().__init__()
        if len(mean) != len(std) or len(mean) not in (1, 3):
            raise ValueError(f"mean and std must have 1 or 3 numbers each, got {mean} and {std}")
        if not all(value > 0 for value in std):
            raise ValueError(f"std must be positive, got {std}")
        if cutout < 0:
            raise ValueError(f"cutout must be at least 0, got {cutout}")
        self.steps = nn.Sequential(*steps)
        self.cutout = cutout
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W), uint8 or float in [0, 1] -> float32, normalized."""
        self._check(images)
        with (
            torch.no_grad(),
            torch.autocast(images.device.type, enabled=False),
        ):  # bfloat16 has fewer levels than a byte
            images = self.steps(images if images.dtype == torch.uint8 else images.float())
            images = (in_unit(images.float(), images.dtype) - self.mean) / self.std
            if self.cutout:
                centre = torch.rand(images.shape[0], 2, device=images.device)
                side = torch.full((images.shape[0],), self.cutout, device=images.device)
                images = images.masked_fill(square(images, centre, side), 0)
            return images.contiguous()

    def _check(self, images: Tensor) -> None:
        channels = len(self.mean)
        if images.dim() != 4 or images.shape[1] != channels or images.numel() == 0:
            raise ValueError(f"images must be (N, {channels}, H, W) and not empty, got {tuple(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ValueError(f"images must be uint8 or floats in [0, 1], got {images.dtype}")

    def extra_repr(self) -> str:
        return f"cutout={self.cutout}"


def plain(mean: Numbers, std: Numbers) -> Augment:
    """Normalization alone."""
    return Augment((), mean, std)


def standard(
    mean: Numbers, std: Numbers, *, pad: int = 4, padding: Padding = "zero", flip: bool = True, cutout: int = 0
) -> Augment:
    """A padded crop, a flip, and Cutout where asked (its authors: 16 of 32 pixels for CIFAR-10)."""
    return Augment((CropFlip(pad, padding, flip),), mean, std, cutout)


def randaugment(
    mean: Numbers,
    std: Numbers,
    *,
    n: int = 3,
    m: int = 5,
    pad: int = 4,
    padding: Padding = "zero",
    flip: bool = True,
    cutout: int = 16,
) -> Augment:
    """`standard` with RandAugment between flip and Cutout."""
    return Augment((CropFlip(pad, padding, flip), RandAugment(n, m, fill=mean)), mean, std, cutout)


def uda_strong(
    mean: Numbers,
    std: Numbers,
    *,
    n: int = 2,
    pad: int = 4,
    padding: Padding = "zero",
    flip: bool = True,
    cutout: int = 16,
) -> Augment:
    """`standard` with UDA's operations between flip and Cutout: what its consistency loss compares with."""
    return Augment((CropFlip(pad, padding, flip), _half(UDA, n, mean)), mean, std, cutout)


def fixmatch_strong(
    mean: Numbers,
    std: Numbers,
    *,
    n: int = 2,
    pad: int = 4,
    padding: Padding = "reflect",
    flip: bool = True,
    cutout: int = 16,
) -> Augment:
    """FixMatch's strong view, with RandAugment; its weak one is `standard(..., padding="reflect")`."""
    return Augment((CropFlip(pad, padding, flip), _half(FIXMATCH, n, mean)), mean, std, cutout)


def imagenet_train(mean: Numbers = IMAGENET_MEAN, std: Numbers = IMAGENET_STD, *, size: int = 224) -> Augment:
    """A random resized crop and a flip."""
    return Augment((RandomResizedCrop(size),), mean, std)


def imagenet_randaugment(
    mean: Numbers = IMAGENET_MEAN, std: Numbers = IMAGENET_STD, *, size: int = 224, n: int = 2, m: int = 9
) -> Augment:
    """`imagenet_train` and RandAugment as its authors published it, m being of 10."""
    return Augment((RandomResizedCrop(size), RandAugment(n, m, top=10, space=IMAGENET, fill=mean)), mean, std)


def imagenet_uda(mean: Numbers = IMAGENET_MEAN, std: Numbers = IMAGENET_STD, *, size: int = 224, n: int = 2) -> Augment:
    """`imagenet_train` and UDA's operations."""
    return Augment((RandomResizedCrop(size), _half(UDA, n, mean)), mean, std)


def imagenet_fixmatch(
    mean: Numbers = IMAGENET_MEAN, std: Numbers = IMAGENET_STD, *, size: int = 224, n: int = 2
) -> Augment:
    """`imagenet_train` and FixMatch's operations for ImageNet, each done with probability 1/2, at any level."""
    strong = RandAugment(n, (0, 10), top=10, space=FIXMATCH_IMAGENET, probability=0.5, fill=mean)
    return Augment((RandomResizedCrop(size), strong), mean, std)


def imagenet_eval(
    mean: Numbers = IMAGENET_MEAN, std: Numbers = IMAGENET_STD, *, size: int = 224, resize: int | None = None
) -> Augment:
    """The shorter side resized to `resize`, when left out in the usual proportion 256 to 224; then the centre."""
    return Augment((CentreCrop(size, round(size * 256 / 224) if resize is None else resize),), mean, std)


def _half(space: Space, n: int, mean: Numbers) -> RandAugment:
    """Operations done with probability 1/2, at any level but the ends."""
    return RandAugment(n, (1, 9), top=10, space=space, probability=0.5, fill=mean)


_BY_NAME = {
    "none": plain,
    "standard": standard,
    "randaugment": randaugment,
    "uda": uda_strong,
    "fixmatch": fixmatch_strong,
}
_SIZED_BY_NAME = {
    "imagenet": imagenet_train,
    "imagenet_randaugment": imagenet_randaugment,
    "imagenet_uda": imagenet_uda,
    "imagenet_fixmatch": imagenet_fixmatch,
    "imagenet_eval": imagenet_eval,
}
AUGMENTATIONS = (*_BY_NAME, *_SIZED_BY_NAME)


def augmentation(name: str, mean: Numbers, std: Numbers, *, size: int | None = None) -> Augment:
    """A pipeline by name, one of AUGMENTATIONS, with the defaults above.

    Args:
        name: which.
        mean, std: of pixels in [0, 1], one per channel.
        size: of the result, for those of ImageNet, 224 when left out; the others keep the size of the images.
    """
    if name in _SIZED_BY_NAME:
        return _SIZED_BY_NAME[name](mean, std, size=224 if size is None else size)
    if name not in _BY_NAME:
        raise ValueError(f"no augmentation is called {name!r}; there are {', '.join(AUGMENTATIONS)}")
    if size is not None:
        raise ValueError(f"size={size} means nothing to {name!r}, which keeps the size of the images")
    return _BY_NAME[name](mean, std)
