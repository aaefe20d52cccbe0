"""Image trainings on a GPU: nothing waits for the host inside an epoch, compiled and rounded they do the same."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from cuda_tools import MARKS, no_waiting
from cuda_tools import TRAINING as SMALL

from autodropout.training import ImageTraining, Pictures, Run, Sgd
from autodropout.training import feed as feed_module
from autodropout.training.augment import MIXES
from autodropout.training.image_learner import Learner
from autodropout.training.semi_supervised import FixMatch, SemiSupervisedTraining, Uda

pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),  # torch captures one to prepare its pool
]

TRAINING = replace(SMALL, rates="linear")
SEMI = {field.name: getattr(TRAINING, field.name) for field in fields(TRAINING)} | {
    "pictures": Pictures(name="digits", train=200, validation=200),
    "batch": 8,
    "ratio": 2,
}
TRAININGS = [
    *(replace(TRAINING, mix=mix) for mix in MIXES),
    replace(TRAINING, augmentation="randaugment"),
    SemiSupervisedTraining(**SEMI, method=Uda(annealing="linear", threshold=0.15)),
    SemiSupervisedTraining(**SEMI, method=FixMatch(threshold=0.15)),
]


@pytest.mark.parametrize("training", TRAININGS, ids=lambda t: f"{type(t).__name__}-{t.mix}-{t.augmentation}")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_no_step_waits_for_the_device(training: ImageTraining, precision: str) -> None:
    run = Run(device="cuda", precision=precision)
    with ExitStack() as closing:
        learner = Learner(training, training.load(), training.space().sample(seed=0), 0.2, 0, run, closing)
        learner.step(0)  # the order of the first epoch goes to the device
        with no_waiting():
            for step in range(1, 10):
                losses = learner.step(step)
        assert losses["train_loss"].isfinite()


def test_it_learns_on_the_gpu_compiled_and_rounded() -> None:
    training = replace(TRAINING, steps=150, optimizer=Sgd(lr=0.1), augmentation="none", rates="constant")
    policy = training.space().sample(seed=0)
    eager = training.fit(policy, 0.1, 0, Run(device="cuda"))
    fast = training.fit(policy, 0.1, 0, Run(device="cuda", precision="bfloat16", compile=True))
    assert eager.reward > 0.85
    assert fast.reward == pytest.approx(eager.reward, abs=0.1)


def launches(training: ImageTraining) -> Counter[str]:
    """What the host asks of the device in a compiled step, by name."""
    torch.compiler.reset()
    with ExitStack() as closing:
        run = Run(device="cuda", precision="bfloat16", compile=True)
        learner = Learner(training, training.load(), None, 0.0, 0, run, closing)
        for step in range(6):  # the first of them compile, warm up and record
            if step == 5:
                torch.cuda.synchronize()
                profile = closing.enter_context(torch.profiler.profile())
            torch.compiler.cudagraph_mark_step_begin()
            learner.step(step)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    return Counter(name for name in names if name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch")))


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")  # torch 2.11, of its own default
@pytest.mark.parametrize(
    "dear",
    [
        replace(TRAINING, augmentation="randaugment", mix="cutmix"),
        SemiSupervisedTraining(**SEMI, method=FixMatch(threshold=0.15)),
    ],
    ids=["supervised", "semi-supervised"],
)
def test_what_augmentation_takes_from_the_host_is_nothing(dear: ImageTraining) -> None:
    plain = replace(dear, augmentation="none", mix="none")
    if isinstance(plain, SemiSupervisedTraining):
        plain = replace(plain, strong="none")
    most, least = launches(dear), launches(plain)
    assert most["cudaGraphLaunch"] == least["cudaGraphLaunch"] == 2, "forward and backward"
    assert most.total() <= least.total() + 4, "a graph that draws is told the generator's seed and offset"


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_resume_on_the_gpu_is_exact(tmp_path: Path, compiled: bool) -> None:
    class Killed(BaseException):
        pass

    def die(step: int, value: float) -> None:
        raise Killed

    training = replace(TRAINING, augmentation="randaugment", mix="cutmix", evaluate_every=25)
    policy = training.space().sample(seed=0)
    run = Run(device="cuda", compile=compiled, deterministic=True, folder=tmp_path / "killed", checkpoint_every=10)
    whole = training.fit(policy, 0.2, 0, replace(run, folder=tmp_path / "whole"))
    with pytest.raises(Killed):
        training.fit(policy, 0.2, 0, replace(run, report=die))
    resumed = training.fit(policy, 0.2, 0, run)
    assert resumed.reward == whole.reward
    assert resumed.metrics["train_loss"] == whole.metrics["train_loss"]


def test_images_that_do_not_fit_are_brought_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = TRAINING.fit(None, 0.0, 0, Run(device="cuda", deterministic=True)).metrics["train_loss"]
    monkeypatch.setattr(feed_module, "fits", lambda images, device: False)
    streamed = TRAINING.fit(None, 0.0, 0, Run(device="cuda", deterministic=True)).metrics["train_loss"]
    assert streamed == kept
