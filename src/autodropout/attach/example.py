"""The example that a model is run on to look at it: what may be given, and what is said where the model refuses it.

A model complains in its own words, which name neither the example nor that there was one; so they are said before.
"""

import inspect
import sys
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from autodropout.layers.given import told

_WHOLE = "what is one argument as a whole goes into a tuple: example=(it,)"
_SAID_AGAIN = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, AssertionError, NotImplementedError)
"""Exceptions that can be raised anew with a message of ours. Others keep theirs, and get ours as a note."""
_FROM_NUMPY = "torch.from_numpy(it) makes a tensor of it"
_MANY = 6


def call(model: nn.Module, example: Any) -> Any:
    """The model on an example: a tensor, a tuple of positional arguments, or a mapping of keyword arguments."""
    if not isinstance(example, Tensor | tuple | Mapping):
        given = "a tensor, a tuple of positional arguments or a dict of keyword arguments"
        hint = _FROM_NUMPY if _is_array(example) else _WHOLE
        raise ValueError(f"an example is {given}, got {_kind(example)}; {hint}")
    try:
        if isinstance(example, Mapping):
            return model(**example)
        return model(example) if isinstance(example, Tensor) else model(*example)
    except Exception as problem:
        said = f"the model could not run on the example ({described(example)})"
        hint = f"an example is a batch, as the model's forward takes it{_parameters(model)}"
        if _is_shape(example):
            hint = f"an example is an input, not its shape: torch.randn{example}, say"
        elif any(map(_is_array, _arguments(example))):
            hint += f"; {_FROM_NUMPY}"
        elif isinstance(example, Mapping):
            hint += f"; a dict is passed by its names, and {_WHOLE}"
        if type(problem) not in _SAID_AGAIN:
            problem.add_note(f"{said}; {hint}")
            raise
        raise type(problem)(f"{said}: {str(problem).strip()}\n  {hint}") from problem


def described(example: Any) -> str:
    """Kinds and shapes of an example, on one line."""
    if isinstance(example, Mapping):
        return f"keyword arguments: {_some([f'{name}={_kind(value)}' for name, value in example.items()])}"
    if isinstance(example, tuple):
        return f"positional arguments: {_some([_kind(value) for value in example])}"
    return _kind(example)


def _some(texts: list[str]) -> str:
    return ", ".join([*texts[:_MANY], *(["..."] if len(texts) > _MANY else [])]) or "none"


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if _is_array(value):
        return f"NumPy array of shape {value.shape}"  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        return f"a dict of {_some(list(map(str, value)))}"
    return type(value).__name__ if isinstance(value, list | tuple) else told(value)


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")  # whoever has an array has imported it
    return numpy is not None and isinstance(value, numpy.ndarray)


def _arguments(example: Any) -> Collection[object]:
    if isinstance(example, Mapping):
        return example.values()
    return example if isinstance(example, tuple) else (example,)


def _is_shape(example: Any) -> bool:
    return isinstance(example, tuple) and len(example) > 1 and all(type(part) is int for part in example)


def _parameters(model: nn.Module) -> str:
    """The arguments of a model's forward, where it tells them."""
    marks: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    try:
        known = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # C code, say
        return ""
    return f": ({_some([marks.get(one.kind, '') + one.name for one in known])})"
