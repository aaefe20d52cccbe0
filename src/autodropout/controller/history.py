"""Scored token strings as tensors and back, for the proposers whose state is what they have seen."""

from collections.abc import Sequence

import torch
from torch import Tensor

Seen = tuple[tuple[int, ...], float]
"""A token string and its value."""


def to_tensors(seen: Sequence[Seen], positions: int) -> dict[str, Tensor]:
    tokens = torch.tensor([tokens for tokens, _ in seen], dtype=torch.int16, device="cpu")
    values = torch.tensor([value for _, value in seen], dtype=torch.float64, device="cpu")
    return {"tokens": tokens.view(-1, positions), "values": values}


def from_tensors(tensors: dict[str, Tensor]) -> list[Seen]:
    strings, values = tensors["tokens"].tolist(), tensors["values"].tolist()
    return [(tuple(string), value) for string, value in zip(strings, values, strict=True)]
