"""One place of a crowd of ConvNet children (`image_crowd.py`), and what all places read.

A slot's tensors stay where they are from child to child: a new one is put into them. What a step does is what
`Learner.step` (`image_learner.py`) does, written so that it can be captured: which step it is, and all that follows
from it, is read from tensors on the device.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from autodropout.attach import RateSchedule, attach
from autodropout.attach.schedule import Shape
from autodropout.data import Labelled, Splits
from autodropout.layers import Baseline
from autodropout.patterns.read_back import mend_compiler
from autodropout.spaces import Policy
from autodropout.training.augment import Augment, Mix
from autodropout.training.ema import checked_decay, share
from autodropout.training.feed import fits, resident
from autodropout.training.flat import Flat, FlatAverage, follow
from autodropout.training.graphed import Lane, Work, at
from autodropout.training.noise import Noise, noise_at
from autodropout.training.order import Order
from autodropout.training.run import Regularizer, Run

if TYPE_CHECKING:
    from autodropout.training.images import ImageTraining

LEAD = 256  # steps whose images are chosen ahead: so often the host has to make permutations
JUDGED = 200  # images at a time
ROOM = 2**14  # rows that a table has at least, so that slots serve trainings of many lengths
ANY_RATE = 0.5  # at which a baseline is captured: at 0 it would not act, then or ever
AS_IT_IS = nn.Identity()  # how images are seen that are augmented already


class TooLarge(ValueError):
    """The images do not fit the GPU."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all slots read. Tables have a row for each step, and some more (`room`)."""

    train: Labelled
    held_out: dict[str, Labelled]  # "validation", and "test" once it was asked for
    view: Callable[[Tensor], Tensor]  # of training images; see `aside`
    aside: bool  # whether images are augmented before `loss` is called, while masks are made, or in `loss`
    look: Augment  # of one to be judged by
    nothing: Policy | None  # a policy that drops nothing; None: models are bare
    loss: Callable[[nn.Module, Mix, Callable[[Tensor], Tensor], Tensor, Tensor], Tensor]  # of a batch
    noise: Callable[[Tensor, Tensor], Tensor]  # what masks are drawn from, of a child's seed and a step
    follow: Callable[[Tensor, Tensor, Tensor], None]  # of a moving average
    learning_rates: Tensor  # (rows,), set by `schedule`
    average_shares: Tensor  # (rows,)

    def schedule(self, training: "ImageTraining") -> None:
        """Let learning rates be those of a training of this length. Nobody must be reading them."""
        factor = training.schedule.factors(training.steps)
        rates = [training.optimizer.lr * factor(step) for step in range(training.steps)]
        self.learning_rates[: training.steps].copy_(torch.tensor(rates))
        if self.learning_rates.is_cuda:
            torch.cuda.current_stream(self.learning_rates.device).synchronize()  # slots have streams of their own


def room(steps: int) -> int:
    """How many rows tables have for a training of so many steps: those of all lengths in between can use them."""
    return max(ROOM, 1 << (steps - 1).bit_length())


def shared_by(training: "ImageTraining", run: Run, dropping: bool) -> Shared:
    where, splits = run.where, training.load()
    if not isinstance(splits, Splits):
        raise ValueError("only supervised trainings train several networks at once")
    if not len(splits.validation):
        raise ValueError("there are no validation images to judge children by")
    train, validation = (held(getattr(splits, part), training, where) for part in ("train", "validation"))
    rows = room(training.steps)
    decay = 0.0 if training.average is None else checked_decay(training.average)
    shares = [share(decay, step) for step in range(rows)]
    # To crop and to resize large images takes longer than to make a policy's masks. In a network for small ones it is
    # a few kernels, which are best compiled with the rest.
    aside = dropping and training.resizes
    view = training.pictures.view(training.augmentation, training.resolution).to(where)
    space = training.space() if dropping else None
    if run.compile:
        mend_compiler()
    shared = Shared(
        train=train,
        held_out={"validation": validation},
        view=torch.compile(view) if aside and run.compile else view,
        aside=aside,
        look=training.look(training.resolution).to(where),
        nothing=None if space is None else space.decode((0,) * len(space.tokens)),
        loss=torch.compile(training.loss) if run.compile else training.loss,
        noise=torch.compile(noise_at) if run.compile else noise_at,
        follow=torch.compile(follow) if run.compile else follow,
        learning_rates=torch.zeros(rows, device=where),
        average_shares=torch.tensor(shares, device=where),
    )
    shared.schedule(training)
    return shared


def held(images: Labelled, training: "ImageTraining", where: torch.device) -> Labelled:
    """Images on the device, for all children of a training."""
    if not fits(images.images, where):
        raise TooLarge(f"the images of {training.pictures.name} do not fit the GPU, which children share them on")
    return resident(images, where)


class Slot:
    """A place for one child after the other: its tensors stay where they are.

    Its children are under policies, which are tokens, or all under one baseline, whose rate alone may change.
    """

    def __init__(self, training: "ImageTraining", run: Run, shared: Shared, baseline: Baseline | None = None) -> None:
        self._training, self._run, self._shared, self._baseline = training, run, shared, baseline
        where = run.where
        self.lane = Lane(where)
        with self.lane.active():
            self.model = training.build().to(where)
            if where.type == "cuda":
                self.model.to(memory_format=torch.channels_last)
            _uncount(self.model)
            example = shared.look(shared.train.images[:1])  # (1, C, H, W)
            self.on = None
            if baseline is not None:
                self.on = attach(self.model, baseline, rate=ANY_RATE, example=example)
            elif shared.nothing is not None:
                self.on = attach(self.model, shared.nothing, rate=0.0, example=example, live=True)
            self._mix = training.mixing(self.model, example)
            self._noise = Noise(self.model, 0, where)
            if self.on is not None and self.on.live:
                self.on.draw_together()
            self._flat = Flat(self.model, half=run.precision == "bfloat16")  # attaching ran the model, in float32
            self._lr = torch.zeros((), device=where)
            self._optimizer = training.optimizer.over(nn.ParameterList(self._flat.masters), self._lr)
            self._average = None if training.average is None else FlatAverage(self._flat.values, shared.follow)
            self._step = torch.zeros(1, dtype=torch.int64, device=where)  # how many are done
            self._order = torch.zeros(LEAD, training.batch, dtype=torch.int64, device=where)  # of the steps ahead
            self._losses = torch.zeros(len(shared.learning_rates), device=where)  # of each step
            varying = self.on is not None and training.rates != "constant"
            # Of the whole policy, each step; in float64, so that a site's share of it is rounded once.
            self._drop_rates = torch.zeros_like(self._losses, dtype=torch.float64) if varying else None
            self._judged = torch.zeros(1, dtype=torch.int64, device=where)  # batches
            self._counts = torch.zeros(2, dtype=torch.int64, device=where)  # right answers; logits not finite
        self._images: Order | None = None
        self._steps = training.steps  # of the child
        self.replay_step = self._train
        self._replay_judging: dict[str, Work] = {}

    def prepare(self) -> None:
        """Compile and capture; leaves rubbish in every tensor."""
        self.replay_step = self.lane.capture(self._train)
        self.prepare_judging("validation")

    @torch.no_grad()
    def begin(self, regularizer: Regularizer, rate: float, seed: int, steps: int) -> None:
        """Be the child of this seed under this policy, or this slot's baseline, before the first of its steps."""
        with self.lane.active():
            first = _first_weights(self._training, seed)
            for name, value in (self.model.state_dict() | self._flat.named).items():
                value.copy_(first[name])
            for state in self._optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()
            if self._average is not None:
                self._average.restart()
            if self.on is not None:
                if isinstance(regularizer, Baseline):
                    assert regularizer == self._baseline
                else:
                    assert self._baseline is None
                    assert self._shared.nothing is not None
                    self.on.set_policy(regularizer or self._shared.nothing)
                self.on.set_rate(rate)
            if self._drop_rates is not None:
                course = _course(self._training.rates, rate, steps)
                self._drop_rates[:steps].copy_(torch.tensor(course, dtype=torch.float64))
            self._noise.seed.fill_(seed)
            for counter in (self._step, self._losses):
                counter.zero_()
        self.lane.seed(seed)
        self._steps = steps
        self._images = Order(len(self._shared.train), self._training.batch, seed)

    def choose_images(self, step: int) -> None:
        """Send the indices of the images of `LEAD` steps from this one on, or of those that are left."""
        assert self._images is not None
        last = min(step + LEAD, self._steps)
        rows = torch.stack([self._images(later) for later in range(step, last)])  # (steps, batch)
        with self.lane.active():
            rows = rows.pin_memory() if self._order.is_cuda else rows
            self._order[: len(rows)].copy_(rows, non_blocking=True)

    def losses(self) -> Tensor:
        """Of the steps that are done, (steps,); waits for them."""
        with self.lane.active():
            return self._losses[: int(self._step)].to("cpu", copy=True)

    def prepare_judging(self, part: str) -> None:
        """Capture that, too; the weights stay as they are."""
        if part not in self._replay_judging:
            self._replay_judging[part] = self.lane.capture(partial(self._judge, part))

    def judge(self, part: str) -> None:
        """Start to judge the child as it is now, by its averaged weights where there are some."""
        with self.lane.active(), nullcontext() if self._average is None else self._average.applied():
            self._judged.zero_()
            self._counts.zero_()
            for _ in range(math.ceil(len(self._shared.held_out[part]) / JUDGED)):
                self._replay_judging[part]()

    def judgement(self, part: str) -> float:
        """What `judge` found; waits for it."""
        with self.lane.active():
            broken = self._counts[1] + (~self._losses.isfinite()).sum()
            right, not_finite = torch.stack((self._counts[0], broken)).tolist()
        return math.nan if not_finite else right / len(self._shared.held_out[part])

    def _train(self) -> None:
        """One step. All of it is captured."""
        shared, now = self._shared, self._step
        self.model.train()
        chosen = at(self._order, now % LEAD)  # (batch,)
        images, labels = shared.train.images[chosen], shared.train.labels[chosen]
        self._noise.now.copy_(shared.noise(self._noise.seed, now).squeeze(0))
        for group in self._optimizer.param_groups:
            group["lr"].copy_(at(shared.learning_rates, now))
        if self._drop_rates is not None:
            self._set_drop_rates(at(self._drop_rates, now))
        self._flat.refresh()
        self.model.zero_grad()
        with self._run.autocast():
            view = shared.view
            if shared.aside:
                ahead = self.on if self.on is not None and self.on.live else None
                if ahead is not None:
                    with self.lane.aside():
                        ahead.draw_ahead(len(labels))
                images, view = shared.view(images), AS_IT_IS
                if ahead is not None:
                    self.lane.join()
            loss = shared.loss(self.model, self._mix, view, images, labels)
        loss.backward()
        self._flat.take_gradients()
        self._optimizer.step()
        if self._average is not None:
            self._average.follow(at(shared.average_shares, now))
        self._losses.index_copy_(0, now, loss.detach().float().view(1))
        now.add_(1)

    def _set_drop_rates(self, rate: Tensor) -> None:
        assert self.on is not None
        for bound in self.on.sites:
            if bound.drop is not None:  # a baseline leaves some sites alone
                torch.mul(rate, bound.share, out=bound.drop.rate)

    @torch.no_grad()
    def _judge(self, part: str) -> None:
        """One batch of the images of a part; the last may reach beyond them."""
        held_out = self._shared.held_out[part]
        rows = self._judged * JUDGED + torch.arange(JUDGED, device=self._judged.device)  # (JUDGED,)
        real = rows < len(held_out)
        rows = rows.clamp(max=len(held_out) - 1)
        self.model.eval()
        self._flat.refresh()
        with self._run.autocast():
            logits: Tensor = self.model(self._shared.look(held_out.images[rows]))  # (JUDGED, classes)
        right = (logits.argmax(1) == held_out.labels[rows]) & real
        broken = ~logits.isfinite().all(1) & real
        self._counts.add_(torch.stack((right.sum(), broken.sum())))
        self._judged.add_(1)


def _uncount(model: nn.Module) -> None:
    """Let normalizations not count their batches: a launch for each of them, and only a mean over all batches reads it.

    A child in a crowd gives its reward back and never its state, where the count would be missed.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.momentum is not None:
            module.num_batches_tracked = None


def _first_weights(training: "ImageTraining", seed: int) -> dict[str, Tensor]:
    """Those that `fit` starts with. The generators are left as they were."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which seeds the GPUs too
        return dict(training.build().state_dict())


class _Rates:
    """What a rate schedule sets, noted."""

    def __init__(self) -> None:
        self.noted: list[float] = []

    def set_rate(self, rate: float) -> None:
        self.noted.append(rate)


def _course(shape: Shape, rate: float, steps: int) -> list[float]:
    """The drop rate of each step."""
    rates = _Rates()
    schedule = RateSchedule(rates, shape, rate=rate, steps=steps)
    for _ in range(1, steps):
        schedule.step()
    return rates.noted
