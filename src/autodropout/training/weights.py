"""Weights beside those that train: their running mean, and those of the best evaluation; and the final ones, as a file.

Both can be put on the model for a while, in place, so that compiled code goes on as it is:

    with average.applied():
        reward = evaluate(model)

Both belong into a `Loop`'s state, so that a resumed training has them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_swa_multi_avg_fn

from autodropout.spaces.atomic import write_atomically


class Average:
    """The mean of a model's parameters over the steps from `start` on (paper, appendix "Language Model").

    Every step counts the same, as in Polyak and Juditsky's average. Buffers are left alone.
    """

    def __init__(self, model: nn.Module, start: int) -> None:
        if start < 0:
            raise ValueError(f"start must be a step, got {start}")
        self.start = start
        self.count = 0
        self._parameters = dict(model.named_parameters())
        self._means: dict[str, Tensor] = {}
        self._add = get_swa_multi_avg_fn()

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the parameters after optimizer step `step`; nothing happens before `start`."""
        if step < self.start:
            return
        if not self._means:
            self._means = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        else:
            self._add(tuple(self._means.values()), tuple(self._parameters.values()), self.count)
        self.count += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged parameters inside; before the first update it keeps its own."""
        with _exchanged(self._parameters, self._means):
            yield

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "means": dict(self._means)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]
        self._means = _like(self._parameters, state["means"])


class Best:
    """The parameters and buffers that a model had at its best evaluation."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept: dict[str, Tensor] = {}

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the model as it is now."""
        self._kept = {name: value.detach().clone() for name, value in self._model.state_dict().items()}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model is as it was at the last `keep` inside; where there was none, it is left alone."""
        with _exchanged(self._model.state_dict(), self._kept):
            yield

    def state_dict(self) -> dict[str, Any]:
        return dict(self._kept)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept = _like(self._model.state_dict(), state)


def export(path: Path, model: nn.Module) -> None:
    """Write the weights as a plain safetensors file, for `safetensors.torch.load_model`; at once or not at all.

    Tied weights are there once, the other names in the metadata, as that function wants it.
    """
    names: dict[tuple[object, ...], str] = {}
    tensors: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, value in model.state_dict().items():
        first = names.setdefault((value.data_ptr(), value.shape, value.stride()) if value.numel() else (name,), name)
        if first == name:
            tensors[name] = value.detach().cpu().contiguous()
        else:
            tied[name] = first
    write_atomically(path, safetensors.torch.save(tensors, {"format": "pt", **tied}))


@contextmanager
def _exchanged(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Each target has the value of its name inside, and its own again afterwards, to the bit."""
    with torch.no_grad():
        before = {name: targets[name].detach().clone() for name in values}
        for name, value in values.items():
            targets[name].copy_(value)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in before.items():
                targets[name].copy_(value)


def _like(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values, each in the memory format and on the device of its target."""
    if values and values.keys() != targets.keys():
        raise ValueError(f"the saved weights are those of another model: {sorted(values.keys() ^ targets.keys())}")
    return {name: torch.empty_like(targets[name]).copy_(value) for name, value in values.items()}
