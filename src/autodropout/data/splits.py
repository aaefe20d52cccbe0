"""What an image dataset is here: labelled images, in parts that share no image, and how a training set is divided.

Every division is by one rule, so that parts drawn for different purposes fit together. The images of each class are put
in a random order, and the classes are dealt in turn: first the first image of every class, then the second. Any head
of that deal has equally many images of each class (until the rarest class is used up), and a shorter head lies
inside a longer one. The validation part is the head, the training part what follows it, so a validation image stays
one however many images are trained on.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, uint8


@dataclass(frozen=True, slots=True)
class Labelled:
    """Images and their classes."""

    images: Tensor  # (N, C, H, W): uint8 as they were stored, or float32
    labels: Tensor  # (N,), int64

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.labels.dim() != 1 or len(self.images) != len(self.labels):
            shapes = f"{tuple(self.images.shape)} and {tuple(self.labels.shape)}"
            raise ValueError(f"images must be (N, C, H, W) and labels (N,), got {shapes}")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> "Labelled":
        """A run of the images, without copying them."""
        return Labelled(self.images[part], self.labels[part])


@dataclass(frozen=True, slots=True)
class Splits:
    """A child learns from `train`, its reward comes from `validation`; `test` waits until nothing is left to choose.

    `validation` is empty where the caller asked for none: for a final run on all training images.
    """

    train: Labelled
    validation: Labelled
    test: Labelled


@dataclass(frozen=True, slots=True)
class SemiSplits:
    """As `Splits`, with images beside them whose labels nobody sees. They are training images, never test images."""

    train: Labelled
    validation: Labelled
    unlabelled: Tensor  # (N, C, H, W), uint8
    test: Labelled

    def __post_init__(self) -> None:
        if self.unlabelled.dim() != 4 or self.unlabelled.dtype != uint8:
            raise ValueError(f"unlabelled images must be (N, C, H, W) of uint8, got {tuple(self.unlabelled.shape)}")


def dealt(labels: Sequence[int], seed: int) -> list[int]:
    """The indices of all images, classes in turn, each class in an order drawn from the seed. The same for ever.

    Of Python's generator, `random()` alone is promised never to change.
    """
    draw = random.Random(seed)
    seen: dict[int, int] = {}
    turns = []
    for image in sorted(range(len(labels)), key=lambda _: draw.random()):
        label = labels[image]
        seen[label] = seen.get(label, -1) + 1
        turns.append((seen[label], label, image))
    return [image for _, _, image in sorted(turns)]


def check_counts(train: int, validation: int, classes: int, available: int, rarest: int) -> None:
    """That parts of so many images can be had with equally many of each class; together they may also be all images.

    Args:
        available: how many images there are, and `rarest` how many of the rarest class.

    Raises:
        ValueError: they cannot.
    """
    asked, everything = f"{train} + {validation}", train + validation == available
    if train < 1 or validation < 0 or train + validation > available:
        raise ValueError(f"train and validation are {asked} images, there are {available}")
    if validation % classes or (train % classes and not everything):
        raise ValueError(f"train and validation must be multiples of the {classes} classes, got {asked}")
    if max(validation, 0 if everything else train + validation) > classes * rarest:
        raise ValueError(f"train and validation are {asked} images, but a class has only {rarest}")
