"""What a run accepts, what it does with a model, and what identifies an experiment."""

import importlib.util
import json
import pickle
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor

import autodropout as ad
from autodropout.training.run import Run, identity


def test_defaults() -> None:
    run = Run()
    assert run.where == torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    assert Run(device="cpu").where == torch.device("cpu")
    assert Run(device="meta").where == torch.device("meta")
    assert pickle.loads(pickle.dumps(Run(Path("x"), report=print))) == Run(Path("x"), report=print)


def test_the_device_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert Run(device="cuda").where == torch.device("cuda", 3)
    assert Run(device="cuda:1").where == torch.device("cuda", 1)
    assert Run(device="cpu").where == torch.device("cpu")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"precision": "float16"}, "precision must be one of float32, bfloat16, got 'float16'"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1 step, got 0"),
        ({"tensorboard": True}, "TensorBoard needs a folder"),
    ],
)
def test_bad_arguments(arguments, said) -> None:
    with pytest.raises(ValueError, match=said):
        Run(**arguments)


def test_tensorboard_that_is_missing_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'autodropout\[tensorboard\]'"):
        Run(tmp_path, tensorboard=True)


def test_precision() -> None:
    layer, x = nn.Linear(2, 2), torch.randn(1, 2)
    with Run(device="cpu").autocast():
        assert layer(x).dtype == torch.float32
    with Run(device="cpu", precision="bfloat16").autocast():
        assert layer(x).dtype == torch.bfloat16


def test_wrap_moves_the_model_itself() -> None:
    model = nn.Linear(2, 2)
    assert Run(device="cpu").wrap(model) is model
    Run(device="meta").wrap(model)
    assert model.weight.is_meta


def test_deterministic_only_inside() -> None:
    def settings() -> tuple[bool, bool, bool]:
        """Of operations, of cuDNN's choices by the clock, and of those of torch's compiler."""
        chosen_by_time = torch.backends.cudnn.benchmark
        return torch.are_deterministic_algorithms_enabled(), chosen_by_time, inductor.deterministic

    before = settings()
    with Run(deterministic=True).settings():
        assert settings() == (True, False, True)
    assert settings() == before
    with Run().settings():
        assert settings() == before


@dataclass(frozen=True, slots=True)
class Optimizer:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True, slots=True)
class Training:
    optimizer: Optimizer = Optimizer()
    steps: int = 10
    data: Path | None = None
    parts: tuple[Optimizer, ...] = (Optimizer(),)


@dataclass(frozen=True, slots=True)
class OtherTraining(Training):
    pass


SPACE = ad.ConvSpace(groups=((32, 32), (16, 16)), resolution=(32, 32))
POLICY = SPACE.sample(seed=0)


def test_an_experiment_as_json() -> None:
    config = identity(Training(), None, 0.2, 7)
    assert (
        json.loads(json.dumps(config))
        == config
        == {
            "training": {
                "kind": "Training",
                "optimizer": {"kind": "Optimizer", "lr": 0.1, "betas": [0.9, 0.999]},
                "steps": 10,
                "data": None,
                "parts": [{"kind": "Optimizer", "lr": 0.1, "betas": [0.9, 0.999]}],
            },
            "regularizer": None,
            "rate": 0.2,
            "seed": 7,
        }
    )


def test_what_identifies_an_experiment() -> None:
    one = identity(Training(), POLICY, 0.2, 0)
    for other in (
        identity(replace(Training(), steps=11), POLICY, 0.2, 0),
        identity(OtherTraining(), POLICY, 0.2, 0),
        identity(Training(Optimizer(lr=0.2)), POLICY, 0.2, 0),
        identity(Training(), SPACE.sample(seed=1), 0.2, 0),
        identity(Training(), None, 0.2, 0),
        identity(Training(), ad.baseline("dropout"), 0.2, 0),
        identity(Training(), POLICY, 0.3, 0),
        identity(Training(), POLICY, 0.2, 1),
    ):
        assert other != one
    baselines = [ad.baseline("dropblock"), ad.baseline("dropblock", block=3), ad.baseline("dropblock", groups=(1,))]
    assert len({json.dumps(identity(Training(), each, 0.2, 0)) for each in baselines}) == 3


def test_what_does_not() -> None:
    one = identity(Training(), POLICY, 0.2, 0)
    found = POLICY.model_copy(update={"provenance": ad.Provenance(space=SPACE.describe(), study="mine", trial=3)})
    assert identity(Training(), found, 0.2, 0) == one
    with_data = identity(Training(data=Path("elsewhere")), POLICY, 0.2, 0)
    other = identity(Training(data=Path("here")), POLICY, 0.2, 0)
    assert with_data == other == one


def test_what_is_no_json_is_named() -> None:
    with pytest.raises(ValueError, match=r"training\.parts\[0\] is <object"):
        identity(Training(parts=(object(),)), None, 0.2, 0)
