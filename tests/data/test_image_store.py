"""Decoded images in one mapped file: decoded once, continued after a kill, never half of one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from image_tools import CLASSES, folder_of_images

from autodropout.data import image_store
from autodropout.data.image_files import Decoded, ImageFiles, list_images
from autodropout.data.image_store import stored


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    return list_images(folder_of_images(tmp_path / "set", dict.fromkeys(CLASSES, 5)) / "train", CLASSES)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were decoded."""
    seen: list[str] = []
    real = image_store.decode
    monkeypatch.setattr(image_store, "decode", lambda path, size: (seen.append(path.name), real(path, size))[1])
    monkeypatch.setattr(image_store, "CHUNK", 4)
    return seen


def test_the_same_pixels_as_on_the_fly(files: ImageFiles, tmp_path: Path) -> None:
    images = stored(files, 15, 8, tmp_path, "train")
    assert images.dtype == torch.uint8
    assert images.equal(torch.stack([image for image, _ in Decoded(files, 8)]))


def test_it_grows_and_nothing_is_decoded_twice(files: ImageFiles, tmp_path: Path, decoded: list[str]) -> None:
    assert stored(files, 6, 8, tmp_path, "train").shape == (6, 3, 8, 8)
    assert len(decoded) == 6
    grown = stored(files, 15, 8, tmp_path, "train")
    assert len(decoded) == 15
    assert stored(files, 3, 8, tmp_path, "train").equal(grown[:3])
    assert len(decoded) == 15
    stored(files, 2, 9, tmp_path, "train")  # another size
    stored(files.in_order([*range(14, -1, -1)]), 2, 8, tmp_path, "train")  # another order
    assert len(decoded) == 19


@pytest.mark.parametrize("same_time", [False, True])
def test_a_file_that_was_replaced_is_decoded(
    files: ImageFiles, tmp_path: Path, decoded: list[str], same_time: bool
) -> None:
    stored(files, 15, 8, tmp_path, "train")
    changed, other = files.folder / files.paths[0], files.folder / files.paths[-1]
    status = changed.stat()
    changed.write_bytes(other.read_bytes() + (b"longer" if same_time else b""))
    later = status.st_mtime_ns + (0 if same_time else 1_000_000)
    os.utime(changed, ns=(status.st_atime_ns, later))
    images = stored(files, 15, 8, tmp_path, "train")
    assert images[0].equal(images[-1])
    assert images.equal(torch.stack([image for image, _ in Decoded(files, 8)]))
    assert len(decoded) == 30
    stored(list_images(files.folder, CLASSES), 15, 8, tmp_path, "train")
    assert len(decoded) == 30, "nothing has changed since"


def test_a_reader_cannot_change_the_store(files: ImageFiles, tmp_path: Path) -> None:
    stored(files, 15, 8, tmp_path, "train").zero_()
    assert stored(files, 15, 8, tmp_path, "train").any()


def test_after_an_error_it_continues(files: ImageFiles, tmp_path: Path, decoded: list[str]) -> None:
    bad = files.folder / files.paths[9]
    whole, status = bad.read_bytes(), bad.stat()
    bad.write_bytes(whole[:40].ljust(len(whole), b"\0"))
    os.utime(bad, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk that cannot be read for a while
    with pytest.raises(ValueError, match=r"n02/004.JPEG cannot be read"):
        stored(files, 15, 8, tmp_path, "train")
    bad.write_bytes(whole)
    os.utime(bad, ns=(status.st_atime_ns, status.st_mtime_ns))
    before = len(decoded)
    images = stored(files, 15, 8, tmp_path, "train")
    assert len(decoded) - before == 15 - 8  # two chunks of four were safe
    assert images.equal(torch.stack([image for image, _ in Decoded(files, 8)]))


def test_bytes_after_the_last_count_are_not_believed(files: ImageFiles, tmp_path: Path, decoded: list[str]) -> None:
    """A run killed while writing leaves a part of an image."""
    stored(files, 4, 8, tmp_path, "train")
    (pixels,) = tmp_path.glob("*.uint8")
    with pixels.open("ab") as file:
        file.write(b"\xff" * 100)
    assert stored(files, 15, 8, tmp_path, "train").equal(torch.stack([image for image, _ in Decoded(files, 8)]))
    assert len(decoded) == 15


def test_a_killed_process(tmp_path: Path) -> None:
    """SIGKILL while decoding: the next one continues, and every pixel is right."""
    folder = folder_of_images(tmp_path / "set", dict.fromkeys(CLASSES, 60))
    code = (
        "import itertools, sys, time, pathlib\n"
        "from autodropout.data import image_store\n"
        "from autodropout.data.image_files import list_images\n"
        "folder, real, turn = pathlib.Path(sys.argv[1]), image_store.decode, itertools.count()\n"
        "image_store.CHUNK = 5\n"
        "image_store.decode = lambda path, size: (time.sleep(0.02 if next(turn) < 90 else 600), real(path, size))[1]\n"
        "image_store.stored(list_images(folder / 'train', ('n01', 'n02', 'n03')), 180, 8, folder, 'train')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    deadline = time.monotonic() + 100
    while not list(folder.glob("*.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (counter,) = folder.glob("*.json")
    assert 0 < json.loads(counter.read_text())["images"] < 180
    files = list_images(folder / "train", CLASSES)
    assert stored(files, 180, 8, folder, "train").equal(torch.stack([image for image, _ in Decoded(files, 8)]))


def test_a_truncated_or_damaged_store_says_so(files: ImageFiles, tmp_path: Path) -> None:
    stored(files, 4, 8, tmp_path, "train")
    (pixels,) = tmp_path.glob("*.uint8")
    (counter,) = tmp_path.glob("*.json")
    pixels.write_bytes(pixels.read_bytes()[:-1])
    for count in (4, 15):  # what is there, or more: what is missing is not filled up
        with pytest.raises(ValueError, match=r"uint8 is truncated: delete it"):
            stored(files, count, 8, tmp_path, "train")
    counter.write_text("{}")
    with pytest.raises(ValueError, match=r"json is damaged: delete it"):
        stored(files, 4, 8, tmp_path, "train")


def test_a_disk_without_room(files: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 100))
    with pytest.raises(OSError, match=r"15 images of 8x8 need 0.0 GB in .*, where 0.0 are free"):
        stored(files, 15, 8, tmp_path, "train")
    assert not list(tmp_path.glob("*.uint8"))


def test_sizes(files: ImageFiles, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        stored(files, 2, 0, tmp_path, "train")
