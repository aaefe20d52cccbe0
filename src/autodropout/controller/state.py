"""How a proposer becomes bytes and comes back: one safetensors file with a JSON note, no pickle.

The note, the one entry of the file's metadata, says which proposer wrote it, for which space and seed, and what is not
a tensor. It also holds the SHA-256 of the whole file, taken with 64 zeros in the digest's place: safetensors itself
would load a flipped bit of a weight without a word. The same state gives the same bytes.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
from torch import Tensor

from autodropout.spaces import Space

FORMAT = 1
_NOTE = "autodropout"
_ZEROS = "0" * 64


def pack(kind: str, space: Space, seed: int, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes for `unpack`; `facts` is JSON data."""
    note = {
        "sha256": _ZEROS,  # first, so that it is the first of its kind in the file
        "format": FORMAT,
        "kind": kind,
        "space": space.to_dict(),
        "seed": seed,
        "facts": dict(facts),
    }
    blank = safetensors.torch.save(dict(tensors), {_NOTE: json.dumps(note, allow_nan=False)})
    return blank.replace(_ZEROS.encode(), hashlib.sha256(blank).hexdigest().encode(), 1)


def unpack(kind: str, space: Space, seed: int, state: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Facts and tensors that `pack` was given; ValueError for anything that it did not write, or not for us."""
    note = _verified_note(state)
    if note["format"] != FORMAT:
        raise ValueError(f"the saved proposer has format {note['format']}, this autodropout reads {FORMAT}")
    if note["kind"] != kind:
        raise ValueError(f"the saved proposer is {note['kind']!r}, not {kind!r}")
    if note["space"] != space.to_dict():
        raise ValueError(f"the saved proposer belongs to another space: {note['space']}, not {space.to_dict()}")
    if note["seed"] != seed:
        raise ValueError(f"the saved proposer belongs to a study with seed {note['seed']}, not {seed}")
    return note["facts"], safetensors.torch.load(state)


def _verified_note(state: bytes) -> dict[str, Any]:
    try:
        length = int.from_bytes(state[:8], "little")
        note = json.loads(json.loads(state[8 : 8 + length])["__metadata__"][_NOTE])
        digest = note["sha256"].encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"these {len(state)} bytes are not a saved proposer, or damaged in their header") from None
    if hashlib.sha256(state.replace(digest, _ZEROS.encode(), 1)).hexdigest().encode() != digest:
        raise ValueError(f"the saved proposer ({len(state)} bytes) is damaged: its checksum does not fit")
    assert isinstance(note, dict)
    return note
