"""Nested state as the bytes of one safetensors file that says itself whether it is whole; no pickle.

A state is made of dicts, lists, tuples, tensors, numbers, strings and None; types come back as they were (an
OrderedDict as a dict). Its tensors are the file's tensors. All else is JSON, the one entry of the file's metadata, with
the SHA-256 of the whole file, taken with 64 zeros in the digest's place: safetensors itself would load a flipped bit
without a word.
"""

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

FORMAT = 1
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8)
DTYPES = frozenset((*_FLOATS, *_INTEGERS, torch.bool))
_NOTE = "autodropout"
_ZEROS = b"0" * 64


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, or not one of ours, or another training's."""


def pack(state: Any) -> Sequence[bytes | memoryview]:
    """The bytes for `unpack`, in a few parts, since they may be many.

    Raises:
        ValueError: there is something in it that cannot be saved; it says where.
    """
    packer = _Packer()
    packed = packer.pack(state, "state")
    note = {"sha256": _ZEROS.decode(), "format": FORMAT, "state": packed, "strides": packer.strides}
    blank = safetensors.torch.save(packer.tensors, {_NOTE: json.dumps(note, allow_nan=False)})
    position = blank.index(_ZEROS)  # the note comes first in the header, the digest first in the note
    content = memoryview(blank)
    return content[:position], _digest(content, position), content[position + len(_ZEROS) :]


def unpack(content: bytes, name: object) -> Any:
    """What `pack` was given; tensors are on the CPU. `name` says in errors whose bytes they are.

    Raises:
        CheckpointError: they are damaged, or `pack` did not make them.
    """
    try:
        length = int.from_bytes(content[:8], "little")
        note = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_NOTE])
        digest: bytes = note["sha256"].encode("ascii")
        written, packed, strides = note["format"], note["state"], note["strides"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{name} is not a checkpoint, or damaged in its header") from None
    if _digest(memoryview(content), content.find(digest)) != digest:
        raise CheckpointError(f"{name} is damaged: its checksum does not fit")
    if written != FORMAT:
        raise CheckpointError(f"{name} has format {written}, this autodropout reads {FORMAT}")
    tensors = safetensors.torch.load(content)
    return _unpack(packed, tensors | {name: _strided(tensors[name], stride) for name, stride in strides.items()})


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
    raise CheckpointError(f"no checkpoint has {packed!r} in it")


def _is_dense(tensor: Tensor) -> bool:
    """Whether it is a permutation of a contiguous tensor: no gaps, no overlaps."""
    outermost_first = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(outermost_first).is_contiguous()


def _strided(tensor: Tensor, stride: list[int]) -> Tensor:
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def _digest(content: memoryview, position: int) -> bytes:
    """SHA-256, in hexadecimal, of a file's content with zeros where its digest is."""
    result = hashlib.sha256(content[:position])
    result.update(_ZEROS)
    result.update(content[position + len(_ZEROS) :])
    return result.hexdigest().encode("ascii")
