"""Learning from unlabelled images: the losses in closed form, and trainings with either method."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autodropout.models import image_model
from autodropout.training import Cosine, Pictures, Run, Sgd
from autodropout.training import images as images_module
from autodropout.training.consistency import (
    annealed_cross_entropy,
    fixmatch_loss,
    signal_threshold,
    uda_loss,
)
from autodropout.training.semi_supervised import FixMatch, SemiSupervisedTraining, Uda

TRAINING = SemiSupervisedTraining(
    model="wrn-10-1",
    pictures=Pictures(name="digits", train=50, validation=100, size=12),
    resolution=12,
    steps=6,
    batch=10,
    ratio=2,
    method=Uda(threshold=0.15),  # an untrained network is confident of nothing
    optimizer=Sgd(lr=0.05),
    schedule=Cosine(),
    average=0.9,
    evaluate_every=3,
)


def logits(*probabilities: list[float]) -> Tensor:
    """Whose softmax these are, however they are shifted."""
    return torch.tensor(probabilities).log() + torch.randn(len(probabilities), 1)


# --- training signal annealing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annealing", "risen"),  # at the start, half way, at the end (Xie et al., section 2.3)
    [
        ("linear", (0.0, 0.5, 1.0)),
        ("log", (0.0, 1 - math.exp(-2.5), 1 - math.exp(-5))),
        ("exp", (math.exp(-5), math.exp(-2.5), 1.0)),
        ("none", (1.0, 1.0, 1.0)),
    ],
)
def test_the_threshold_rises_from_chance_to_certainty(annealing: str, risen: tuple[float, ...]) -> None:
    for classes in (2, 10):
        found = [signal_threshold(annealing, progress, classes) for progress in (0.0, 0.5, 1.0)]
        assert found == pytest.approx([1 / classes + share * (1 - 1 / classes) for share in risen])


def test_images_that_are_known_too_well_are_left_out() -> None:
    known = logits([0.9, 0.05, 0.05], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]).requires_grad_()
    labels = torch.tensor([0, 1, 2])
    loss = annealed_cross_entropy(known, labels, threshold=0.7)
    assert loss.item() == pytest.approx(-(math.log(0.6) + math.log(0.4)) / 2, abs=1e-6)
    loss.backward()
    assert known.grad[0].abs().sum() == 0
    assert (known.grad[1:].abs().sum(1) > 0).all()
    assert annealed_cross_entropy(known, labels, threshold=0.1).item() == 0.0
    torch.testing.assert_close(annealed_cross_entropy(known, labels, 1.0), F.cross_entropy(known, labels))


# --- consistency -----------------------------------------------------------------------------------------------------


def test_uda_by_hand() -> None:
    """Sharpened at temperature 1/2, probabilities are squared and normalized; the second image is not confident."""
    weak, strong = logits([0.8, 0.2], [0.55, 0.45]), logits([0.5, 0.5], [0.1, 0.9])
    loss, confident = uda_loss(weak, strong, temperature=0.5, threshold=0.7)
    p = 0.64 / 0.68
    divergence = p * math.log(p / 0.5) + (1 - p) * math.log((1 - p) / 0.5)
    assert loss.item() == pytest.approx(divergence / 2, abs=1e-6)  # the mean is over both
    assert confident.item() == 0.5


def test_sharpening_does_not_decide_who_is_confident() -> None:
    weak, strong = logits([0.6, 0.4]), logits([0.5, 0.5])
    assert uda_loss(weak, strong, temperature=0.01, threshold=0.7)[1].item() == 0.0
    assert uda_loss(weak, strong, temperature=1.0, threshold=0.5)[1].item() == 1.0


def test_without_sharpening_agreement_costs_nothing() -> None:
    weak = logits([0.6, 0.3, 0.1])
    assert uda_loss(weak, weak + 3.0, temperature=1.0, threshold=0.0)[0].item() == pytest.approx(0.0, abs=1e-6)


def test_fixmatch_by_hand() -> None:
    weak, strong = logits([0.96, 0.04], [0.1, 0.9]), logits([0.25, 0.75], [0.5, 0.5])
    loss, confident = fixmatch_loss(weak, strong, threshold=0.95)
    assert loss.item() == pytest.approx(-math.log(0.25) / 2, abs=1e-6)
    assert confident.item() == 0.5


@pytest.mark.parametrize("method", ["uda", "fixmatch"])
def test_gradients_flow_through_the_strong_view_alone(method: str) -> None:
    weak, strong = torch.randn(8, 5, requires_grad=True), torch.randn(8, 5, requires_grad=True)
    loss, _ = uda_loss(weak, strong, 0.4, 0.3) if method == "uda" else fixmatch_loss(weak, strong, 0.3)
    loss.backward()
    assert weak.grad is None
    confident = F.softmax(weak, dim=1).amax(1) >= 0.3
    assert torch.equal(strong.grad.abs().sum(1) > 0, confident)
    assert confident.sum() > 0


def test_nobody_confident_is_no_loss_and_no_nan() -> None:
    weak, strong = torch.zeros(4, 3), torch.randn(4, 3, requires_grad=True)
    for loss, confident in (uda_loss(weak, strong, 0.4, 0.8), fixmatch_loss(weak, strong, 0.95)):
        loss.backward()
        assert (loss.item(), confident.item()) == (0.0, 0.0)
    assert strong.grad.abs().sum() == 0


# --- trainings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Uda(threshold=0.15), Uda(annealing="exp"), FixMatch(threshold=0.15)])
def test_a_training_repeats_and_resumes(method: Uda | FixMatch, tmp_path: Path) -> None:
    training = replace(TRAINING, method=method)
    policy = training.space().sample(seed=1)
    whole = training.fit(policy, 0.2, seed=2).metrics

    class Killed(BaseException):
        pass

    def die(step: int, value: float) -> None:
        raise Killed

    with pytest.raises(Killed):
        training.fit(policy, 0.2, 2, Run(folder=tmp_path, checkpoint_every=2, report=die))
    resumed = training.fit(policy, 0.2, 2, Run(folder=tmp_path)).metrics
    for name in whole.keys() - {"steps_per_s"}:
        assert resumed[name] == whole[name]


def test_a_step_sees_labels_and_two_views_and_only_few_labels_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def build(name: str, classes: int, *, channels: int) -> nn.Module:
        model = image_model(name, classes, channels=channels)
        model.register_forward_pre_hook(lambda m, args: seen.append(args[0].clone()) if m.training else None)
        return model

    monkeypatch.setattr(images_module, "image_model", build)
    metrics = TRAINING.fit(None, 0.0, seed=0).metrics
    assert [len(images) for images in seen] == [10 + 2 * 20] * 6
    weak, strong = seen[0][10:30], seen[0][30:]
    assert not torch.equal(weak, strong)
    assert metrics["confident"] > 0
    assert metrics["train_loss"] == pytest.approx(metrics["supervised_loss"] + metrics["consistency_loss"], rel=1e-5)


def test_the_weight_counts() -> None:
    light, heavy = (replace(TRAINING, method=Uda(threshold=0.15, weight=w), steps=1).fit(None, 0.0, 0) for w in (0, 3))
    assert light.metrics["train_loss"] == light.metrics["supervised_loss"]
    expected = heavy.metrics["supervised_loss"] + 3 * heavy.metrics["consistency_loss"]
    assert heavy.metrics["train_loss"] == pytest.approx(expected, rel=1e-5)
    assert heavy.metrics["consistency_loss"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio": 0}, "ratio .* got 0"),
        ({"mix": "mixup"}, "neither mixed nor smoothed"),
        ({"label_smoothing": 0.1}, "neither mixed nor smoothed"),
        ({"strong": "fog"}, "no augmentation is called 'fog'"),
        ({"steps": 0}, "steps .* got 0"),
    ],
)
def test_mistakes(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TRAINING, **change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uda(threshold=1.5), "threshold .* got 1.5"),
        (lambda: Uda(temperature=0.0), "temperature .* got 0.0"),
        (lambda: Uda(annealing="square"), "annealing must be .* got 'square'"),
        (lambda: FixMatch(weight=-1.0), "weight .* got -1.0"),
    ],
)
def test_mistakes_of_methods(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
