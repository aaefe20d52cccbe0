"""Train an image classifier with few labels and many images (paper, "Semi-supervised Image Classification").

    training = SemiSupervisedTraining(method=Uda(), ratio=7, ...)       # the rest as for `ImageTraining`

    labelled images   --weak view----------------> logits --> cross-entropy (UDA: may be annealed)
    unlabelled images --weak view, strong view --> logits --> consistency, where the model is confident

All three go through the model as one batch, as in the authors' code of both methods, so normalizations see all of them
and masks of a policy fall on all of them, the views that give the targets included.

Departures from UDA's and FixMatch's code:
1. The labelled images are not among the unlabelled ones (they are 8% of CIFAR-10's there).
2. FixMatch's strong view is its RandAugment; its authors also tried CTAugment.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autodropout.data import Labelled, SemiSplits
from autodropout.training.consistency import (
    Annealing,
    annealed_cross_entropy,
    fixmatch_loss,
    signal_threshold,
    uda_loss,
)
from autodropout.training.image_learner import Bench, Objective
from autodropout.training.images import ImageTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class Uda:
    """Unsupervised Data Augmentation (Xie et al. 2020); the values of its code for CIFAR-10."""

    temperature: float = 0.4
    threshold: float = 0.8
    weight: float = 1.0
    annealing: Annealing = "none"

    def __post_init__(self) -> None:
        _check(self.threshold, self.weight)
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        signal_threshold(self.annealing, 0.0, 2)  # says what is wrong with it


@dataclass(frozen=True, slots=True, kw_only=True)
class FixMatch:
    """FixMatch (Sohn et al. 2020); the values of its paper for CIFAR-10."""

    threshold: float = 0.95
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check(self.threshold, self.weight)


@dataclass(frozen=True, kw_only=True)
class SemiSupervisedTraining(ImageTraining):
    """One semi-supervised training, whole. `pictures.train` labels are shown; `augmentation` is the weak view."""

    method: Uda | FixMatch
    ratio: int  # unlabelled images to one labelled, in a step
    strong: str = "uda"  # the strong view; one of `augment.AUGMENTATIONS`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio < 1:
            raise ValueError(f"ratio must be at least 1, got {self.ratio}")
        if self.mix != "none" or self.label_smoothing:
            raise ValueError("labels are neither mixed nor smoothed in a semi-supervised training")
        self.pictures.view(self.strong, self.resolution)

    @property
    def crowds(self) -> bool:
        return False

    def load(self) -> SemiSplits:
        return self.pictures.load_semi()

    def objective(self, splits: Any, bench: Bench) -> Objective:
        """Cross-entropy on the labelled images, consistency on the others."""
        batch, classes = self.batch, self.pictures.kind.classes
        labelled = bench.feed(splits.train, batch)
        nobody_knows = torch.zeros(len(splits.unlabelled), dtype=torch.int64)
        unlabelled = bench.feed(Labelled(splits.unlabelled, nobody_knows), self.ratio * batch)
        weak = bench.view(self.pictures.view(self.augmentation, self.resolution))
        strong = bench.view(self.pictures.view(self.strong, self.resolution))

        def answers(forward: nn.Module, images: Tensor, others: Tensor) -> Tensor:
            """Logits for the labelled images, then for the two views of the others."""
            logits: Tensor = forward(torch.cat((weak(images), weak(others), strong(others))))
            return logits.float()

        answers = bench.run.compiled(answers)

        def losses(forward: nn.Module, step: int) -> dict[str, Tensor]:
            images, labels = labelled(step)
            others, _ = unlabelled(step)
            logits = answers(forward, images, others)
            known, target, answer = logits.split((len(images), len(others), len(others)))
            supervised = self._supervised(known, labels, step / self.steps, classes)
            consistency, confident = self._consistency(target, answer)
            return {
                "train_loss": supervised + self.method.weight * consistency,
                "supervised_loss": supervised,
                "consistency_loss": consistency,
                "confident": confident,
            }

        return losses

    def smoke(self) -> Self:
        return replace(super().smoke(), ratio=2)

    def _supervised(self, logits: Tensor, labels: Tensor, progress: float, classes: int) -> Tensor:
        if isinstance(self.method, Uda) and self.method.annealing != "none":
            threshold = signal_threshold(self.method.annealing, progress, classes)
            return annealed_cross_entropy(logits, labels, threshold)
        return F.cross_entropy(logits, labels)

    def _consistency(self, weak: Tensor, strong: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.method, Uda):
            return uda_loss(weak, strong, self.method.temperature, self.method.threshold)
        return fixmatch_loss(weak, strong, self.method.threshold)


def _check(threshold: float, weight: float) -> None:
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold must lie in [0, 1], got {threshold}")
    if weight < 0:
        raise ValueError(f"weight must not be negative, got {weight}")
