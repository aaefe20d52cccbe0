"""A classifier under training (`images.py`): its model, and all that changes it from step to step.

    stored images --Feed--> batch --objective, of the training--> loss --> optimizer, schedule, average, drop rate

The objective is the training's own: it is made from a `Bench`, and may need more feeds and views than one.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from autodropout.attach import RateSchedule, attach
from autodropout.data import Labelled, SemiSplits, Splits
from autodropout.training.augment import Augment
from autodropout.training.descent import scheduled
from autodropout.training.distributed import seed_rank
from autodropout.training.ema import MovingAverage
from autodropout.training.feed import Feed
from autodropout.training.fixres import FixRes, fine_tune
from autodropout.training.judging import accuracies
from autodropout.training.loop import Stateful
from autodropout.training.noise import Noise
from autodropout.training.run import Regularizer, Run

if TYPE_CHECKING:
    from autodropout.training.images import ImageTraining


class Objective(Protocol):
    """What a step minimizes: `train_loss`, and beside it what is worth logging; 0-d tensors."""

    def __call__(self, forward: nn.Module, step: int) -> dict[str, Tensor]: ...


@dataclass(frozen=True, slots=True)
class Bench:
    """What an objective is made from."""

    model: nn.Module  # bare, on its device, not yet compiled
    example: Tensor  # one image as the model sees it, (1, C, H, W)
    seed: int
    run: Run
    closing: ExitStack  # for what has to be closed after the training

    def feed(self, examples: Labelled, batch: int) -> Feed:
        feed = Feed(examples, batch, self.seed, self.run.where)
        self.closing.callback(feed.close)
        return feed

    def view(self, view: Augment) -> Callable[[Tensor], Tensor]:
        """On the device. Compiled by itself only where it is not part of something larger that is."""
        view = view.to(self.run.where)
        return torch.compile(view) if self.run.compile and not self.run.whole else view


class Learner:
    """A network under training: its model and all that changes it."""

    def __init__(
        self,
        training: "ImageTraining",
        splits: Splits | SemiSplits,
        regularizer: Regularizer,
        rate: float,
        seed: int,
        run: Run,
        closing: ExitStack,
    ) -> None:
        self.training, self.run, self.seed = training, run, seed
        torch.manual_seed(seed)
        self.model = training.build().to(run.where)
        if run.where.type == "cuda":
            self.model.to(memory_format=torch.channels_last)  # what its convolutions want
        self.look = training.look(training.resolution).to(run.where)
        example = self.look(splits.train.images[:1].to(run.where))  # (1, C, H, W)
        self.on = None if regularizer is None else attach(self.model, regularizer, rate=rate, example=example)
        self.noise = Noise(self.model, seed, run.where)
        if run.whole:
            closing.callback(torch.compiler.reset)  # what is compiled here fits no other network, and holds memory
        self.objective = training.objective(splits, Bench(self.model, example, seed, run, closing))
        forward = self.model if run.whole else run.wrap(self.model)
        assert isinstance(forward, nn.Module)
        self.forward = forward
        self.optimizer = training.optimizer.over(self.model)
        self.schedule = scheduled(self.optimizer, training.schedule, training.steps)
        self.state: dict[str, Stateful | torch.Generator] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
        }
        self.average = self.rates = None
        if training.average is not None:
            self.state["average"] = self.average = MovingAverage(self.model, training.average)
        if self.on is not None and training.rates != "constant":
            self.rates = RateSchedule(self.on, training.rates, rate=rate, steps=training.steps)
            self.state["rates"] = self.rates
        seed_rank(seed)

    def step(self, step: int) -> dict[str, Tensor]:
        """One step of the optimizer; returns what the objective has to say of it."""
        if not self.model.training:  # to tell every module takes the host longer than a replay
            self.model.train()
        self.noise.at(step)
        self.optimizer.zero_grad()
        with self.run.autocast():
            losses = self.objective(self.forward, step)
        losses["train_loss"].backward()
        self.optimizer.step()
        self.schedule.step()
        if self.average is not None:
            self.average.update()
        if self.rates is not None:
            self.rates.step()
        return losses

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights it is judged by."""
        return nullcontext() if self.average is None else self.average.applied()

    def judged(self, examples: Labelled, part: str) -> dict[str, float]:
        found = accuracies(self.model, self.look, examples, self.training.pictures.kind.classes, self.run)
        return {f"{part}_{name}": value for name, value in found.items()}

    def fixed(
        self, how: FixRes, train: Labelled, held_out: Labelled, part: str, config: dict[str, Any]
    ) -> dict[str, float]:
        """FixRes: from here on, images are shown at the higher resolution, and nothing is dropped."""
        before = self.judged(held_out, f"{part}_before_fixres")
        if self.on is not None:
            self.on.detach()
        self.look = self.training.look(how.resolution).to(self.run.where)
        fine_tune(how, self.model, self.look, train, held_out, config, self.seed, self.run)
        return before | self.judged(held_out, part)
