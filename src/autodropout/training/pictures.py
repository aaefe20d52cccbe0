"""Which images a classifier learns from: a dataset by name, its parts, and how its images are shown to a model.

    pictures = Pictures(name="cifar10", train=45_000, validation=5_000)
    splits = pictures.load()                            # uint8, checked
    view = pictures.view("standard", resolution=32)     # uint8 (N, 3, 32, 32) to normalized float

Everything that could be wrong with the images is found here, on the host, before a training starts.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from autodropout.data import Labelled, SemiSplits, Splits, cifar10, digits, imagenet, imagenette
from autodropout.training.augment import (
    AUGMENTATIONS,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Augment,
    augmentation,
    fixmatch_strong,
    randaugment,
    standard,
    uda_strong,
)

DIGITS_TO_LEARN_FROM = 1_000  # of 1,797, where most of them are unlabelled
# Views that make their own size.
RESIZING = ("imagenet", "imagenet_randaugment", "imagenet_uda", "imagenet_fixmatch", "imagenet_eval")


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of a dataset without reading it."""

    classes: int
    channels: int
    size: int  # as stored; square
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    flips: bool = True  # whether a mirrored image is still of its class


KINDS = {
    "digits": Kind(digits.CLASSES, 1, 20, (0.5,), (0.5,), flips=False),
    "digits-on-noise": Kind(digits.CLASSES, 1, 20, (0.5,), (0.5,), flips=False),
    "cifar10": Kind(cifar10.CLASSES, 3, cifar10.SIZE, cifar10.MEAN, cifar10.STD),
    "imagenette": Kind(10, 3, 96, IMAGENET_MEAN, IMAGENET_STD),  # a stand-in, never to be reported as ImageNet
    "imagenet": Kind(1000, 3, 256, IMAGENET_MEAN, IMAGENET_STD),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """A dataset by name and how much of it; two of the same record are the same images in the same order."""

    name: str
    train: int | None  # None: all that are not held out
    validation: int
    size: int | None = None  # of the stored images, where another than the dataset's own is wanted
    seed: int = 0  # of the draw of the parts
    folder: Path | None = None  # where datasets are; None: AUTODROPOUT_DATA, or the user's cache

    def __post_init__(self) -> None:
        if self.name not in KINDS:
            raise ValueError(f"{self.name!r} is not a dataset of images; there are {', '.join(KINDS)}")
        if self.size is not None and self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")

    @property
    def kind(self) -> Kind:
        kind = KINDS[self.name]
        return kind if self.size is None else replace(kind, size=self.size)

    def load(self) -> Splits:
        """Images as uint8 (N, C, size, size). Raises ValueError where they are not what the record says."""
        match self.name:
            case "digits" | "digits-on-noise":
                noise = self.name == "digits-on-noise"
                parts = digits.load(self._number(), self.validation, self.kind.size, self.seed, noise=noise)
                splits = Splits(*(_stored(part) for part in (parts.train, parts.validation, parts.test)))
            case "cifar10":
                parts = cifar10.load(self._number(), self.validation, data=self.folder, seed=self.seed)
                splits = Splits(*(self._shrunk(part) for part in (parts.train, parts.validation, parts.test)))
            case _:
                load = imagenette.load if self.name == "imagenette" else imagenet.load
                splits = load(self.train, self.validation, size=self.kind.size, data=self.folder, seed=self.seed)
        for part, images in (("training", splits.train), ("validation", splits.validation)):
            self.check(part, images)
        return splits

    def load_semi(self) -> SemiSplits:
        """As `load`, and beside the parts training images without labels, none of which is in a part."""
        folder, number = self.folder, self._number()
        match self.name:
            case "digits" | "digits-on-noise":
                splits = _hidden(replace(self, train=DIGITS_TO_LEARN_FROM).load(), number)
            case "cifar10":
                whole = cifar10.semi(number, self.validation, data=folder, seed=self.seed)
                train, validation, test = (self._shrunk(part) for part in (whole.train, whole.validation, whole.test))
                splits = SemiSplits(train, validation, _shrink(whole.unlabelled, self.kind.size), test)
            case _:
                semi = imagenette.semi if self.name == "imagenette" else imagenet.semi
                splits = semi(number, self.validation, size=self.kind.size, data=folder, seed=self.seed)
        for part, images in (("training", splits.train), ("validation", splits.validation)):
            self.check(part, images)
        if len(splits.unlabelled) == 0:
            raise ValueError(f"{self.name}: with {number} labels there are no images left without")
        return splits

    def check(self, part: str, images: Labelled) -> None:
        """That these are images and labels of this dataset; the validation part may be empty."""
        if len(images) == 0 and part == "training":
            raise ValueError(f"{self.name}: there are no training images")
        shape = (self.kind.channels, self.kind.size, self.kind.size)
        if tuple(images.images.shape[1:]) != shape or images.images.dtype != torch.uint8:
            found = f"{tuple(images.images.shape[1:])} of {images.images.dtype}"
            raise ValueError(f"{self.name}: the {part} images must be {shape} of uint8, got {found}")
        if len(images) and not 0 <= images.labels.min() <= images.labels.max() < self.kind.classes:
            low, high = int(images.labels.min()), int(images.labels.max())
            raise ValueError(
                f"{self.name}: the {part} labels must lie in 0..{self.kind.classes - 1}, got {low}..{high}"
            )

    def view(self, name: str, resolution: int) -> Augment:
        """The augmentation of that name, with this dataset's statistics; crops and Cutout keep CIFAR-10's proportions.

        Crops reflect the image at its border, as in UDA's code, whose values the paper takes for CIFAR-10.
        """
        kind = self.kind
        if name not in AUGMENTATIONS:
            raise ValueError(f"no augmentation is called {name!r}; there are {', '.join(AUGMENTATIONS)}")
        if name not in RESIZING and resolution != kind.size:
            raise ValueError(f"{name!r} leaves images of {kind.size}x{kind.size} as they are, not at {resolution}")
        pad, hole = resolution // 8, resolution // 2  # 4 and 16 of 32
        match name:
            case "standard":
                return standard(kind.mean, kind.std, pad=pad, padding="reflect", flip=kind.flips)
            case "randaugment":
                return randaugment(kind.mean, kind.std, pad=pad, padding="reflect", flip=kind.flips, cutout=hole)
            case "uda":
                return uda_strong(kind.mean, kind.std, pad=pad, padding="reflect", flip=kind.flips, cutout=hole)
            case "fixmatch":
                return fixmatch_strong(kind.mean, kind.std, pad=pad, padding="reflect", flip=kind.flips, cutout=hole)
        return augmentation(name, kind.mean, kind.std, size=resolution if name in RESIZING else None)

    def smoke(self) -> Self:
        """A few images of the same dataset; of the stand-in for ImageNet."""
        if self.name in ("imagenet", "imagenette"):
            return type(self)(name="imagenette", train=40, validation=20, folder=self.folder)
        return replace(self, train=40, validation=20)

    def _number(self) -> int:
        if self.train is None:
            raise ValueError(f"{self.name}: say how many images to train on")
        return self.train

    def _shrunk(self, part: Labelled) -> Labelled:
        return Labelled(_shrink(part.images, self.kind.size), part.labels)


def _hidden(splits: Splits, labelled: int) -> SemiSplits:
    """All training images but the first `labelled` of them lose their labels."""
    return SemiSplits(splits.train[:labelled], splits.validation, splits.train.images[labelled:], splits.test)


def _stored(part: Labelled) -> Labelled:
    """Digits come as floats in [-1, 1]."""
    return Labelled(((part.images + 1) * 127.5).round().to(torch.uint8), part.labels)


def _shrink(images: Tensor, size: int) -> Tensor:
    """Means of squares of pixels: CIFAR-10 at 16x16 trains four times as fast, which suits a CPU."""
    times, rest = divmod(images.shape[-1], size)
    if rest:
        raise ValueError(f"images of {images.shape[-1]}x{images.shape[-1]} cannot be shrunk to {size}x{size}")
    return images if times == 1 else F.avg_pool2d(images.float(), times).round().to(torch.uint8)
