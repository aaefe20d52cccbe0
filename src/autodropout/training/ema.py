"""An exponential moving average of a model's weights and statistics, as EfficientNet, UDA and FixMatch are judged by.

Early on the average follows faster, min(decay, (1 + t) / (10 + t)) after t updates, as TensorFlow's does when it is
told the step: an average that still remembers the random start would be judged too low in short trainings. UDA's and
FixMatch's code do not do that; over their hundreds of thousands of steps it makes no difference.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class MovingAverage:
    """Follows a model: `update()` after each step, `applied()` to judge it. Nothing of it waits for the device."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = checked_decay(decay)
        self.updates = 0
        values = dict(model.named_parameters()) | dict(model.named_buffers())
        self._followed = {name: value for name, value in values.items() if value.is_floating_point()}  # no counters
        self._averages = {name: value.detach().clone() for name, value in self._followed.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model's present weights."""
        averages = list(self._averages.values())
        way = torch._foreach_sub(list(self._followed.values()), averages)
        torch._foreach_mul_(way, share(self.decay, self.updates))
        torch._foreach_add_(averages, way)
        self.updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averages; afterwards its own weights again."""
        own = {name: value.detach().clone() for name, value in self._followed.items()}
        _copy(self._averages, self._followed)
        try:
            yield
        finally:
            _copy(own, self._followed)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "averages": dict(self._averages)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["averages"].keys() != self._averages.keys():
            raise ValueError("the saved average is one of another model")
        self.updates = state["updates"]
        _copy(state["averages"], self._averages)


def checked_decay(decay: float) -> float:
    if not 0.0 < decay < 1.0:
        raise ValueError(f"the average's decay must lie between 0 and 1, got {decay}")
    return decay


def share(decay: float, updates: int) -> float:
    """How much of the way an average goes to the weights, after so many updates."""
    return 1.0 - min(decay, (1 + updates) / (10 + updates))


@torch.no_grad()
def _copy(values: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    for name, target in targets.items():
        target.copy_(values[name])
