"""ImageNet's layout, `train/CLASS/*.JPEG` and `val/...`, as splits of decoded images; also of smaller sets laid out so.

train/                 dealt by `splits`, classes in turn:
  validation           the first, so they stay the same whatever is trained on
  train                the next
  unlabelled           the rest, for semi-supervised learning
val/                   test: the labels of ImageNet's own test set are not public, and papers report on this part
"""

from collections import Counter
from functools import lru_cache
from pathlib import Path

import torch

from autodropout.data.folders import beside
from autodropout.data.image_files import ImageFiles, list_classes, list_flat, list_images
from autodropout.data.image_store import stored
from autodropout.data.splits import Labelled, SemiSplits, check_counts, dealt

LISTINGS = ("val.txt", "LOC_val_solution.csv")


def list_parts(folder: Path, classes: int, seed: int) -> tuple[ImageFiles, ImageFiles]:
    """The files of train/, dealt, and of val/.

    Raises:
        ValueError: they are not those of so many classes.
    """
    names = list_classes(folder / "train")
    if len(names) != classes:
        raise ValueError(f"{folder / 'train'} has {len(names)} class folders, not {classes}")
    training = list_images(folder / "train", names)
    test = list_images(folder / "val", names) if list_classes(folder / "val") else _flat_val(folder, names)
    return training.in_order(dealt(training.labels, seed)), test


@lru_cache(maxsize=1)
def divided(
    folder: Path, train: int | None, validation: int, unlabelled: bool, classes: int, size: int, seed: int
) -> SemiSplits:
    """The parts, decoded as far as they are wanted.

    Args:
        train: how many images; None for all that are not in `validation`.
        unlabelled: whether the rest is wanted; it is empty if not.
    """
    training, test = list_parts(folder, classes, seed)
    wanted = len(training) - validation if train is None else train
    check_counts(wanted, validation, classes, len(training), rarest=min(Counter(training.labels).values()))
    labelled, kept = validation + wanted, beside(folder)
    images = stored(training, len(training) if unlabelled else labelled, size, kept, f"train-{seed}")
    head = Labelled(images[:labelled], torch.tensor(training.labels[:labelled]))
    return SemiSplits(
        head[validation:],
        head[:validation],
        images[labelled:],
        Labelled(stored(test, len(test), size, kept, "val"), torch.tensor(test.labels)),
    )


def _flat_val(folder: Path, names: list[str]) -> ImageFiles:
    """val/ without class folders; its listing is beside it, or where Kaggle's archive has it, three folders up."""
    places = [place / name for place in (folder, *folder.parents[:3]) for name in LISTINGS]
    listing = next((place for place in places if place.exists()), None)
    if listing is None:
        raise ValueError(f"{folder / 'val'} has no class folders, and {folder} neither {' nor '.join(LISTINGS)}")
    return list_flat(folder / "val", listing, names)
