"""FixRes (Touvron et al., "Fixing the train-test resolution discrepancy", NeurIPS 2019): test larger than you train.

A random crop shows objects larger than a test image does. So a network is trained at a lower resolution than it is
tested at. Then its last normalization and its classifier learn, for a little while, from training images as they are
shown in testing: resized and cropped in the middle, at the higher resolution. Nothing else changes, nothing is dropped.

Departure: for their best figures, which the paper cites, the authors also flipped, shifted and recoloured those images.
"""

from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from autodropout.data import Labelled
from autodropout.models import head
from autodropout.training.augment import Augment
from autodropout.training.feed import Feed
from autodropout.training.judging import accuracies
from autodropout.training.loop import Loop, State
from autodropout.training.run import Run
from autodropout.training.schedules import cosine


@dataclass(frozen=True, slots=True, kw_only=True)
class FixRes:
    """How the last layers are fine-tuned."""

    resolution: int  # of the test
    steps: int
    batch: int
    lr: float = 1e-3  # at first; 0 after the last step

    def __post_init__(self) -> None:
        for name in ("resolution", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"FixRes: {name} must be at least 1, got {getattr(self, name)}")


def fine_tune(
    how: FixRes,
    model: nn.Module,
    look: Augment,
    train: Labelled,
    held_out: Labelled,
    config: dict[str, Any],
    seed: int,
    run: Run,
) -> None:
    """Fine-tune the head of a trained model, in place.

    Args:
        how: the numbers.
        model: trained, on its device, with nothing attached.
        look: how images are shown in testing, at the higher resolution.
        train, held_out: what the head learns from and is judged by.
        config: what identifies the whole experiment.
        seed: of the order of the images.
        run: its checkpoints go to a folder `fixres` in the run's own.
    """
    norm, classifier = head(model)
    model.requires_grad_(False)
    for module in (norm, classifier):
        module.requires_grad_(True)
    weights = [*norm.parameters(), *classifier.parameters()]
    optimizer = SGD(weights, how.lr, momentum=0.9)
    schedule = LambdaLR(optimizer, cosine(how.steps))
    forward = run.wrap(model)
    feed = Feed(train, how.batch, seed, run.where)
    run = replace(run, folder=None if run.folder is None else run.folder / "fixres", report=None)
    state: State = {"model": model, "optimizer": optimizer, "schedule": schedule}
    try:
        with Loop(run, how.steps, state, config) as loop:
            for step in loop:
                model.eval()
                norm.train()
                images, labels = feed(step)
                with run.autocast():
                    loss = F.cross_entropy(forward(look(images)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                loop.add(fixres_loss=loss)
                if loop.due(how.steps):
                    loop.evaluated(accuracies(model, look, held_out, classifier.out_features, run)["accuracy"])
    finally:
        feed.close()
        model.requires_grad_(True)
