"""Checkpoints: nested state as one safetensors file that says itself whether it is whole; no pickle.

    save(path, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7})
    state = load(path)

A state is made of dicts, lists, tuples, tensors, numbers, strings and None; types come back as they were (an
OrderedDict as a dict). Its tensors are the file's tensors. All else is JSON, the one entry of the file's metadata, with
the SHA-256 of the whole file, taken with 64 zeros in the digest's place: safetensors itself would load a flipped bit
without a word.

`Checkpoints` keeps the last two of a training. A file appears whole or not at all, so a crash at any instant and a full
disk leave the ones before it; where the newest is damaged all the same, the other is taken.
"""

import hashlib
import json
import logging
import math
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import safetensors.torch
import torch
from torch import Tensor, nn

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
KEPT = 2  # the newest, and one to fall back to
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8)
DTYPES = frozenset((*_FLOATS, *_INTEGERS, torch.bool))
_NOTE = "autodropout"
_ZEROS = b"0" * 64
_FILE = re.compile(r"checkpoint-(\d{9})\.safetensors")

log = logging.getLogger("autodropout")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, or not one of ours, or another training's."""


def save(path: Path, state: Any) -> None:
    """Write `state` to `path`, at once or not at all.

    Raises:
        ValueError: there is something in it that cannot be saved; it says where.
        OSError: it could not be written; what was at `path` before is still there.
    """
    packer = _Packer()
    packed = packer.pack(state, "state")
    note = {"sha256": _ZEROS.decode(), "format": FORMAT, "state": packed, "strides": packer.strides}
    blank = safetensors.torch.save(packer.tensors, {_NOTE: json.dumps(note, allow_nan=False)})
    position = blank.index(_ZEROS)  # the note comes first in the header, the digest first in the note
    content = memoryview(blank)  # which cuts without copying: it may be large
    sealed = (content[:position], _digest(content, position), content[position + len(_ZEROS) :])
    partial = path.with_name(
        f".{path.name}-{secrets.token_hex(8)}.tmp"
    )  # the same folder: renaming must not cross disks
    try:
        with partial.open("xb") as file:
            file.writelines(sealed)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _flush_folder(path.parent)


def load(path: Path) -> Any:
    """What `save` was given; tensors are on the CPU.

    Raises:
        CheckpointError: the file is damaged, or was not written by `save`.
    """
    content = path.read_bytes()
    try:
        length = int.from_bytes(content[:8], "little")
        note = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_NOTE])
        digest: bytes = note["sha256"].encode("ascii")
        written, packed, strides = note["format"], note["state"], note["strides"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{path} is not a checkpoint, or damaged in its header") from None
    if _digest(memoryview(content), content.find(digest)) != digest:
        raise CheckpointError(f"{path} is damaged: its checksum does not fit")
    if written != FORMAT:
        raise CheckpointError(f"{path} has format {written}, this autodropout reads {FORMAT}")
    tensors = safetensors.torch.load(content)
    return _unpack(packed, tensors | {name: _strided(tensors[name], stride) for name, stride in strides.items()})


class Checkpoints:
    """The checkpoints of one training, in its folder; inside a `with` no other process can have them.

    Raises:
        BlockingIOError: another process has them.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = _lock(folder / ".lock")
        for path in folder.glob(".checkpoint-*.tmp"):  # left by a process that was killed
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


class _Packer:
    """Turns a state into JSON data and named tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.strides: dict[str, list[int]] = {}  # of those that are dense, but not in their own order: channels_last
        self._names: dict[tuple[object, ...], str] = {}  # what is tied is written once, and comes back tied
        self._memory: set[int] = set()

    def pack(self, value: Any, place: str) -> Any:
        """Scalars and lists stand for themselves; all else is an object with one key that says what it is."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind is list:
            return [self.pack(item, f"{place}/{number}") for number, item in enumerate(value)]
        if kind is tuple:
            return {"tuple": [self.pack(item, f"{place}/{number}") for number, item in enumerate(value)]}
        if kind in (dict, OrderedDict):  # pairs, since JSON's keys are strings and an optimizer's integers
            return {"dict": [[self._key(key, place), self.pack(item, f"{place}/{key}")] for key, item in value.items()]}
        if kind in (Tensor, nn.Parameter, nn.Buffer):
            return self._tensor(value, place)
        raise ValueError(f"a checkpoint cannot hold {kind.__name__}, at {place}: {value!r}")

    def _key(self, key: object, place: str) -> Any:
        if key is None or type(key) in (bool, int, str, float):
            return self.pack(key, place)
        raise ValueError(f"a checkpoint cannot hold a dict with the key {key!r}, at {place}")

    def _tensor(self, value: Tensor, place: str) -> dict[str, Any]:
        if value.layout != torch.strided or value.is_meta or value.dtype not in DTYPES:
            raise ValueError(
                f"a checkpoint cannot hold a {value.layout} tensor of {value.dtype} on {value.device}, at {place}"
            )
        view = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if value.numel() and view in self._names:
            return {"tensor": self._names[view]}
        name = place if place not in self.tensors else f"{place}#{len(self.tensors)}"
        tensor = value.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        self.tensors[name] = tensor.clone() if memory in self._memory else tensor  # safetensors refuses overlaps
        self._memory.add(memory)
        self._names[view] = name
        if not value.is_contiguous() and _is_dense(value):
            self.strides[name] = list(value.stride())
        return {"tensor": name}


def _unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(packed, list):
        return [_unpack(item, tensors) for item in packed]
    if not isinstance(packed, dict):
        return packed
    match packed:
        case {"float": text}:
            return float(text)
        case {"tuple": items}:
            return tuple(_unpack(item, tensors) for item in items)
        case {"dict": pairs}:
            return {_unpack(key, tensors): _unpack(item, tensors) for key, item in pairs}
        case {"tensor": name}:
            return tensors[name]
    raise AssertionError(f"no packer wrote {packed!r}")


def _is_dense(tensor: Tensor) -> bool:
    """Whether it is a permutation of a contiguous tensor: no gaps, no overlaps."""
    outermost_first = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(outermost_first).is_contiguous()


def _strided(tensor: Tensor, stride: list[int]) -> Tensor:
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


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


def _digest(content: memoryview, position: int) -> bytes:
    """SHA-256, in hexadecimal, of a file's content with zeros where its digest is."""
    result = hashlib.sha256(content[:position])
    result.update(_ZEROS)
    result.update(content[position + len(_ZEROS) :])
    return result.hexdigest().encode("ascii")


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened, and needs no flush
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)  # the rename itself must survive a power cut
        finally:
            os.close(handle)
