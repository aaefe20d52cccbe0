"""Small folders in ImageNet's layout."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("n01", "n02", "n03")


def picture(file: Path, color: tuple[int, int, int], size: tuple[int, int] = (12, 8)) -> None:
    """One color; lossless, whatever the name says: the content decides how it is read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(file, format="PNG")


def folder_of_images(folder: Path, each: dict[str, int], test: int = 2) -> Path:
    """Of each class so many training images; image i of class c is of the color (c, i, 9)."""
    for label, (name, count) in enumerate(each.items()):
        for number in range(count):
            picture(folder / f"train/{name}/{number:03}.JPEG", (label, number, 9))
        for number in range(test):
            picture(folder / f"val/{name}/v{number}.JPEG", (label, 200 + number, 9))
    return folder


def gradient(file: Path, width: int, height: int) -> None:
    """Red grows from left to right, green from top to bottom, by 2 a pixel."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.arange(width) * 2
    pixels[..., 1] = np.arange(height)[:, None] * 2
    Image.fromarray(pixels).save(file, format="PNG")
