"""Images in files: which there are, of which class, and how one becomes a square of pixels.

An image is resized so that its shorter side is `size`, antialiased, and its middle square is kept: what is usual for
testing on ImageNet, at 256. Training crops are then taken from that square on the device; what lies outside it, a
quarter of a usual photograph, is not seen in training. That is the price for pixels of one size, which can be kept.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import scandir
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Files under one folder, and the class of each."""

    folder: Path
    paths: list[str]  # relative to it: a million whole ones would weigh
    labels: list[int]

    def __len__(self) -> int:
        return len(self.paths)

    def in_order(self, order: Sequence[int]) -> "ImageFiles":
        return ImageFiles(self.folder, [self.paths[i] for i in order], [self.labels[i] for i in order])


def list_classes(folder: Path) -> list[str]:
    """The names of the class folders, sorted: their order numbers the classes."""
    return sorted(entry.name for entry in scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def list_images(folder: Path, classes: Sequence[str]) -> ImageFiles:
    """The images in a folder's class folders.

    Raises:
        ValueError: a class has no folder or no images there, or a folder is none of the classes.
    """
    if unknown := sorted(set(list_classes(folder)) - set(classes)):
        raise ValueError(f"{folder / unknown[0]} is none of the {len(classes)} classes")
    paths, labels = [], []
    for label, name in enumerate(classes):
        found = _images(folder / name) if (folder / name).is_dir() else []
        if not found:
            raise ValueError(f"{folder / name} holds no images of its class")
        paths += [f"{name}/{file}" for file in found]
        labels += [label] * len(found)
    return ImageFiles(folder, paths, labels)


def list_flat(folder: Path, listing: Path, classes: Sequence[str]) -> ImageFiles:
    """The images of a folder without class folders, by a listing of their classes.

    Args:
        listing: lines of a file's name and its class, a number (of the sorted folder names) or a folder's name; or
            Kaggle's LOC_val_solution.csv.

    Raises:
        ValueError: the listing and the folder do not agree, or a class does not exist.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    named = _read_listing(listing)
    found = _images(folder)
    if len(named) != len(found):
        raise ValueError(f"{listing} names {len(named):,} images, {folder} has {len(found):,}")
    labels = []
    for file in found:
        line, text = named.get(file, (0, ""))
        label = int(text) if text.isdecimal() else numbers.get(text, -1)
        if not line:
            raise ValueError(f"{listing} does not name {file}")
        if not 0 <= label < len(classes):
            raise ValueError(f"{listing}, line {line}: {file} has the class {text!r}, there are {len(classes)} classes")
        labels.append(label)
    return ImageFiles(folder, found, labels)


def decode(path: Path, size: int) -> NDArray[np.uint8]:
    """The middle square of an image, as (3, size, size).

    Raises:
        ValueError: the file is no image, or is damaged.
    """
    from PIL import Image

    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (OSError, SyntaxError) as error:  # Pillow's, for files that are damaged
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} cannot be read as an image: {error}") from None
    width, height = image.size
    shorter = min(width, height)
    wide, high = (max(size, int(size * side / shorter)) for side in (width, height))
    if (wide, high) != (width, height):
        image = image.resize((wide, high), Image.Resampling.BILINEAR)
    left, top = round((wide - size) / 2), round((high - size) / 2)
    return np.asarray(image.crop((left, top, left + size, top + size))).transpose(2, 0, 1)


class Decoded(Dataset[tuple[Tensor, int]]):
    """Images decoded when they are asked for: for a DataLoader, where the disk has no room for `image_store`.

    The pixels are the same as there.
    """

    def __init__(self, files: ImageFiles, size: int) -> None:
        self.files, self.size = files, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Its pixels as uint8 (3, size, size), and its class."""
        pixels = decode(self.files.folder / self.files.paths[index], self.size)
        return torch.from_numpy(np.ascontiguousarray(pixels)), self.files.labels[index]


def _images(folder: Path) -> list[str]:
    names = (entry.name for entry in scandir(folder))
    return sorted(name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith("."))


def _read_listing(listing: Path) -> dict[str, tuple[int, str]]:
    """By file name: the line and the class it names."""
    read: Callable[[list[str]], tuple[str, str]]
    with listing.open(encoding="utf-8", newline="") as content:
        if listing.suffix == ".csv":  # ImageId,PredictionString: the class, then boxes
            rows = [*csv.reader(content)][1:]
            first, read = 2, lambda row: (f"{row[0]}.JPEG", row[1].split()[0])
        else:
            rows = [line.split() for line in content]
            first, read = 1, lambda row: (row[0], row[1])
        named = {}
        for line, row in enumerate(rows, start=first):
            if len(row) != 2 or not row[1].strip():
                raise ValueError(f"{listing}, line {line}: not a file's name and its class: {row}")
            file, label = read(row)
            named[file] = (line, label)
    return named
