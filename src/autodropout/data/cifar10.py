"""CIFAR-10 from its official binary files: 50,000 + 10,000 images of 32x32, and the paper's splits of them.

    data = load()                              # 45,000 to learn from, 5,000 of the training set for reward, 10,000 test
    data = load(train=50_000, validation=0)    # a final run
    data = load(train=4_000, validation=10_000)
    data = semi()                              # CIFAR-10-4K: 3,600 + 400 labelled, 46,000 unlabelled
    data = semi(train=4_000, validation=0)     # the same 4,000, for a final run

The paper holds out 10% of the training set for reward and does not say which; here the parts are drawn class by class
(see `splits`), as the 4,000 labels of CIFAR-10-4K are in the literature. The test set is never part of a reward.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from autodropout.data.folders import find
from autodropout.data.splits import Labelled, SemiSplits, Splits, check_counts, dealt

NAME = "cifar10"
CLASSES = 10
SIZE = 32
ROW = 1 + 3 * SIZE * SIZE  # a label, then the red, green and blue planes
TRAINING_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
PER_FILE = 10_000
MEAN = (0.4914, 0.4822, 0.4465)  # of the training images, per channel, in [0, 1]
STD = (0.2470, 0.2435, 0.2616)


def load(train: int = 45_000, validation: int = 5_000, *, data: Path | str | None = None, seed: int = 0) -> Splits:
    """Images as uint8 (N, 3, 32, 32), in splits that are the same at every call, for ever.

    Args:
        train, validation: how many of the 50,000 training images, multiples of 10: equally many of each class.
        data: the folder of datasets; see `folders.root`.
        seed: of the draw of the splits.

    Raises:
        MissingData: the files are not there.
        ValueError: a file is truncated or holds what is not a class.
    """
    parts = _divided(folder(data), train, validation, seed)
    return Splits(parts.train, parts.validation, parts.test)


def semi(train: int = 3_600, validation: int = 400, *, data: Path | str | None = None, seed: int = 0) -> SemiSplits:
    """As `load`, and every training image that is in neither part is unlabelled."""
    return _divided(folder(data), train, validation, seed)


@lru_cache(maxsize=1)  # one is 180 MB
def _divided(place: Path, train: int, validation: int, seed: int) -> SemiSplits:
    images, labels = _read([place / name for name in TRAINING_FILES])
    rarest = int(labels.bincount(minlength=CLASSES).min())  # every class has 5,000
    check_counts(train, validation, CLASSES, available=len(labels), rarest=rarest)
    order = torch.tensor(dealt(labels.tolist(), seed))
    images, labels = images[order], labels[order]
    training, labelled = Labelled(images, labels), train + validation
    return SemiSplits(
        training[validation:labelled], training[:validation], images[labelled:], Labelled(*_read([place / TEST_FILE]))
    )


def folder(data: Path | str | None = None) -> Path:
    """Where the files are."""
    return find(NAME, (*TRAINING_FILES, TEST_FILE), inside=("cifar-10-batches-bin",), data=data)


def _read(files: list[Path]) -> tuple[Tensor, Tensor]:
    """The images (N, 3, 32, 32) of uint8 and labels (N,) of binary files."""
    rows = np.concatenate([_rows(file) for file in files])  # (N, 3073)
    return torch.from_numpy(rows[:, 1:].reshape(-1, 3, SIZE, SIZE)), torch.from_numpy(rows[:, 0].astype(np.int64))


def _rows(file: Path) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    raw = np.fromfile(file, np.uint8)
    if len(raw) != PER_FILE * ROW:
        raise ValueError(f"{file} has {len(raw):,} bytes, not the {PER_FILE * ROW:,} of {PER_FILE:,} images of 32x32")
    rows = raw.reshape(PER_FILE, ROW)
    if (worst := int(rows[:, 0].max())) >= CLASSES:
        raise ValueError(f"{file}: image {int(rows[:, 0].argmax())} has the label {worst}, the classes are 0 to 9")
    return rows
