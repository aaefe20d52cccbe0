"""What a comparison asks of a crowd of image trainings: baselines beside policies, a rate for each, and test scores."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from small_images import PICTURES, busy
from small_images import TRAINING as SMALL
from torch import Tensor

import autodropout as ad
from autodropout.training import ImageTraining, Run
from autodropout.training import image_crowd as module
from autodropout.training import image_slot as slot_module

TRAINING = replace(SMALL, pictures=replace(PICTURES, validation=90))
POLICY = TRAINING.space().sample(seed=0)
DROPOUT, DROPBLOCK = ad.baseline("dropout"), ad.baseline("dropblock", block=3)
CPU = Run(device="cpu")


@pytest.fixture(autouse=True)
def cold() -> None:
    module._warm.clear()


def scores(training: ImageTraining, regularizers: list[object], rates: list[float]) -> list[tuple[float, float]]:
    """Validation and test accuracy of each child of a crowd, all of one seed; nan where there is none."""
    tests = [math.nan] * len(rates)
    reports = [lambda step, value, child=child: tests.__setitem__(child, value) for child in range(len(rates))]
    rewards = training.fit_many(regularizers, rates, [4] * len(rates), CPU, None, reports)
    return list(zip(rewards, tests, strict=True))


@pytest.mark.parametrize(
    "training", [TRAINING, pytest.param(busy(TRAINING), marks=pytest.mark.slow)], ids=["plain", "busy"]
)
def test_each_child_has_its_baseline_its_rate_and_its_test_score(training: ImageTraining) -> None:
    regularizers = [DROPOUT, POLICY, None, DROPBLOCK, POLICY, DROPOUT, DROPOUT]
    rates = [0.1, 0.9, 0.0, 0.3, 0.0, 0.9, 0.0]
    found = scores(training, regularizers, rates)
    for regularizer, rate, (reward, test) in zip(regularizers, rates, found, strict=True):
        alone = training.fit(regularizer, rate, 4, replace(CPU, test=True))
        assert (reward, test) == (alone.reward, alone.metrics["test_accuracy"])
    assert len(set(found)) >= 4, "rates and baselines make a difference"
    assert found[2] == found[4] == found[6], "at rate 0 nothing does"


def test_the_slots_of_a_baseline_are_kept_and_serve_other_rates() -> None:
    scores(TRAINING, [DROPOUT, POLICY], [0.0, 0.1])
    (crowd,) = module._warm.values()
    slots = {kind: tuple(there) for kind, there in crowd.slots.items()}
    again = scores(TRAINING, [POLICY, DROPOUT], [0.4, 0.4])
    assert {kind: tuple(there) for kind, there in crowd.slots.items()} == slots
    assert again == [scores(TRAINING, [one], [0.4])[0] for one in (POLICY, DROPOUT)]
    assert list(module._warm.values()) == [crowd]


def test_a_crowd_of_images_is_made_ready_before_it_is_trained() -> None:
    assert TRAINING.prepare_many([DROPOUT, POLICY, None], CPU)
    (crowd,) = module._warm.values()
    slots = {kind: len(there) for kind, there in crowd.slots.items()}
    assert slots == {DROPOUT: 1, None: 2}
    assert not TRAINING.prepare_many([POLICY, DROPOUT], CPU), "it serves fewer"
    (reward, _), _ = scores(TRAINING, [POLICY, DROPOUT], [0.3, 0.3])
    assert {kind: len(there) for kind, there in crowd.slots.items()} == slots
    assert reward == TRAINING.fit(POLICY, 0.3, 4, CPU).reward, "nothing is left of what made it ready"


def test_a_deterministic_run_is_so_when_it_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    look = ImageTraining.look

    def noting(self: ImageTraining, resolution: int) -> Callable[[Tensor], Tensor]:
        shown = look(self, resolution)

        def noted(images: Tensor) -> Tensor:
            seen.append(torch.are_deterministic_algorithms_enabled())
            return shown(images)

        noted.to = lambda device: noted  # type: ignore[attr-defined]
        return noted

    monkeypatch.setattr(ImageTraining, "look", noting)
    TRAINING.fit(POLICY, 0.1, 0, replace(CPU, deterministic=True, test=True))
    judged = seen[1:]  # the first is an example
    assert all(judged)
    assert len(judged) > 1, "validation and test"


def test_a_child_that_its_report_ends_has_no_test_score() -> None:
    def ends(step: int, value: float) -> None:
        raise ad.Stopped

    heard: list[int] = []
    reports = [ends, lambda step, value: None]
    tests = [lambda step, value: heard.append(0), lambda step, value: heard.append(1)]
    rewards = TRAINING.fit_many([None, DROPOUT], 0.1, [0, 1], CPU, reports, tests)
    assert math.isnan(rewards[0])
    assert heard == [1]


def test_a_test_report_that_fails_ends_its_own_child_alone() -> None:
    def fails(step: int, value: float) -> None:
        raise OSError("no space left")

    heard: list[float] = []
    reports = [fails, lambda step, value: heard.append(value)]
    rewards = TRAINING.fit_many([None, None], 0.0, [1, 1], CPU, None, reports)
    assert math.isnan(rewards[0])
    assert rewards[1] == TRAINING.fit(None, 0.0, 1, CPU).reward
    assert len(heard) == 1


def test_one_after_the_other_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the images do not fit the GPU."""
    expected = scores(TRAINING, [DROPOUT, POLICY], [0.3, 0.2])
    module._warm.clear()
    monkeypatch.setattr(slot_module, "fits", lambda images, device: False)
    assert scores(TRAINING, [DROPOUT, POLICY], [0.3, 0.2]) == expected


@pytest.mark.parametrize(("rates", "said"), [([0.1], "got 1 for 2"), ([0.1, 1.5], "rate must lie in .0, 1., got 1.5")])
def test_image_rates_that_are_none(rates: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TRAINING.fit_many([None, None], rates, [0, 1], CPU)
