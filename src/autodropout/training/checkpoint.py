"""The checkpoints of a training: files that appear whole or not at all, two of them in its folder.

    save(path, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7})
    state = load(path)

A crash at any instant and a full disk leave the checkpoints before it. Where the newest is damaged all the same, the
other is taken, and it is said. What a file is made of: `packing`.
"""

import logging
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autodropout.spaces.atomic import write_atomically
from autodropout.training.packing import CheckpointError, pack, unpack

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

KEPT = 2  # the newest, and one to fall back to
_FILE = re.compile(r"checkpoint-(\d{9})\.safetensors")

log = logging.getLogger("autodropout")


def save(path: Path, state: Any) -> None:
    """Write `state` to `path`, at once or not at all.

    Raises:
        ValueError: there is something in it that cannot be saved; it says where.
        OSError: it could not be written; what was at `path` before is still there.
    """
    write_atomically(path, *pack(state))


def load(path: Path) -> Any:
    """What `save` was given; tensors are on the CPU.

    Raises:
        CheckpointError: the file is damaged, or was not written by `save`.
    """
    return unpack(path.read_bytes(), path)


class Checkpoints:
    """The checkpoints of one training, in its folder; inside a `with` no other process can have them.

    Raises:
        BlockingIOError: another process has them.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = _lock(folder / ".lock")
        for path in folder.glob(".autodropout-*.tmp"):  # left by a process that was killed
            path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def save(self, step: int, state: Any) -> None:
        """Write the checkpoint of a step; then remove all but the last two, and any that pretend to come later."""
        save(self._path(step), state)
        steps = self._steps()
        kept = [number for number in steps if number <= step][-KEPT:]
        for number in steps:
            if number not in kept:
                self._path(number).unlink(missing_ok=True)

    def newest(self) -> Any | None:
        """The newest state that is whole, None where there never was one.

        Raises:
            CheckpointError: there are some, and all are damaged.
        """
        problems: list[str] = []
        for step in reversed(self._steps()):
            try:
                state = load(self._path(step))
            except CheckpointError as problem:
                problems.append(str(problem))
                continue
            if problems:
                log.warning("%s; going on from the one before, of step %d", "; ".join(problems), step)
            return state
        if problems:
            raise CheckpointError(f"{'; '.join(problems)}. Remove what is there to start from the beginning")
        return None

    def _path(self, step: int) -> Path:
        return self._folder / f"checkpoint-{step:09d}.safetensors"

    def _steps(self) -> list[int]:
        found = (_FILE.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)


def _lock(path: Path) -> int:
    """A file that only this process has locked, as long as it lives and does not close it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if fcntl is not None:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(handle)
            raise BlockingIOError(f"another process is training in {path.parent}") from None
    return handle


__all__ = ["CheckpointError", "Checkpoints", "load", "save"]
