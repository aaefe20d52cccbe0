"""Averaged weights, the best weights, and weights as a file."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from autodropout.training.weights import Average, Best, export


def filled(value: float) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def set_all(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def values(model: nn.Module) -> set[float]:
    return {value for parameter in model.parameters() for value in parameter.flatten().tolist()}


def test_the_mean_from_the_start_on() -> None:
    model = filled(0.0)
    average = Average(model, start=2)
    for step, value in enumerate((100.0, 50.0, 1.0, 2.0, 6.0)):
        set_all(model, value)
        average.update(step)
        if step == 1:
            with average.applied():
                assert values(model) == {50.0}, "there is none yet"
    assert average.count == 3
    with average.applied():
        assert values(model) == {3.0}
    assert values(model) == {6.0}


def test_the_mean_of_a_thousand_steps_is_not_worn_by_rounding() -> None:
    model = nn.Linear(8, 8)
    average, exact = Average(model, start=0), torch.zeros(8, 8, dtype=torch.float64)
    for step in range(1000):
        with torch.no_grad():
            model.weight.copy_(torch.randn(8, 8))
        average.update(step)
        exact += model.weight.detach().double() / 1000
    with average.applied():
        assert torch.allclose(model.weight.double(), exact, atol=1e-6)


def test_an_average_saved_goes_on() -> None:
    model = filled(1.0)
    one = Average(model, start=0)
    one.update(0)
    other = Average(model, start=0)
    other.load_state_dict(one.state_dict())
    set_all(model, 2.0)
    for average in (one, other):
        average.update(1)
        with average.applied():
            assert values(model) == {1.5}
    assert one.count == other.count == 2


def test_weights_come_back_to_the_bit_after_an_error() -> None:
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight[0, 0], model.weight[0, 1] = float("nan"), -0.0
    before = model.weight.detach().clone().view(torch.int32)
    average = Average(model, start=0)
    average.update(0)

    def interrupted() -> None:
        with average.applied():
            set_all(model, 7.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.equal(model.weight.detach().view(torch.int32), before)


def test_the_best_includes_buffers_and_is_a_copy() -> None:
    model = filled(1.0)
    best = Best(model)
    with best.applied():
        assert values(model) == {1.0}
    model(torch.randn(8, 2))  # moves the running statistics
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    best.keep()
    set_all(model, 2.0)
    model(torch.randn(8, 2))
    now = {name: value.clone() for name, value in model.state_dict().items()}
    with best.applied():
        assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, now[name]) for name, value in model.state_dict().items())
    other = filled(0.0)
    restored = Best(other)
    restored.load_state_dict(best.state_dict())
    with restored.applied():
        assert all(torch.equal(value, kept[name]) for name, value in other.state_dict().items())


def test_the_best_average() -> None:
    model = filled(0.0)
    average, best = Average(model, start=0), Best(model)
    for step, value in enumerate((1.0, 3.0)):
        set_all(model, value)
        average.update(step)
    with average.applied():
        best.keep()
    with best.applied():
        assert values(model) == {2.0}


def test_the_weights_of_another_model_are_refused() -> None:
    best = Best(filled(1.0))
    best.keep()
    with pytest.raises(ValueError, match=r"another model.*1\.bias"):
        Best(nn.Sequential(nn.Linear(2, 2))).load_state_dict(best.state_dict())
    with pytest.raises(ValueError, match="start must be a step, got -1"):
        Average(filled(1.0), start=-1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.softmax = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.softmax.weight = self.embedding.weight
        self.images = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)


def test_an_exported_model_can_be_loaded_by_anyone(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    export(tmp_path / "model.safetensors", model)
    assert safetensors.torch.load_model(other, tmp_path / "model.safetensors") == (set(), [])
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    assert other.softmax.weight is other.embedding.weight
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
