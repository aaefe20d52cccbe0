"""A dataset of image files in Imagenette's layout, made on the spot."""

from pathlib import Path

import torch
from PIL import Image


def tiny_imagenette(folder: Path, train: int = 6, test: int = 2, size: int = 96) -> Path:
    """Ten classes of noise around a colour of their own; returns the folder of datasets."""
    draw = torch.Generator().manual_seed(0)
    for part, count in (("train", train), ("val", test)):
        for number in range(10):
            place = folder / "imagenette" / part / f"n{number:08}"
            place.mkdir(parents=True)
            colour = torch.randint(60, 200, (3,), generator=torch.Generator().manual_seed(number))
            for image in range(count):
                pixels = colour + torch.randint(-50, 50, (size, size, 3), generator=draw)
                Image.fromarray(pixels.clamp(0, 255).to(torch.uint8).numpy()).save(place / f"{part}_{image}.JPEG")
    return folder
