"""All masks of a training step as a function of (seed of the child, step, site).

    noise = Noise(model, seed)
    for step in ...:
        noise.at(step)
        loss = model(...)

A drop takes its seed from the device's default generator unless it is told where else (`layers/drop.py`). Here all
drops of a model, those attached and those of its own, share one seed tensor that is set anew before each step. So a
child draws the same masks whether it is trained alone or beside others, whatever else draws numbers in the process,
and a resumed training needs no generator's state for them.
"""

import torch
from torch import Tensor, nn

from autodropout.attach import attached
from autodropout.layers import Drop, DropLayer
from autodropout.patterns.draws import mix

LEAD = 1024  # steps whose noise is computed at once: step by step it would be some thirty launches each


class Noise:
    """The seed of a model's masks, step after step."""

    def __init__(self, model: nn.Module, seed: int, device: torch.device) -> None:
        """For a model that has its policy attached, on its device."""
        self.seed = torch.tensor(seed, dtype=torch.int64, device=device)
        self.now = torch.zeros_like(self.seed)
        self._ahead: tuple[int, Tensor] | None = None  # a step, and the noise of this and later ones, (LEAD,)
        for drop in drops(model):
            drop.noise = self.now

    def at(self, step: int) -> None:
        """The masks drawn from now on are those of this step."""
        first = step - step % LEAD
        if self._ahead is None or self._ahead[0] != first:
            steps = torch.arange(first, first + LEAD, device=self.seed.device)
            self._ahead = first, noise_at(self.seed, steps)
        self.now.copy_(self._ahead[1][step - first])


def noise_at(seed: Tensor, step: Tensor | int) -> Tensor:
    """What the masks of a step are drawn from, a value for each seed."""
    return mix(mix(seed) + step)


def drops(model: nn.Module) -> list[Drop]:
    """Every drop of a model: the attached ones, which may be none, then those of its own layers."""
    on = attached(model)
    placed = [bound.drop for bound in on.sites if bound.drop is not None] if on is not None else []
    return placed + [layer.drop for layer in model.modules() if isinstance(layer, DropLayer)]
