"""Reading policies: `load` a file or a bundled policy by name, `parse` a text.

A policy file may come from anyone, so reading is strict. Whatever is wrong with the content raises `PolicyError`,
whose message lists every problem with its JSON path, the offending value and what was allowed; nothing is loaded by
half. Trouble with the file itself (missing, no permission) stays the `OSError` it is.
"""

import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autodropout.policies import bundled
from autodropout.spaces.policy import MAX_BYTES, SCHEMA, ConvPolicy, Policy, TransformerPolicy
from autodropout.spaces.records import Where, listed, problems_of, show, where

_MODELS: dict[str, type[ConvPolicy | TransformerPolicy]] = {"convnet": ConvPolicy, "transformer": TransformerPolicy}

MAX_DEPTH = 16
"""How deep we look into a file. A policy is 5 levels deep."""


class PolicyError(ValueError):
    """A policy that cannot be read: `source` names the file, `problems` says everything that is wrong with it."""

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        super().__init__(source, problems)
        self.source = source
        self.problems = problems

    def __str__(self) -> str:
        return listed(self.source, self.problems)


def load(path_or_name: str | os.PathLike[str]) -> Policy:
    """The policy in a file or, for a string with neither a separator nor `.json`, the bundled one of that name."""
    if isinstance(path_or_name, str) and _is_name(path_or_name):
        return _load_bundled(path_or_name)
    if not isinstance(path_or_name, str | os.PathLike):
        raise TypeError(f"ad.load wants the name of a bundled policy or the path of a file, got {show(path_or_name)}")
    path = Path(path_or_name)
    try:
        status = path.stat()
    except FileNotFoundError as error:
        names = ", ".join(bundled()) or "none yet"
        said = f"No such file (policies that come with the package, by name: {names})"
        raise FileNotFoundError(error.errno, said, str(path)) from None
    if not stat.S_ISREG(status.st_mode):
        raise PolicyError(str(path), ("this is not a regular file",))
    if status.st_size > MAX_BYTES:
        raise PolicyError(str(path), (f"the file has {status.st_size} bytes, more than {MAX_BYTES}",))
    with path.open("rb") as file:
        return _parse_bytes(file.read(MAX_BYTES + 1), str(path))  # bounded again: the file may have grown meanwhile


def parse(text: str, source: str = "policy") -> Policy:
    """The policy of a JSON text; `source` names it in error messages."""
    if len(text) > MAX_BYTES:
        raise PolicyError(source, (f"the text is longer than {MAX_BYTES} bytes",))
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise PolicyError(source, ("not a policy: the JSON is nested too deeply",)) from None
    except ValueError as error:  # a syntax error, or an integer longer than Python converts
        raise PolicyError(source, (f"not valid JSON: {error}",)) from None
    problems = dict(_refused_by_json(data))
    policy = _validate(data, problems)
    if policy is None or problems:
        raise PolicyError(source, tuple(f"{where(path)}{problem}" for path, problem in problems.items()))
    return policy


def _is_name(text: str) -> bool:
    separators = {"/", os.sep, os.altsep}
    return not text.endswith(".json") and not any(separator in text for separator in separators if separator)


def _load_bundled(name: str) -> Policy:
    found = bundled()
    if name not in found:
        names = ", ".join(found) or "there are none yet"
        raise PolicyError(name, (f"no bundled policy has this name ({names}); for a file, write ./{name}",))
    return _parse_bytes(found[name].read_bytes(), name)


def _parse_bytes(content: bytes, source: str) -> Policy:
    try:
        return parse(content.decode("utf-8"), source)
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start}"
        raise PolicyError(source, (problem,)) from None


class _Repeating(dict[str, Any]):
    """A JSON object in which some keys stood more than once."""

    repeated: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    repeating = _Repeating(plain)
    repeating.repeated = tuple(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
    return repeating


def _refused_by_json(data: Any) -> Iterator[tuple[Where, str]]:
    """What Python's parser lets pass and we do not, by path: duplicated keys, numbers not finite, deep nesting."""
    pending: list[tuple[Where, Any]] = [((), data)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            yield path, f"{value} is not a finite number"
        if isinstance(value, _Repeating):
            for key in value.repeated:
                yield (*path, key), "this key stands more than once"
        if len(path) > MAX_DEPTH:
            yield path, f"nested more than {MAX_DEPTH} levels deep"
        elif isinstance(value, dict | list):
            items = list(value.items() if isinstance(value, dict) else enumerate(value))
            pending.extend(((*path, key), item) for key, item in reversed(items))  # popped in the order of the file


def _validate(data: Any, problems: dict[Where, str]) -> Policy | None:
    """The policy, or None with each problem added under its path, unless a first one stands there."""
    if not isinstance(data, dict):
        problems.setdefault((), f"a policy is a JSON object, this is {show(data)}")
        return None
    if (schema := data.get("schema")) != SCHEMA or type(schema) is not int:
        said = f"this file is schema {show(schema)}" if "schema" in data else "missing"
        problems.setdefault(("schema",), f"{said}; this autodropout reads {SCHEMA}")
        return None
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _MODELS:
        said = f"{show(kind)} is not" if "kind" in data else "missing; it must be"
        problems.setdefault(("kind",), f"{said} one of {', '.join(map(repr, _MODELS))}")
        return None
    model = _MODELS[kind]
    try:
        return model.model_validate({key: value for key, value in data.items() if key != "schema"})
    except ValidationError as invalid:
        for path, problem in problems_of(invalid, model, others=("schema",)).items():
            problems.setdefault(path, problem)
    return None
