"""Files and folders that are whole or absent: made under another name, flushed to the disk, then renamed."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to; what is there at the end becomes `path`. After an error nothing is left of it."""
    partial = _beside(path)
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
        flush_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill, which becomes `path`; that must not exist, or be empty. After an error it is gone."""
    partial = _beside(path)
    partial.mkdir()
    try:
        yield partial
        os.replace(partial, path)
        flush_folder(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Waits until no other process is at it. The system frees the lock of a process that dies."""
    if os.name != "posix":
        yield
        return
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def flush_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    if os.name == "posix":  # elsewhere a folder cannot be opened, and needs no flush
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _beside(path: Path) -> Path:
    """The same folder, for renaming must not cross disks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.parent / f".{path.name}-{secrets.token_hex(4)}.tmp"
