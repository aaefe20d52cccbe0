"""What a user gave, as checks and error messages see it."""

import math
import os
from numbers import Integral, Real
from typing import TypeGuard

from torch import Tensor

from autodropout.spaces.records import show


def told(value: object) -> str:
    """A short value as it is, anything else by its type: the `repr` of a module or a policy fills a screen."""
    if value is None or isinstance(value, str | int | float | list | tuple | os.PathLike):
        return show(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def is_whole(value: object) -> bool:
    """Whether this is an integer, NumPy's included; a bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[Real]:
    """Whether this is a real number, NumPy's included; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def checked_rate(rate: object) -> float:
    """A rate as Python's own number; NumPy's, of a grid or a schedule, are welcome."""
    number = float(rate) if is_number(rate) else math.nan
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"rate must be a number in [0, 1], got {rate!r}")
    return number


def need_map(h: Tensor, who: str) -> None:
    if h.dim() != 4:
        raise ValueError(f"{who} needs a tensor of shape (N, C, H, W), got {tuple(h.shape)}")
