"""Compiled image trainings: stored images to loss are one graph, and compiling changes nothing that is computed."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from small_images import TRAINING
from torch._dynamo.testing import CompileCounterWithBackend

from autodropout.training import ImageTraining, Run
from autodropout.training.augment import MIXES
from autodropout.training.image_learner import Learner
from autodropout.training.noise import LEAD, Noise, noise_at
from autodropout.training.semi_supervised import FixMatch, SemiSupervisedTraining, Uda

SEMI = {field.name: getattr(TRAINING, field.name) for field in fields(TRAINING)} | {
    "pictures": replace(TRAINING.pictures, train=20),
    "batch": 4,
    "ratio": 2,
}
TRAININGS: list[ImageTraining] = [
    *(replace(TRAINING, mix=mix, augmentation="standard") for mix in MIXES),
    replace(TRAINING, augmentation="randaugment", average=0.9, label_smoothing=0.1),
    SemiSupervisedTraining(**SEMI, method=Uda(annealing="linear", threshold=0.15)),
    SemiSupervisedTraining(**SEMI, method=FixMatch(threshold=0.15)),
]
NAMES = [f"{type(training).__name__}-{training.mix}-{training.augmentation}" for training in TRAININGS]
POLICY = TRAINING.space().sample(seed=0)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounterWithBackend]:
    """Counts what is compiled; runs the operations as they were recorded."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter, fullgraph=True))
    yield counter
    torch.compiler.reset()


@pytest.mark.parametrize("training", TRAININGS, ids=NAMES)
def test_one_graph_from_the_images_to_the_loss_that_computes_the_same(
    training: ImageTraining, counter: CompileCounterWithBackend
) -> None:
    """All draws, the augmentation's too, are then those of the generator in the same order, hence the same bits."""
    losses = {}
    for compiled in (False, True):
        with ExitStack() as closing:
            run = Run(device="cpu", compile=compiled)
            learner = Learner(training, training.load(), POLICY, 0.3, 0, run, closing)
            steps = [{name: float(value.detach()) for name, value in learner.step(step).items()} for step in range(3)]
            losses[compiled] = steps, {name: value.clone() for name, value in learner.model.state_dict().items()}
    assert counter.frame_count == 1
    assert losses[True][0] == losses[False][0]
    for name, value in losses[False][1].items():
        assert torch.equal(losses[True][1][name], value), name


def test_judging_in_between_compiles_nothing_and_leaves_it_learning(counter: CompileCounterWithBackend) -> None:
    training = replace(TRAINING, augmentation="standard", average=0.9, evaluate_every=3)
    eager, compiled = (training.fit(POLICY, 0.3, 0, Run(device="cpu", compile=how)) for how in (False, True))
    assert counter.frame_count == 1
    assert compiled.reward == eager.reward
    assert compiled.metrics["train_loss"] == eager.metrics["train_loss"]


def test_one_training_after_the_other_compiles_however_many_there_were(counter: CompileCounterWithBackend) -> None:
    """Without a policy too, which is where nothing is attached that would make the compiler start afresh."""
    with torch._dynamo.config.patch(recompile_limit=1):  # beyond it a full graph is an error
        for _ in range(3):
            replace(TRAINING, steps=1).fit(None, 0.0, 0, Run(device="cpu", compile=True))
    assert counter.frame_count == 3


@pytest.mark.parametrize("seed", [0, 5, 2**40])
def test_noise_that_is_computed_ahead_is_that_of_each_step(seed: int) -> None:
    noise = Noise(torch.nn.Linear(2, 2), seed, torch.device("cpu"))
    for step in (0, 1, LEAD - 1, LEAD, 3 * LEAD + 7, 2):  # the last: as after going back to a checkpoint
        noise.at(step)
        assert noise.now == noise_at(torch.tensor(seed), step), step
