"""The losses of learning from unlabelled images: UDA (Xie et al., 2020) and FixMatch (Sohn et al., 2020).

Both compare what a model says of two views of one image, a weakly and a strongly augmented one. The weak view gives the
target and no gradient; an image counts only where the model is confident of it.

    UDA        KL(softmax(weak / temperature) || softmax(strong))     where max softmax(weak) >  threshold
    FixMatch   cross-entropy(strong, argmax(weak))                    where max softmax(weak) >= threshold

The mean is over all unlabelled images of the batch, counted or not, as in the authors' code. UDA may also leave out
labelled images that the model knows too well too early (training signal annealing).
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Annealing = Literal["none", "linear", "log", "exp"]
STEEPNESS = 5.0  # of the log and exp schedules, as in UDA


def signal_threshold(annealing: Annealing, progress: float, classes: int) -> float:
    """Above which probability of its true class a labelled image is left out; rises from 1/classes to 1.

    Args:
        annealing: "linear"; "log" rises early, for data that is hard to overfit; "exp" late, for few labels; "none": 1.
        progress: the share of the training that is done, in [0, 1].
        classes: how many.
    """
    match annealing:
        case "linear":
            risen = progress
        case "log":
            risen = 1.0 - math.exp(-STEEPNESS * progress)
        case "exp":
            risen = math.exp(STEEPNESS * (progress - 1.0))
        case "none":
            risen = 1.0
        case _:
            raise ValueError(f"annealing must be none, linear, log or exp, got {annealing!r}")
    return 1.0 / classes + risen * (1.0 - 1.0 / classes)


def annealed_cross_entropy(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """The mean cross-entropy of the images whose true class has at most probability `threshold`; 0 where none has."""
    losses = F.cross_entropy(logits, labels, reduction="none")  # (N,)
    kept = losses.detach() >= -math.log(threshold)  # probability and loss say the same; (N,)
    return torch.where(kept, losses, 0.0).sum() / kept.sum().clamp(min=1)


def uda_loss(weak: Tensor, strong: Tensor, temperature: float, threshold: float) -> tuple[Tensor, Tensor]:
    """The consistency loss, and the share of images that counted.

    Args:
        weak, strong: logits of the two views, (N, classes).
        temperature: below 1 sharpens the target.
        threshold: of the largest probability, before sharpening.
    """
    weak = weak.detach()
    target = F.log_softmax(weak / temperature, dim=1)  # (N, classes)
    divergence = F.kl_div(F.log_softmax(strong, dim=1), target, reduction="none", log_target=True).sum(1)  # (N,)
    confident = F.softmax(weak, dim=1).amax(1) > threshold  # (N,)
    return torch.where(confident, divergence, 0.0).mean(), confident.float().mean()


def fixmatch_loss(weak: Tensor, strong: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The cross-entropy of the strong view to the weak view's class, and the share of images that counted."""
    confidence, pseudo_labels = F.softmax(weak.detach(), dim=1).max(1)  # (N,), (N,)
    confident = confidence >= threshold
    losses = F.cross_entropy(strong, pseudo_labels, reduction="none")  # (N,)
    return torch.where(confident, losses, 0.0).mean(), confident.float().mean()
