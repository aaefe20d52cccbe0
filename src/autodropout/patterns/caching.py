"""Small tables that a mask needs again and again."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def cache_on_cpu(function: Callable[P, R]) -> Callable[P, R]:
    """`lru_cache` for functions whose last argument is a device, on CPUs alone.

    What is allocated while a CUDA graph is captured belongs to the graph's memory pool and must not outlive it.
    """
    cached = lru_cache(maxsize=256)(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        device = args[-1]
        assert isinstance(device, torch.device)
        return cached(*args, **kwargs) if device.type == "cpu" else function(*args, **kwargs)  # type: ignore[arg-type]

    return call
