"""Train an image classifier under a policy or a baseline (paper, "Supervised Image Classification with ConvNets").

    pictures = Pictures(name="cifar10", train=45_000, validation=5_000)
    training = ImageTraining(model="wrn-28-2", pictures=pictures, resolution=32, steps=32_000, batch=64, ...)
    scores = training.fit(policy, rate=0.2, seed=0)     # scores.reward: the accuracy on the validation part

    images of a step --view--> augmented --mix--> logits, soft labels --> loss --> optimizer --> moving average
                     `--------- compiled as one, if asked --------------'
                                                               now and then: the validation part, as it is

Everything random follows from the seed. The order of the images and the masks are functions of seed and step alone; so
children of one seed see the same images, augmented alike, under every policy. The validation part decides the reward;
the test part is looked at when `run.test` asks for it, once, at the end.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autodropout.attach import space
from autodropout.attach.schedule import Shape
from autodropout.data import Labelled, Reads, SemiSplits, Splits
from autodropout.models import check_image_model, image_model
from autodropout.spaces import Space
from autodropout.training.augment import MIXES, Augment, Mix, mixing
from autodropout.training.descent import Cosine, Descent, Schedule
from autodropout.training.distributed import ranks, world
from autodropout.training.ema import checked_decay
from autodropout.training.feed import resident
from autodropout.training.fixres import FixRes
from autodropout.training.image_learner import Bench, Learner, Objective
from autodropout.training.loop import Loop
from autodropout.training.pictures import RESIZING, Pictures
from autodropout.training.run import Curve, Regularizer, Report, Run, Scores, identity
from autodropout.training.weights import export

SMOKE_STEPS = 6
WEIGHTS = "model.safetensors"  # what was judged, in the run's folder
SMALLEST = {"wrn": "wrn-10-1", "resnet50": "resnet50-half", "efficientnet": "efficientnet-b0-half"}  # of each family


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTraining:
    """One supervised training, whole. Defaults are plain values; the paper's numbers stand in the recipes."""

    model: str  # of `models.image_model`
    pictures: Pictures
    resolution: int  # of what the model sees
    steps: int
    batch: int  # of all ranks together
    optimizer: Descent
    schedule: Schedule
    augmentation: str = "standard"  # one of `augment.AUGMENTATIONS`
    mix: str = "none"  # one of `augment.MIXES`
    label_smoothing: float = 0.0
    average: float | None = None  # the decay of a moving average of the weights, which is then what is judged
    rates: Shape = "constant"  # the course of the drop rate over training; DropBlock's authors: "linear"
    evaluate_every: int | None = None  # steps; None: at the end only
    fixres: FixRes | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "resolution"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise ValueError(f"evaluate_every must be at least 1, got {self.evaluate_every}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must lie in [0, 1), got {self.label_smoothing}")
        check_image_model(self.model, self.pictures.kind.channels)
        if self.average is not None:
            checked_decay(self.average)
        for name, value, known in (("mix", self.mix, MIXES), ("rates", self.rates, get_args(Shape))):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        self.schedule.factors(self.steps)  # says what is wrong with it
        if self.fixres is not None and not self.resizes:
            raise ValueError(f"FixRes needs images that are resized; the augmentation is {self.augmentation!r}")
        self.pictures.view(self.augmentation, self.resolution)  # says what is wrong with either

    @property
    def reads(self) -> Reads:
        return Reads(self.pictures.name, self.pictures.folder)

    @property
    def crowds(self) -> bool:
        """Whether `fit_many` can do it."""
        return self.fixres is None

    def crowded(self, regularizer: Regularizer) -> bool:
        """Whether `fit_many` can train under it: under anything, where there are images to judge by."""
        return self.crowds and self.pictures.validation > 0

    def result_step(self, curve: Curve) -> int:
        """Of which step the weights are the result, by (step, reward) pairs that were reported: the last."""
        return curve[-1][0]

    def metrics(self, part: str, reward: float) -> dict[str, float]:
        """What `fit` says of a reward, or of what would be one on the test part; crowds count no top-5 accuracy."""
        return {f"{part}_accuracy": reward}

    @property
    def resizes(self) -> bool:
        """Whether images come in another size than the model sees."""
        return self.augmentation in RESIZING

    def build(self) -> nn.Module:
        kind = self.pictures.kind
        return image_model(self.model, kind.classes, channels=kind.channels)

    def space(self) -> Space:
        """Of its model at its resolution; needs no data."""
        shape = (1, self.pictures.kind.channels, self.resolution, self.resolution)
        return space(self.build(), torch.randn(shape, generator=torch.Generator().manual_seed(0)))

    def load(self) -> Splits | SemiSplits:
        """The images, read and checked."""
        return self.pictures.load()

    def look(self, resolution: int) -> Augment:
        """How images are shown in testing."""
        return self.pictures.view("imagenet_eval" if self.resizes else "none", resolution)

    def mixing(self, model: nn.Module, example: Tensor) -> Mix:
        """How images are mixed; may put something on the model."""
        setting: Literal["imagenet", "cifar"] = "imagenet" if self.resizes else "cifar"
        return mixing(self.mix, self.pictures.kind.classes, model=model, example=example, setting=setting)

    def objective(self, splits: Any, bench: Bench) -> Objective:
        """Cross-entropy on augmented, perhaps mixed images."""
        feed = bench.feed(splits.train, self.batch)
        view = bench.view(self.pictures.view(self.augmentation, self.resolution))
        mix = self.mixing(bench.model, bench.example)
        bench.closing.callback(mix.remove)
        loss = bench.run.compiled(self.loss)

        def losses(forward: nn.Module, step: int) -> dict[str, Tensor]:
            return {"train_loss": loss(forward, mix, view, *feed(step))}

        return losses

    def loss(
        self, forward: nn.Module, mix: Mix, view: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor
    ) -> Tensor:
        """What supervision says of a batch of stored images."""
        logits, target = mix(forward, view(images), labels)  # (N, classes), (N, classes)
        return F.cross_entropy(logits, target, label_smoothing=self.label_smoothing)

    def fit(self, regularizer: Regularizer, rate: float, seed: int, run: Run = Run()) -> Scores:  # noqa: B008 (frozen)
        """Train one network under a policy, a baseline or nothing, and judge it.

        Args:
            regularizer: what goes onto the model; None: nothing.
            rate: at which it drops.
            seed: of the first weights, the order of the images, augmentation and masks.
            run: where and how. A `run.folder` with an unfinished training of the same kind goes on with it.

        Raises:
            ValueError: the images are not what they should be, or there are none to be judged by.
            FloatingPointError: the loss or a logit was not finite.
        """
        if not self.pictures.validation and not run.test:  # before images are read, which may take hours
            raise _nothing_to_be_judged_by()
        splits = self.load()
        part = _judging_part(splits, run)
        held_out: Labelled = getattr(splits, part)
        config = identity(self, regularizer, rate, seed)
        with ranks(run.where), ExitStack() as closing:
            learner = Learner(self, splits, regularizer, rate, seed, run, closing)
            held_out = resident(held_out, run.where)
            every = self.steps if part == "test" else self.evaluate_every or self.steps
            with Loop(run, self.steps, learner.state, config) as loop:
                for step in loop:
                    loop.add(**learner.step(step))
                    if loop.due(every):
                        with learner.averaged():
                            found = learner.judged(held_out, part)
                        loop.evaluated(found[f"{part}_accuracy"], **found)
            assert loop.last is not None
            metrics = {**loop.last.metrics, "steps_per_s": loop.steps_per_s}
            with run.settings(), learner.averaged():
                if self.fixres is not None:
                    metrics |= learner.fixed(self.fixres, splits.train, held_out, part, config)
                if run.test and part != "test":
                    metrics |= learner.judged(splits.test, "test")
                if run.folder is not None and world().writes:
                    export(run.folder / WEIGHTS, learner.model)
        return Scores(metrics[f"{part}_accuracy"], metrics)

    def fit_many(
        self,
        regularizers: Sequence[Regularizer],
        rate: float | Sequence[float],
        seeds: Sequence[int],
        run: Run = Run(),  # noqa: B008 (frozen)
        reports: Sequence[Report] | None = None,
        test_reports: Sequence[Report] | None = None,
    ) -> list[float]:
        """Train several networks at once on one device, each as `fit` would alone (`image_crowd.py`).

        Args:
            regularizers: one for each network.
            rate: at which all of them drop, or one for each.
            seeds: one for each network.
            run: where, and at which precision; nothing is written.
            reports: one for each network, called with its validation accuracy. What one raises ends its network alone;
                it is told unless it is `Ended` or FloatingPointError.
            test_reports: the same with the test accuracy, once, of those that came to the end.

        Returns:
            The rewards; nan for a network that diverged or was ended by its report.

        Where the images do not fit the GPU, networks are trained by `fit`, one after the other.
        """
        from autodropout.training.image_crowd import fit_many

        return fit_many(self, regularizers, rate, seeds, run, reports, test_reports)

    def prepare_many(self, regularizers: Sequence[Regularizer], run: Run = Run()) -> bool:  # noqa: B008 (frozen)
        """Compile and capture for such a crowd now, so that `fit_many` does nothing but train.

        Returns:
            Whether there was anything to do: what was made for a crowd of this training before is kept as it is, also
            for other lengths as far as there is room (`image_slot.room`).
        """
        from autodropout.training.image_crowd import prepare_many

        return prepare_many(self, regularizers, run)

    def smoke(self) -> Self:
        """The same training with everything small: a narrow model, a few images, a few steps."""
        few = self.pictures.smoke()
        return replace(
            self,
            model=SMALLEST[self.model.split("-")[0]],
            pictures=few,
            resolution=64 if self.resizes else few.kind.size,
            steps=SMOKE_STEPS,
            batch=8,
            schedule=_shortened(self.schedule, SMOKE_STEPS),
            evaluate_every=None,
            fixres=self.fixres and replace(self.fixres, resolution=96, steps=3, batch=8),
        )


def _shortened(schedule: Schedule, steps: int) -> Schedule:
    """For so few steps. A cosine refuses a longer warm-up; others stay in it, at rates that harm nobody."""
    return replace(schedule, warmup=min(schedule.warmup, steps - 1)) if isinstance(schedule, Cosine) else schedule


def _judging_part(splits: Splits | SemiSplits, run: Run) -> str:
    """By what the reward is found: the validation part; the test part only of a final run that holds nothing out."""
    if len(splits.validation):
        return "validation"
    if run.test and len(splits.test):
        return "test"
    if run.test:
        raise ValueError("there are neither validation nor test images to score a training on")
    raise _nothing_to_be_judged_by()


def _nothing_to_be_judged_by() -> ValueError:
    return ValueError(
        "a full-size run trains on all training images and keeps none for validation: add --test (in Python "
        "Run(test=True)) to score it on the test images"
    )
