"""The parts of an image training, each against a case that can be worked out by hand."""

import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, RMSprop

from autodropout.data import Labelled
from autodropout.models import wide_resnet
from autodropout.training import Cosine, Exponential, Pictures, RmsProp, Run, Sgd, SlowCosine, Stairs
from autodropout.training import feed as feed_module
from autodropout.training.descent import Schedule
from autodropout.training.ema import MovingAverage
from autodropout.training.feed import Feed
from autodropout.training.judging import accuracies
from tiny_images import tiny_imagenette

CPU = torch.device("cpu")


# --- optimizers and learning rates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Cosine(), {0: 1.0, 50: 0.5, 100: 0.0}),
        (Cosine(warmup=10), {0: 0.1, 9: 1.0, 10: 1.0, 55: 0.5, 100: 0.0}),
        (SlowCosine(), {0: 1.0, 50: math.cos(7 * math.pi / 32), 100: math.cos(7 * math.pi / 16)}),
        (SlowCosine(warmup=20), {0: 0.05, 19: 1.0, 20: 1.0, 60: math.cos(7 * math.pi / 32)}),
        (Stairs(at=(30, 60), factor=0.1), {0: 1.0, 29: 1.0, 30: 0.1, 59: 0.1, 60: 0.01, 99: 0.01}),
        (Exponential(every=25, factor=0.5, warmup=5), {0: 0.2, 4: 1.0, 24: 1.0, 25: 0.5, 75: 0.125}),
    ],
)
def test_learning_rates(schedule: Schedule, factors: dict[int, float]) -> None:
    at = schedule.factors(100)
    assert {step: at(step) for step in factors} == pytest.approx(factors, abs=1e-9)


def test_the_optimizers_get_their_numbers() -> None:
    model = wide_resnet(10, 1, 10)
    sgd = Sgd(lr=0.3, momentum=0.8, weight_decay=1e-3).over(model)
    assert isinstance(sgd, SGD)
    assert [(g["lr"], g["momentum"], g["weight_decay"], g["nesterov"]) for g in sgd.param_groups] == [
        (0.3, 0.8, 1e-3, True)
    ]
    rms = RmsProp(lr=0.1, memory=0.7).over(model)
    assert isinstance(rms, RMSprop)
    assert [(g["lr"], g["alpha"], g["momentum"], g["weight_decay"]) for g in rms.param_groups] == [
        (0.1, 0.7, 0.9, 1e-5),
        (0.1, 0.7, 0.9, 0.0),
    ]


def test_normalizations_and_biases_can_be_spared_the_decay() -> None:
    """Without gradients, one step of plain SGD multiplies what decays by 1 - lr * decay, and leaves the rest alone."""
    model = wide_resnet(10, 1, 10)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    Sgd(lr=0.5, momentum=0.0, weight_decay=0.1, decay_all=False).over(model).step()
    for name, weight in model.named_parameters():
        spared = name.endswith("bias") or "norm" in name
        torch.testing.assert_close(weight.detach(), before[name] * (1.0 if spared else 0.95))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sgd(lr=0.0), "lr .* got 0.0"),
        (lambda: RmsProp(lr=-1.0), "lr .* got -1.0"),
        (lambda: Sgd(lr=0.1, momentum=1.0), "momentum .* got 1.0"),
        (lambda: Sgd(lr=0.1, weight_decay=-1e-4), "weight_decay .* got -0.0001"),
        (lambda: Stairs(at=(5, 3)), r"must rise, got \(5, 3\)"),
        (lambda: Exponential(every=0), "every .* got 0"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# --- the moving average ----------------------------------------------------------------------------------------------


def one_weight(value: float) -> nn.Module:
    model = nn.BatchNorm2d(1)
    nn.init.constant_(model.weight, value)
    return model


def test_the_average_follows_weights_and_statistics() -> None:
    model = one_weight(0.0)
    average = MovingAverage(model, decay=0.5)
    expected, mean = 0.0, 0.0
    for step, value in enumerate((1.0, 3.0, -2.0, 8.0)):
        nn.init.constant_(model.weight, value)
        model.running_mean.fill_(10 * value)
        average.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected, mean = decay * expected + (1 - decay) * value, decay * mean + (1 - decay) * 10 * value
    with average.applied():
        assert model.weight.item() == pytest.approx(expected)
        assert model.running_mean.item() == pytest.approx(mean)
    assert (model.weight.item(), model.running_mean.item()) == (8.0, 80.0)


def test_the_average_is_saved_and_restored() -> None:
    first, second = one_weight(1.0), one_weight(5.0)
    average, other = MovingAverage(first, 0.9), MovingAverage(second, 0.9)
    nn.init.constant_(first.weight, 2.0)
    average.update()
    other.load_state_dict(average.state_dict())
    for model, one in ((first, average), (second, other)):
        nn.init.constant_(model.weight, 4.0)
        one.update()
    with average.applied(), other.applied():
        assert first.weight.item() == second.weight.item()
    assert other.updates == 2
    with pytest.raises(ValueError, match="another model"):
        other.load_state_dict(MovingAverage(nn.Linear(2, 2), 0.9).state_dict())
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.0"):
        MovingAverage(first, 1.0)


# --- images on their way ---------------------------------------------------------------------------------------------


def numbered(count: int) -> Labelled:
    """Images that say which they are."""
    numbers = torch.arange(count)
    return Labelled(numbers.to(torch.uint8)[:, None, None, None].expand(count, 1, 2, 2).contiguous(), numbers)


def test_images_that_do_not_fit_come_from_a_thread_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Feed(numbered(30), 8, seed=3, device=CPU)
    monkeypatch.setattr(feed_module, "fits", lambda images, device: False)
    before = set(threading.enumerate())
    streamed = Feed(numbered(30), 8, seed=3, device=CPU)
    for step in (0, 1, 2, 3, 7, 8):  # a resumed training starts anywhere
        images, labels = streamed(step)
        for ours, theirs in zip((images, labels), kept(step), strict=True):
            assert torch.equal(ours, theirs)
        assert torch.equal(images[:, 0, 0, 0].long(), labels)
    (thread,) = set(threading.enumerate()) - before
    streamed.close()
    assert not thread.is_alive()


# --- judging ---------------------------------------------------------------------------------------------------------


class Names(nn.Module):
    """Names the class by the first pixel, and the next four after it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, images: Tensor) -> Tensor:
        distance = (torch.arange(self.classes) - images[:, 0, 0, 0, None]) % self.classes
        return -distance


def test_accuracies_count_over_batches() -> None:
    images, labels = torch.zeros(450, 1, 1, 1), torch.zeros(450, dtype=torch.int64)
    labels[::3] = 4  # 150 of the 450, in every batch some; among the first five
    labels[:90:3] = 5  # not among them
    examples = Labelled(images, labels)
    assert accuracies(Names(10), nn.Identity(), examples, 10, Run()) == {"accuracy": 300 / 450}
    assert accuracies(Names(100), nn.Identity(), examples, 100, Run()) == {"accuracy": 300 / 450, "top5": 420 / 450}


def test_judging_leaves_the_model_in_eval_mode_and_finds_nan() -> None:
    model = Names(3).train()
    examples = Labelled(torch.zeros(5, 1, 1, 1), torch.zeros(5, dtype=torch.int64))
    assert accuracies(model, nn.Identity(), examples, 3, Run())["accuracy"] == 1.0
    assert not model.training
    examples.images[3] = math.nan
    with pytest.raises(FloatingPointError, match="logits"):
        accuracies(model, nn.Identity(), examples, 3, Run())


# --- pictures --------------------------------------------------------------------------------------------------------


def test_digits_keep_their_values_as_bytes() -> None:
    pictures = Pictures(name="digits", train=50, validation=20)
    view = pictures.view("none", 20)
    shown = view(pictures.load().train.images)
    assert shown.shape == (50, 1, 20, 20)
    assert (shown.min(), shown.max()) == (-1.0, 1.0)
    assert pictures.view("standard", 20).steps[0].flip is False, "a mirrored digit is none"


@pytest.mark.parametrize("name", ["digits", "digits-on-noise"])
def test_few_labels_and_the_rest_without(name: str) -> None:
    pictures = Pictures(name=name, train=50, validation=100, size=8)
    splits = pictures.load_semi()
    assert len(splits.train) == 50
    assert splits.train.labels.bincount().tolist() == [5] * 10
    assert splits.unlabelled.shape == (950, 1, 8, 8)
    whole = torch.cat((splits.train.images, splits.unlabelled, splits.validation.images))
    assert len(whole) == 1100
    labelled = {image.numpy().tobytes() for image in splits.train.images}
    assert labelled.isdisjoint(image.numpy().tobytes() for image in splits.unlabelled)


def test_image_files_are_read_at_the_size_asked_for(tmp_path: Path) -> None:
    pictures = Pictures(name="imagenette", train=40, validation=20, size=48, folder=tiny_imagenette(tmp_path))
    splits = pictures.load()
    assert splits.train.images.shape == (40, 3, 48, 48)
    assert pictures.view("imagenet", 32)(splits.train.images).shape == (40, 3, 32, 32)
    assert replace(pictures, train=30).load_semi().unlabelled.shape == (10, 3, 48, 48)
    with pytest.raises(ValueError, match="imagenette: with 40 labels there are no images left without"):
        pictures.load_semi()


def test_unknown_pictures() -> None:
    with pytest.raises(ValueError, match="'mnist' is not a dataset of images; there are digits, digits-on-noise"):
        Pictures(name="mnist", train=10, validation=10)
    with pytest.raises(ValueError, match="cifar10: say how many"):
        Pictures(name="cifar10", train=None, validation=10).load()
