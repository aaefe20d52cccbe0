"""Decoded images in one file that is mapped into memory: decoding is paid once, so two CPU cores can feed a GPU.

The file holds uint8 pixels, image after image, and nothing else; beside it stands how many of them are valid. It only
grows, and a reader maps what is valid, so:

    a search needs the first 85,000 images of ImageNet    decodes 85,000
    a later run needs the first 128,000                   decodes 43,000 more
    a run killed while decoding                           continues where the count stands

Its name contains the size and a digest of the files in their order, each with its name, length and time of change:
other files or another order, another store.
Two processes that want the same images take turns: the second waits, and finds them.
"""

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from autodropout.data.atomic import alone, whole_file
from autodropout.data.image_files import ImageFiles, decode
from autodropout.data.progress import bar

CHUNK = 512  # images between two flushes to the disk


def stored(files: ImageFiles, count: int, size: int, folder: Path, name: str) -> Tensor:
    """The first `count` images as uint8 (count, 3, size, size), mapped; decodes those that are not in the store yet.

    Args:
        folder, name: where the store is, and how its name begins.

    Raises:
        ValueError: an image or the store is damaged.
        OSError: the disk has no room for so many.
    """
    assert 0 < count <= len(files)
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    pixels = folder / f"{name}.{size}px.{_digest(files)[:12]}.uint8"
    each = 3 * size * size
    if _valid(pixels) < count:
        with alone(pixels):
            _extend(pixels, files, count, size)
    _check_length(pixels, count * each)
    flat = torch.from_file(str(pixels), shared=False, size=count * each, dtype=torch.uint8)
    return flat.view(count, 3, size, size)


def _digest(files: ImageFiles) -> str:
    """Of what tells that files are still the same, without reading them: a million take seconds, not minutes."""
    total = hashlib.sha256()
    for path in files.paths:
        status = os.stat(f"{files.folder}/{path}")  # a Path for each would take longer than the question
        total.update(f"{path}\n{status.st_size} {status.st_mtime_ns}\n".encode())
    return total.hexdigest()


def _extend(pixels: Path, files: ImageFiles, count: int, size: int) -> None:
    done, each = _valid(pixels), 3 * size * size  # again: another process may have been at it
    if done:
        _check_length(pixels, done * each)  # or what is missing would be filled with black
    needed, free = (count - done) * each, shutil.disk_usage(pixels.parent).free
    if needed > free:
        room = f"{needed / 1e9:.1f} GB in {pixels.parent}, where {free / 1e9:.1f} are free"
        raise OSError(f"{count:,} images of {size}x{size} need {room}")
    with pixels.open("ab") as file, ThreadPoolExecutor(os.cpu_count()) as pool, bar("decoding", count, done) as advance:
        file.truncate(done * each)  # what a killed run left after its last count
        while done < count:
            paths = files.paths[done : min(done + CHUNK, count)]
            for image in pool.map(lambda path: decode(files.folder / path, size), paths):  # Pillow frees the lock
                file.write(image.tobytes())
                advance(1)
            file.flush()
            os.fsync(file.fileno())
            done += len(paths)
            with whole_file(_counter(pixels)) as partial:
                partial.write_text(json.dumps({"images": done, "size": size}))


def _check_length(pixels: Path, least: int) -> None:
    if pixels.stat().st_size < least:
        raise ValueError(f"{pixels} is truncated: delete it and {_counter(pixels).name}, and it is made again")


def _valid(pixels: Path) -> int:
    """How many images the store holds."""
    counter = _counter(pixels)
    if not counter.exists() or not pixels.exists():
        return 0
    try:
        return int(json.loads(counter.read_text())["images"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{counter} is damaged: delete it, and the images are decoded again") from None


def _counter(pixels: Path) -> Path:
    return pixels.with_suffix(".json")
