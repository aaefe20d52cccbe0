"""Training on mixtures of two images: Mixup and CutMix, and what all ways of mixing share.

    logits, target = mix(model, images, labels)       # images (N, C, H, W), labels (N,) -> (N, classes) twice
    loss = F.cross_entropy(logits, target)

A mix draws partners for a batch by a random permutation and a weight from Beta(alpha, alpha), one for the batch as in
the papers or one per image, all on the device. Targets are probabilities; each row sums to 1. Those that mix inside the
network are in `hidden.py`, and `mixing(name, ...)` in `registry.py` makes any of them.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class Mix(Protocol):
    """A way of training on mixtures; "none" is one."""

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The model's logits for mixed images, and the probabilities they should give: (N, classes) both."""
        ...

    def remove(self) -> None:
        """Take off the model what was put on it."""
        ...


@dataclass(frozen=True, slots=True)
class NoMix:
    """Images as they are."""

    classes: int

    def __post_init__(self) -> None:
        check(self.classes)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return model(images), one_hot(labels, self.classes)

    def remove(self) -> None:
        """Nothing was put on the model."""


@dataclass(frozen=True, slots=True)
class Mixup:
    """Weighted means of two images and their labels (Zhang et al., ICLR 2018).

    The paper: alpha 1 on CIFAR, 0.2 for ResNet-50 on ImageNet.
    """

    classes: int
    alpha: float = 1.0
    probability: float = 1.0  # of mixing a batch at all
    per_sample: bool = False

    def __post_init__(self) -> None:
        check(self.classes, self.alpha, self.probability)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        order, keep = draw(images, self.alpha, self.probability, self.per_sample)
        target = blend(one_hot(labels, self.classes), order, keep)
        return model(blend(images, order, keep)), target

    def remove(self) -> None:
        """Nothing was put on the model."""


@dataclass(frozen=True, slots=True)
class CutMix:
    """A box of each image replaced by its partner's, labels weighted by area (Yun et al., ICCV 2019).

    The box has a share 1 - weight of the area before it is clipped at the borders; labels count what is left of it.
    The authors: alpha 1, with probability 0.5 on CIFAR and 1 on ImageNet.
    """

    classes: int
    alpha: float = 1.0
    probability: float = 0.5
    per_sample: bool = False

    def __post_init__(self) -> None:
        check(self.classes, self.alpha, self.probability)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        order, keep = draw(images, self.alpha, self.probability, self.per_sample)
        inside = self._boxes(images, keep)  # (N or 1, H, W)
        mixed = torch.where(inside.unsqueeze(1), images[order], images)
        kept = 1 - inside.float().mean((1, 2))  # (N or 1,)
        target = blend(one_hot(labels, self.classes), order, kept)
        return model(mixed), target

    def _boxes(self, images: Tensor, keep: Tensor) -> Tensor:
        sides = (1 - keep).sqrt()
        within = []
        for length in images.shape[2:]:
            half = ((sides * length).long() // 2)[:, None]
            centre = torch.randint(length, (len(keep), 1), device=images.device)
            cells = torch.arange(length, device=images.device)
            within.append((cells >= centre - half) & (cells < centre + half))  # (N or 1, length)
        return within[0].unsqueeze(2) & within[1].unsqueeze(1)

    def remove(self) -> None:
        """Nothing was put on the model."""


def check(classes: int, alpha: float = 1.0, probability: float = 1.0) -> None:
    """Refuse what no mix can be made with."""
    if classes < 2:
        raise ValueError(f"classes must be at least 2, got {classes}")
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha must be positive, got {alpha}")
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must lie in [0, 1], got {probability}")


def draw(images: Tensor, alpha: float, probability: float, per_sample: bool) -> tuple[Tensor, Tensor]:
    """A partner for each image, (N,), and how much of itself it keeps: float32, (N,) or (1,)."""
    order = partners(images)
    count = len(images) if per_sample else 1
    keep = beta(alpha, count, images.device)
    if probability < 1:
        mixed = torch.rand(count, device=images.device) < probability
        keep = torch.where(mixed, keep, 1)
    return order, keep


def partners(images: Tensor) -> Tensor:
    """A random permutation of the batch: int64, (N,)."""
    return torch.rand(len(images), device=images.device).argsort()


def beta(alpha: float, count: int, device: torch.device) -> Tensor:
    """Draws from Beta(alpha, alpha), as a share of two gamma draws: float32, (count,)."""
    if alpha == 1:
        return torch.rand(count, device=device)
    gammas = torch._standard_gamma(torch.full((2, count), float(alpha), device=device))
    return gammas[0] / gammas.sum(0)


def blend(values: Tensor, order: Tensor, keep: Tensor) -> Tensor:
    """`keep * values + (1 - keep) * values[order]`; exactly `values` where `keep` is 1. keep: (N,), (1,) or ()."""
    keep = keep.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return values + (1 - keep) * (values[order] - values)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """float32, (N, classes). Unlike torch's it never looks at the labels on the host."""
    return (labels.unsqueeze(1) == torch.arange(classes, device=labels.device)).float()
