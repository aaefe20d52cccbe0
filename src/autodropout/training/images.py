"""Train a classifier on images in memory: SGD with Nesterov momentum, the learning rate along half a cosine.

    score = train(model, data.train, data.validation, Sgd(epochs=20, batch=25, lr=0.1), seed=0)

Everything random follows from the seed: the same model, data and seed give the same score on the same machine. The
order of the images has a generator of its own, so that children of one seed see one order under every policy, however
many numbers its masks draw.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autodropout.data import Labelled

EVALUATION_BATCH = 200


@dataclass(frozen=True, slots=True)
class Sgd:
    """How to train."""

    epochs: int
    batch: int
    lr: float  # at the start; 0 after the last step
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("batch", self.batch)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")


def train(
    model: nn.Module,
    examples: Labelled,
    held_out: Labelled,
    how: Sgd,
    *,
    seed: int,
    report: Callable[[int, float], None] | None = None,
    report_every: int = 1,
) -> float:
    """Train `model`, in place, and return its accuracy on `held_out`, in [0, 1].

    Args:
        model: images (N, C, H, W) to logits (N, classes); on the device of the images.
        examples: what it learns from.
        held_out: what it is judged by.
        how: the schedule.
        seed: of the order of the images, and of torch's default generator, from which masks are drawn.
        report: called as `report(epoch, accuracy on held_out)`, the first epoch being 1.
        report_every: epochs from one report to the next; the last epoch is always reported.

    Raises:
        FloatingPointError: the loss or a logit was not finite.
    """
    if report_every < 1:
        raise ValueError(f"report_every must be at least 1, got {report_every}")
    order = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(
        model.parameters(), how.lr, momentum=how.momentum, weight_decay=how.weight_decay, nesterov=how.momentum > 0
    )
    steps = how.epochs * -(-len(examples) // how.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    score = 0.0
    for epoch in range(1, how.epochs + 1):
        model.train()
        total = torch.zeros((), device=examples.images.device)
        for chosen in torch.randperm(len(examples), generator=order).split(how.batch):
            loss = F.cross_entropy(model(examples.images[chosen]), examples.labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()  # once an epoch is often enough to look: what is not finite stays so
        if not total.isfinite():
            raise FloatingPointError(f"the loss is {total.item()} in epoch {epoch}")
        last = epoch == how.epochs
        if last or (report is not None and epoch % report_every == 0):
            score = accuracy(model, held_out)
            if report is not None:
                report(epoch, score)
    return score


@torch.no_grad()
def accuracy(model: nn.Module, examples: Labelled) -> float:
    """The share of images that are classified right, in eval mode, in which the model is left."""
    model.eval()
    logits = torch.cat([_finite(model(images)) for images in examples.images.split(EVALUATION_BATCH)])  # (N, classes)
    right = logits.argmax(1) == examples.labels  # (N,)
    return int(right.sum()) / len(examples)


def _finite(logits: Tensor) -> Tensor:
    """A network of NaNs would still name a class for each image."""
    if not logits.isfinite().all():
        raise FloatingPointError("the model's logits are not finite")
    return logits
