"""Many ConvNet children on one GPU: each one's whole step is a CUDA graph, and each has a stream of its own.

    training.fit_many(regularizers, rate, seeds, run, reports)      # the same call again is warm: see 3

    images, labels, tables of the schedules: on the device, for all
       |            |            |
     slot 0       slot 1       slot 2  ...     model, policy, optimizer, average, order of images, lane
       | one step   |            |             pick the batch, augment, forward, backward, optimizer, average, note
       v            v            v             the loss: one graph, replayed
    all slots, step after step; nothing waits for the device until the children are judged, which is a graph too

1. A small network leaves most of a large GPU idle: its kernels are short, and one stream runs one at a time. Graphs on
   parallel streams fill it. Children share nothing that they write, so they cannot disturb each other.
2. A child in a crowd is the child that `fit` trains alone: the same first weights, order of images, augmentation, masks
   and schedules follow from its seed. On the CPU the numbers are the same to the bit. Compiled code draws for itself,
   so that compiled children see other crops and mixtures than eager ones; masks are the same in both.
3. Slots stay for the next job of the same training, also of another length. Its policies are tokens copied onto the
   device, its weights, rates and schedules are set in place: nothing is compiled or captured again. Only the last
   training is kept. A baseline is code and not tokens, so it has slots of its own, which stay as well: the memory is
   that of all kinds of a process.
4. A child that diverges, or whose report ends it, is no longer replayed.

A slot takes the memory of one training: what `fit` would take, less the images. How many fit a GPU, and how many are
worth their memory, is what `benchmarks/crowd.py` measures. On the CPU the slots run one after the other.
"""

import gc
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from autodropout.layers import Baseline
from autodropout.training.children import check_crowd, goes_on, log, rates_of
from autodropout.training.image_slot import LEAD, Slot, TooLarge, held, shared_by
from autodropout.training.run import Ended, Regularizer, Report, Run

if TYPE_CHECKING:
    from autodropout.training.images import ImageTraining


LENGTH = ("steps", "evaluate_every")  # of a training: slots serve others


def fit_many(
    training: "ImageTraining",
    regularizers: Sequence[Regularizer],
    rate: float | Sequence[float],
    seeds: Sequence[int],
    run: Run,
    reports: Sequence[Report] | None,
    test_reports: Sequence[Report] | None,
) -> list[float]:
    """See `ImageTraining.fit_many`."""
    check_crowd(regularizers, seeds, run, reports, test_reports)
    rates = rates_of(rate, len(regularizers))
    if not regularizers:
        return []
    try:
        return _together(training, regularizers, rates, seeds, run, reports, test_reports)
    except TooLarge as error:
        reason = str(error)
    except BaseException:
        _warm.clear()  # whatever went wrong, it may have left slots half made
        raise
    _warm.clear()  # not in the handler, whose error keeps the crowd, and its memory
    gc.collect()
    log.warning("%s: they are trained one after the other", reason)
    run = replace(run, compile=False, test=test_reports is not None)  # it would be compiled anew for each
    alone = partial(_alone, training, run, reports, test_reports)
    return [alone(*child) for child in zip(range(len(seeds)), regularizers, rates, seeds, strict=True)]


def _together(
    training: "ImageTraining", regularizers: Sequence[Regularizer], rates: Sequence[float], seeds: Sequence[int],
    run: Run, reports: Sequence[Report] | None, test_reports: Sequence[Report] | None,
) -> list[float]:  # fmt: skip
    crowd = warm_crowd(training, run, dropping=any(regularizer is not None for regularizer in regularizers))
    if test_reports is not None:
        crowd.hold("test")
    return crowd.fit(regularizers, rates, seeds, reports, test_reports)


def prepare_many(training: "ImageTraining", regularizers: Sequence[Regularizer], run: Run) -> bool:
    """See `ImageTraining.prepare_many`."""
    dropping = any(regularizer is not None for regularizer in regularizers)
    try:
        return warm_crowd(training, run, dropping=dropping).make_room(regularizers)
    except TooLarge:
        return False
    except BaseException:
        _warm.clear()
        raise


def _kind(regularizer: Regularizer) -> Baseline | None:
    """Which slots can be its place."""
    return regularizer if isinstance(regularizer, Baseline) else None


def _alone(
    training: "ImageTraining", run: Run, reports: Sequence[Report] | None, test_reports: Sequence[Report] | None,
    number: int, regularizer: Regularizer, rate: float, seed: int,
) -> float:  # fmt: skip
    """One child of a crowd by `fit`."""

    def report(step: int, reward: float) -> None:
        if not goes_on(reports, number, step, reward):
            raise Ended

    try:
        scores = training.fit(regularizer, rate, seed, replace(run, report=report))
    except (Ended, FloatingPointError):
        return math.nan
    told = test_reports is None or goes_on(test_reports, number, training.steps, scores.metrics["test_accuracy"])
    return scores.reward if told else math.nan


class Crowd:
    """Slots for children of one training on one device.

    Args:
        training: what they train.
        run: where and how; of it the device, precision, compile and deterministic.
        dropping: whether those without a baseline have policies. If not, models are bare, for a comparison.
    """

    def __init__(self, training: "ImageTraining", run: Run, *, dropping: bool = True) -> None:
        if training.fixres is not None:
            raise ValueError("FixRes trains one network at a time: use fit, or a training without it")
        self.training, self.run = training, run
        self.slots: dict[Baseline | None, list[Slot]] = {}  # None: for policies
        self.active: list[Slot] = []  # those whose children are under way
        self.step = 0
        with torch.random.fork_rng(devices=()):  # models are built, and thrown away
            self._shared = shared_by(training, run, dropping)

    def serve(self, training: "ImageTraining") -> None:
        """From here on children are this training's: the one that the slots were made for, but for its length."""
        if training != self.training:
            self.wait()
            self._shared.schedule(training)  # first: it may refuse
            self.training = training

    @property
    def longest(self) -> int:
        """How many steps there is room for."""
        return len(self._shared.learning_rates)

    def begin(self, regularizers: Sequence[Regularizer], rate: float | Sequence[float], seeds: Sequence[int]) -> None:
        """Put new children into the slots; more slots are made where there are too few."""
        self.make_room(regularizers)
        free = {kind: iter(slots) for kind, slots in self.slots.items()}
        self.active = [next(free[_kind(one)]) for one in regularizers]
        self.step = 0
        rates = rates_of(rate, len(regularizers))
        for slot, regularizer, own_rate, seed in zip(self.active, regularizers, rates, seeds, strict=True):
            slot.begin(regularizer, own_rate, seed, self.training.steps)

    def make_room(self, regularizers: Sequence[Regularizer]) -> bool:
        """Make, compile and capture the slots that children under these need; False where they are all there."""
        new: list[Slot] = []
        with self.run.settings(), torch.random.fork_rng(devices=()):
            for kind, count in Counter(map(_kind, regularizers)).items():
                there = self.slots.setdefault(kind, [])
                more = [Slot(self.training, self.run, self._shared, kind) for _ in range(len(there), count)]
                there += more
                new += more
            with self._compiled_whatever_their_number(new):
                for slot in new:  # after all are made: attaching makes the compiler start afresh
                    slot.prepare()
        return bool(new)

    def _compiled_whatever_their_number(self, slots: Sequence[Slot]) -> AbstractContextManager[None]:
        """Each kind of baseline is compiled anew; beyond a limit torch would run some as they are, with other crops."""
        if not self.run.compile:
            return nullcontext()
        limit = torch._dynamo.config.recompile_limit + len(slots)
        return torch._dynamo.config.patch(recompile_limit=limit)  # type: ignore[no-any-return]

    def advance(self, steps: int) -> None:
        """So many steps of every active child. Returns before they are done."""
        for step in range(self.step, self.step + steps):
            if step % LEAD == 0:
                for slot in self.active:
                    slot.choose_images(step)
            for slot in self.active:
                slot.replay_step()
        self.step += steps

    def wait(self) -> None:
        """Until the steps are done."""
        for slot in itertools.chain(*self.slots.values()):
            slot.lane.wait()

    def hold(self, part: str) -> None:
        """Have the images of a part on the device, before anybody is trained who will be judged by them."""
        if part not in self._shared.held_out:
            self._shared.held_out[part] = held(getattr(self.training.load(), part), self.training, self.run.where)

    def judge(self, part: str = "validation") -> list[float]:
        """The accuracy of every active child; nan where its loss or a logit was not finite."""
        for slot in self.active:
            slot.judge(part)
        return [slot.judgement(part) for slot in self.active]  # the only wait for the device

    def fit(
        self,
        regularizers: Sequence[Regularizer],
        rate: float | Sequence[float],
        seeds: Sequence[int],
        reports: Sequence[Report] | None = None,
        test_reports: Sequence[Report] | None = None,
    ) -> list[float]:
        """Train children from beginning to end: their rewards, nan for those that did not get there."""
        self.begin(regularizers, rate, seeds)
        number = {id(slot): index for index, slot in enumerate(self.active)}
        rewards = [math.nan] * len(regularizers)
        every = self.training.evaluate_every or self.training.steps
        with self.run.settings():
            if test_reports is not None:  # whose images are there: `hold`
                for slot in self.active:
                    slot.prepare_judging("test")
            while self.step < self.training.steps and self.active:
                self.advance(min(every, self.training.steps - self.step))
                for slot, reward in zip(tuple(self.active), self.judge(), strict=True):
                    child = number[id(slot)]
                    if not math.isfinite(reward) or not goes_on(reports, child, self.step, reward):
                        self.active.remove(slot)
                    elif self.step == self.training.steps:
                        rewards[child] = reward
            if test_reports is not None and self.active:
                for slot, accuracy in zip(self.active, self.judge("test"), strict=True):
                    child = number[id(slot)]
                    if not math.isfinite(accuracy) or not goes_on(test_reports, child, self.step, accuracy):
                        rewards[child] = math.nan
        return rewards


_warm: dict[tuple[object, ...], Crowd] = {}


def warm_crowd(training: "ImageTraining", run: Run, *, dropping: bool) -> Crowd:
    """The crowd of the last call, where it serves this training, too; else a new one in its place."""
    of_any_length = tuple(getattr(training, f.name) for f in fields(training) if f.name not in LENGTH)
    key = (of_any_length, replace(run, report=None), dropping)
    if key not in _warm or _warm[key].longest < training.steps:
        _warm.clear()
        gc.collect()  # its graphs hold a GPU's memory, and may be part of a cycle
        _warm[key] = Crowd(training, run, dropping=dropping)
    _warm[key].serve(training)
    return _warm[key]
