"""Images in files: listing them, and decoding one to a square."""

from pathlib import Path

import numpy as np
import pytest
import torch
from image_tools import CLASSES, folder_of_images, gradient, picture
from PIL import Image
from torch.utils.data import DataLoader

from autodropout.data.image_files import Decoded, decode, list_classes, list_flat, list_images


def test_the_middle_square_is_kept(tmp_path: Path) -> None:
    gradient(tmp_path / "wide.png", 100, 40)
    pixels = decode(tmp_path / "wide.png", 40)
    assert pixels.shape == (3, 40, 40)
    assert pixels.dtype == np.uint8
    assert pixels[0, 7].tolist() == [2 * column for column in range(30, 70)]
    assert pixels[1, :, 7].tolist() == [2 * row for row in range(40)]
    gradient(tmp_path / "high.png", 40, 101)
    assert decode(tmp_path / "high.png", 40)[1, 0, 0] == 2 * 30  # round(30.5) of an odd rest


@pytest.mark.parametrize("size", [20, 60])
def test_the_shorter_side_becomes_the_size(tmp_path: Path, size: int) -> None:
    """Enlarged or shrunk, the middle stays the middle and the slope follows."""
    gradient(tmp_path / "x.png", 100, 40)
    pixels = decode(tmp_path / "x.png", size)
    assert pixels.shape == (3, size, size)
    assert abs(pixels[0].mean() - 99) < 1
    slope = np.diff(pixels[0, size // 2].astype(float))[2:-2].mean()
    assert slope == pytest.approx(2 * 40 / size, rel=0.05)


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "P"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    """ImageNet has gray and CMYK images among its JPEGs."""
    kind = "TIFF" if mode == "CMYK" else "PNG"
    Image.new("RGB", (9, 8), (50, 50, 50)).convert(mode).save(tmp_path / "x.JPEG", format=kind)
    assert decode(tmp_path / "x.JPEG", 8).shape == (3, 8, 8)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / "whole.JPEG")
    content = (tmp_path / "whole.JPEG").read_bytes()
    (tmp_path / "cut.JPEG").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.JPEG").write_text("hello")
    (tmp_path / "empty.JPEG").write_bytes(b"")
    for name in ("cut", "text", "empty"):
        with pytest.raises(ValueError, match=f"{name}.JPEG cannot be read as an image"):
            decode(tmp_path / f"{name}.JPEG", 8)
    with pytest.raises(FileNotFoundError):
        decode(tmp_path / "none.JPEG", 8)


def test_classes_are_numbered_in_order_and_other_files_ignored(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path, dict(zip(CLASSES, (2, 1, 3), strict=True)))
    (folder / "train/n01/readme.txt").write_text("x")
    (folder / "train/.cache").mkdir()
    (folder / "train/n01/._000.JPEG").write_text("x")  # as some systems put beside each file
    (folder / "train/listing.json").write_text("x")
    assert list_classes(folder / "train") == list(CLASSES)
    files = list_images(folder / "train", CLASSES)
    assert files.labels == [0, 0, 1, 2, 2, 2]
    assert files.paths[:3] == ["n01/000.JPEG", "n01/001.JPEG", "n02/000.JPEG"]


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path, dict(zip(CLASSES, (2, 1, 3), strict=True)))
    with pytest.raises(ValueError, match=r"n03 is none of the 2 classes"):
        list_images(folder / "train", CLASSES[:2])
    with pytest.raises(ValueError, match=r"n04 holds no images of its class"):
        list_images(folder / "train", (*CLASSES, "n04"))
    (folder / "train/n04").mkdir()
    with pytest.raises(ValueError, match=r"n04 holds no images of its class"):
        list_images(folder / "train", (*CLASSES, "n04"))


@pytest.mark.parametrize(
    ("name", "listing"),
    [
        ("val.txt", "b.JPEG 2\na.JPEG 0\n"),
        ("val.txt", "b.JPEG n03\na.JPEG n01\n"),
        (
            "LOC_val_solution.csv",
            "ImageId,PredictionString\nb,n03 85 1 499 272 n03 1 2 3 4 \na,n01 1 1 2 2 \n",
        ),
    ],
)
def test_a_flat_folder_with_a_listing(tmp_path: Path, name: str, listing: str) -> None:
    for file in ("a", "b"):
        picture(tmp_path / f"val/{file}.JPEG", (0, 0, 0))
    (tmp_path / name).write_text(listing)
    files = list_flat(tmp_path / "val", tmp_path / name, CLASSES)
    assert files.paths == ["a.JPEG", "b.JPEG"]
    assert files.labels == [0, 2]


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ("a.JPEG 0\nb.JPEG 3\n", "val.txt, line 2: b.JPEG has the class '3', there are 3 classes"),
        ("a.JPEG 0\nb.JPEG n09\n", "val.txt, line 2: b.JPEG has the class 'n09'"),
        ("a.JPEG 0\nb.JPEG -1\n", "val.txt, line 2: b.JPEG has the class '-1'"),
        ("a.JPEG 0\nc.JPEG 1\n", "val.txt does not name b.JPEG"),
        ("a.JPEG 0\n", "val.txt names 1 images, .*val has 2"),
        ("a.JPEG 0\nb.JPEG\n", "val.txt, line 2: not a file's name and its class"),
    ],
)
def test_a_listing_that_does_not_fit(tmp_path: Path, listing: str, message: str) -> None:
    for file in ("a", "b"):
        picture(tmp_path / f"val/{file}.JPEG", (0, 0, 0))
    (tmp_path / "val.txt").write_text(listing)
    with pytest.raises(ValueError, match=message):
        list_flat(tmp_path / "val", tmp_path / "val.txt", CLASSES)


def test_decoding_on_the_fly(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path, dict.fromkeys(CLASSES, 2))
    files = list_images(folder / "train", CLASSES)
    images, labels = next(iter(DataLoader(Decoded(files, 8), batch_size=6)))
    assert images.shape == (6, 3, 8, 8)
    assert images.dtype == torch.uint8
    assert images[:, :2, 0, 0].tolist() == [[label, number] for label in range(3) for number in range(2)]
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
