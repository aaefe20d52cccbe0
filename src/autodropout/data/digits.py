"""Handwritten digits: the 1,797 images of 8x8 that come with scikit-learn, so nothing is downloaded.

They are enlarged, for a pattern needs room: its sizes are multiples of a fifth of the map, and in the last group of a
Wide ResNet the map is a quarter of the image. 20x20 is the smallest image that leaves 5 cells there.

As they are, a few of them teach a small ConvNet nearly all there is to know, and regularization has nothing to win. On
noise, each image on its own (MNIST-back-rand: Larochelle et al., "An empirical evaluation of deep architectures on
problems with many factors of variation", 2007), the noise can be learned by heart, and not doing so pays.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from autodropout.data.splits import Labelled, Splits, dealt

CLASSES = 10
FEWEST = 174  # images of the rarest class, the digit 8


@cache
def load(train: int = 200, validation: int = 600, size: int = 20, seed: int = 0, *, noise: bool = False) -> Splits:
    """The digits as (N, 1, size, size) in [-1, 1]; the same splits at every call, for ever.

    Train and validation have equally many images of each class; test is the rest: the images that test a training on
    few may be learned from in one on more.

    Args:
        train, validation: how many images, multiples of 10; together at most 1,700, so that every class is tested.
        size: of the enlarged images, bilinear.
        seed: of the draw of the splits.
        noise: whether digits are on noise: no pixel is darker than one drawn for it, uniformly; an image's noise is its
            own whatever else is asked for.
    """
    for name, value in (("train", train), ("validation", validation)):
        if value < CLASSES or value % CLASSES:
            raise ValueError(f"{name} must be a positive multiple of {CLASSES}, got {value}")
    if train + validation >= CLASSES * FEWEST:
        raise ValueError(f"train and validation leave no 8 to test with: {train} + {validation} of 1,797 images")
    if size < 8:
        raise ValueError(f"size must be at least 8, which the images have, got {size}")
    pixels, labels = _bundled()
    images = F.interpolate(pixels / 8 - 1, size=(size, size), mode="bilinear", align_corners=False)
    if noise:
        images = torch.maximum(images, _noise(len(images), size))
    order = torch.tensor(dealt(labels.tolist(), seed))
    held_out, learned, rest = order.split((validation, train, len(order) - validation - train))
    return Splits(*(Labelled(images[part], labels[part]) for part in (learned, held_out, rest)))


def _noise(count: int, size: int) -> Tensor:
    """(count, 1, size, size) in [-1, 1]. Of NumPy's generators, only this one is promised never to change."""
    drawn = np.frombuffer(np.random.RandomState(0).bytes(count * size * size), np.uint8)
    return torch.tensor(drawn).view(count, 1, size, size) / 127.5 - 1


def _bundled() -> tuple[Tensor, Tensor]:
    """Pixels 0..16 as (1797, 1, 8, 8), and the digits they show."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn") from None
    bunch = load_digits()
    return torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1), torch.tensor(bunch.target, dtype=torch.int64)
