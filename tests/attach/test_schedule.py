"""Rates over training."""

import io

import numpy as np
import pytest
import torch
from torch import nn

import autodropout as ad
from autodropout.attach.schedule import ScheduleState
from autodropout.layers import Dropout


class Spy:
    """Something with a rate, which notes every rate it was given."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def set_rate(self, rate: float) -> None:
        self.rates.append(rate)


def run(shape: str, steps: int, **options: float) -> list[float]:
    spy = Spy()
    schedule = ad.RateSchedule(spy, shape, rate=0.4, steps=steps, **options)
    for _ in range(steps):
        schedule.step()
    return spy.rates


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        ("constant", {}, [0.4, 0.4, 0.4, 0.4, 0.4]),
        ("linear", {}, [0.0, 0.1, 0.2, 0.3, 0.4]),
        ("linear", {"start": 0.8, "until": 0.5}, [0.8, 0.6, 0.4, 0.4, 0.4]),
        ("early", {}, [0.4, 0.4, 0.0, 0.0, 0.0]),
        ("early", {"until": 0.75}, [0.4, 0.4, 0.4, 0.0, 0.0]),
        ("late", {}, [0.0, 0.0, 0.4, 0.4, 0.4]),
    ],
)
def test_shapes(shape: str, options: dict, expected: list[float]) -> None:
    assert run(shape, 4, **options) == pytest.approx(expected)


def test_a_saved_schedule_goes_on_where_it_was() -> None:
    spy = Spy()
    schedule = ad.RateSchedule(spy, "linear", rate=0.4, steps=4)
    schedule.step()
    schedule.step()
    state = schedule.state_dict()
    again = Spy()
    resumed = ad.RateSchedule(again, "linear", rate=0.4, steps=4)
    resumed.load_state_dict(state)
    schedule.step()
    resumed.step()
    assert again.rates[-2:] == spy.rates[-2:]
    assert state["step"] == 2, "the saved state is a copy"


def test_another_schedules_state_is_refused() -> None:
    spy = Spy()
    schedule = ad.RateSchedule(spy, "linear", rate=0.4, steps=4)
    other = ad.RateSchedule(Spy(), "linear", rate=0.3, steps=4).state_dict()
    with pytest.raises(ValueError, match=r"rate=0\.3, this one 0\.4"):
        schedule.load_state_dict(other)
    with pytest.raises(ValueError, match="lacks 'shape'"):
        schedule.load_state_dict(ScheduleState(step=1))
    assert schedule.state_dict()["step"] == 0


def test_numpys_numbers_do_not_get_into_checkpoints() -> None:
    given = {"rate": np.float32(0.5), "steps": np.int64(4), "start": np.float64(0.25), "until": np.float16(0.5)}
    state = ad.RateSchedule(Spy(), "linear", **given).state_dict()
    assert state == {"shape": "linear", "rate": 0.5, "steps": 4, "start": 0.25, "until": 0.5, "step": 0}
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "cosine"}, "got 'cosine'"),
        ({"rate": 1.2}, "rate must lie in .* got 1.2"),
        ({"start": -1.0}, "start must lie in .* got -1.0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"rate": "0.3"}, "rate must be a number, got '0.3'"),
        ({"start": None}, "start must be a number, got None"),
        ({"until": True}, "until must be a number, got True"),
        ({"steps": 2.5}, "steps must be a whole number, got 2.5"),
        ({"until": 0.0}, "until must lie in .* got 0.0"),
    ],
)
def test_mistakes(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ad.RateSchedule(Spy(), **{"shape": "linear", "rate": 0.4, "steps": 4, **options})


@pytest.mark.parametrize(("on", "got"), [(nn.Linear(2, 2), "a Linear"), (None, "None"), ("linear", "'linear'")])
def test_what_has_no_rate(on: object, got: str) -> None:
    with pytest.raises(TypeError, match=f"what ad.attach returned, or of a DropLayer; got {got}$"):
        ad.RateSchedule(on, "linear", rate=0.4, steps=4)


def test_in_one_line() -> None:
    schedule = ad.RateSchedule(ad.DropLayer(Dropout(), 0.1), "linear", rate=0.4, steps=4)
    schedule.step()
    assert repr(schedule) == "<RateSchedule linear of 0.4: step 1 of 4, rate 0.1>"
    for _ in range(3):
        schedule.step()
    assert repr(schedule) == "<RateSchedule linear of 0.4: step 4 of 4, rate 0.4>"
    schedule.step()
    schedule.step()
    assert repr(schedule) == "<RateSchedule linear of 0.4: step 4 of 4, 2 past its end, rate 0.4>"
