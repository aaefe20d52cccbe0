"""Imagenette, ten easy classes of ImageNet: 9,469 + 3,925 images. A stand-in with ImageNet's code and layout.

Results on it are Imagenette's and must be called so, never ImageNet's.
"""

from pathlib import Path

from autodropout.data.folders import find
from autodropout.data.image_folders import divided
from autodropout.data.splits import SemiSplits, Splits

NAME = "imagenette"
CLASSES = 10


def load(
    train: int | None = None, validation: int = 500, *, size: int = 96, data: Path | str | None = None, seed: int = 0
) -> Splits:
    """As `imagenet.load`; `test` is Imagenette's val part.

    Args:
        train, validation: how many training images, multiples of 10; `train` None for all that remain.
        size: of the decoded images.
        data: the folder of datasets; see `folders.root`.
        seed: of the draw of the splits.

    Raises:
        MissingData: the folder is not there.
        ValueError: it does not have ten classes, or an image is damaged.
    """
    parts = divided(folder(data), train, validation, False, CLASSES, size, seed)
    return Splits(parts.train, parts.validation, parts.test)


def semi(
    train: int, validation: int = 500, *, size: int = 96, data: Path | str | None = None, seed: int = 0
) -> SemiSplits:
    """As `load`, and every training image in neither part is unlabelled."""
    return divided(folder(data), train, validation, True, CLASSES, size, seed)


def folder(data: Path | str | None = None) -> Path:
    """Where train/ and val/ are."""
    return find(NAME, ("train", "val"), inside=("imagenette2-160", "imagenette2-320", "imagenette2"), data=data)
