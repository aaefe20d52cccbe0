"""How a classifier's weights change: the optimizer and the course of its learning rate, as records.

optimizer = Sgd(lr=0.1).over(model)
schedule = LambdaLR(optimizer, Cosine().factors(steps))
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import SGD, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR

from autodropout.training.schedules import cosine, warmup_cosine


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """Stochastic gradient descent with Nesterov momentum."""

    lr: float
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay_all: bool = True  # False: no decay of normalizations and biases

    def __post_init__(self) -> None:
        _check(self.lr, self.momentum, self.weight_decay)

    def over(self, model: nn.Module, rate: Tensor | None = None) -> Optimizer:
        """The optimizer. With a tensor for the learning rate, on the model's device, its steps can be captured."""
        groups = _groups(model, self.weight_decay, self.decay_all)
        lr = self.lr if rate is None else rate
        return SGD(groups, lr, momentum=self.momentum, nesterov=self.momentum > 0, fused=_on_cuda(model) or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsProp:
    """RMSProp with momentum, EfficientNet's values. TensorFlow adds its 0.001 under the root, torch to the root."""

    lr: float
    momentum: float = 0.9
    memory: float = 0.9  # of the squares
    eps: float = 0.001**0.5
    weight_decay: float = 1e-5
    decay_all: bool = False

    def __post_init__(self) -> None:
        _check(self.lr, self.momentum, self.weight_decay)

    def over(self, model: nn.Module, rate: Tensor | None = None) -> Optimizer:
        """As `Sgd.over`."""
        groups = _groups(model, self.weight_decay, self.decay_all)
        lr, captured = (self.lr, False) if rate is None else (rate, _on_cuda(model))
        return RMSprop(groups, lr, alpha=self.memory, eps=self.eps, momentum=self.momentum, capturable=captured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine:
    """Half a cosine, from the full rate to zero, after a linear warm-up of `warmup` steps."""

    warmup: int = 0

    def factors(self, steps: int) -> Callable[[int], float]:
        return warmup_cosine(self.warmup, steps) if self.warmup else cosine(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCosine:
    """cos(7/16 pi t) for t from 0 to 1: UDA's and FixMatch's, which ends at a fifth of the rate."""

    warmup: int = 0

    def factors(self, steps: int) -> Callable[[int], float]:
        span = max(1, steps - self.warmup)
        return _warmed(self.warmup, lambda step: math.cos(7 / 16 * math.pi * min(1.0, (step - self.warmup) / span)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stairs:
    """`factor` times less at each of the steps `at`: ResNet's."""

    at: tuple[int, ...]
    factor: float = 0.1
    warmup: int = 0

    def __post_init__(self) -> None:
        if list(self.at) != sorted(set(self.at)):
            raise ValueError(f"the steps at which the rate falls must rise, got {self.at}")

    def factors(self, steps: int) -> Callable[[int], float]:
        return _warmed(self.warmup, lambda step: self.factor ** bisect_right(self.at, step))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """`factor` times less every `every` steps, all at once: EfficientNet's."""

    every: int
    factor: float = 0.97
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")

    def factors(self, steps: int) -> Callable[[int], float]:
        return _warmed(self.warmup, lambda step: self.factor ** (step // self.every))


Descent = Sgd | RmsProp
Schedule = Cosine | SlowCosine | Stairs | Exponential


def scheduled(optimizer: Optimizer, schedule: Schedule, steps: int) -> LambdaLR:
    """The scheduler to step after each of `steps` steps."""
    return LambdaLR(optimizer, schedule.factors(steps))


def _warmed(warmup: int, factor: Callable[[int], float]) -> Callable[[int], float]:
    return lambda step: (step + 1) / warmup if step < warmup else factor(step)


def _on_cuda(model: nn.Module) -> bool:
    return all(weight.is_cuda for weight in model.parameters())


def _groups(model: nn.Module, weight_decay: float, decay_all: bool) -> list[dict[str, object]]:
    """What has one dimension is a bias, or a gain or shift of a normalization."""
    spared = [weight for weight in model.parameters() if weight.dim() <= 1 and not decay_all]
    decayed = [weight for weight in model.parameters() if weight.dim() > 1 or decay_all]
    groups: list[dict[str, object]] = [{"params": decayed, "weight_decay": weight_decay}]
    return [*groups, {"params": spared, "weight_decay": 0.0}] if spared else groups


def _check(lr: float, momentum: float, weight_decay: float) -> None:
    if not lr > 0:
        raise ValueError(f"lr must be positive, got {lr}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
    if weight_decay < 0:
        raise ValueError(f"weight_decay must not be negative, got {weight_decay}")
