"""Image trainings: seed and policy decide everything, resumes are exact, testing is clean, mistakes are said early."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from small_images import PICTURES, TRAINING, busy
from torch import Tensor, nn

import autodropout as ad
from autodropout.data import Labelled, Splits, digits
from autodropout.models import image_model
from autodropout.training import Cosine, FixRes, ImageTraining, Pictures, Run, Sgd, image_learner, threads
from autodropout.training import images as module
from autodropout.training.augment import MIXES
from autodropout.training.run import Scores
from tiny_images import tiny_imagenette

POLICY = TRAINING.space().sample(seed=0)
BUSY = busy(TRAINING)

Look = Callable[[nn.Module, Tensor], None]


def watch(monkeypatch: pytest.MonkeyPatch, look: Look) -> None:
    """Let every model that is built show its inputs, in training and in testing."""

    def build(name: str, classes: int, *, channels: int) -> nn.Module:
        model = image_model(name, classes, channels=channels)
        model.register_forward_pre_hook(lambda module, args: look(module, args[0]))
        return model

    monkeypatch.setattr(module, "image_model", build)


def outcome(scores: Scores) -> dict[str, float]:
    return {name: value for name, value in scores.metrics.items() if name != "steps_per_s"} | {"": scores.reward}


def test_it_learns() -> None:
    training = replace(TRAINING, steps=60, optimizer=Sgd(lr=0.1))
    assert training.fit(None, 0.0, seed=0).reward > 0.6  # 6 times chance; the slow tests have the real bounds


def test_policy_and_seed_decide_everything() -> None:
    first = outcome(BUSY.fit(POLICY, 0.3, seed=3))
    torch.rand(7)  # whatever else drew numbers before
    assert outcome(BUSY.fit(POLICY, 0.3, seed=3)) == first
    assert outcome(BUSY.fit(POLICY, 0.3, seed=4)) != first
    assert outcome(BUSY.fit(POLICY, 0.2, seed=3)) != first
    assert outcome(BUSY.fit(None, 0.0, seed=3)) != first
    assert outcome(pickle.loads(pickle.dumps(BUSY)).fit(POLICY, 0.3, seed=3)) == first


def test_the_order_of_the_images_does_not_depend_on_what_the_masks_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    def order(policy: ad.Policy | None) -> list[Tensor]:
        seen: list[Tensor] = []
        with monkeypatch.context() as patch:
            watch(patch, lambda model, images: seen.append(images.clone()) if model.training else None)
            TRAINING.fit(policy, 0.5, seed=5)
        return seen

    plain, masked = order(None), order(POLICY)
    assert len(plain) == TRAINING.steps
    assert all(map(torch.equal, plain, masked))
    assert len(torch.cat(plain)[:100].unique(dim=0)) == len(torch.cat(plain)[:100]), "an epoch shows every image once"


def test_testing_never_augments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    watch(monkeypatch, lambda model, images: seen.append(images.clone()) if not model.training else None)
    BUSY.fit(None, 0.0, seed=0, run=Run(test=True))
    splits = PICTURES.load()
    images = torch.cat([images for images in seen if len(images) > 1])  # attaching and mixing look at one image
    validation, test = len(splits.validation), len(splits.test)
    assert len(images) == 3 * validation + test, "evaluated after steps 4, 8 and 10, tested once"
    for start in range(0, 3 * validation, validation):
        assert torch.equal(images[start : start + validation], splits.validation.images / 255 * 2 - 1)
    assert torch.equal(images[3 * validation :], splits.test.images / 255 * 2 - 1)


def test_the_test_part_is_looked_at_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    accuracies = image_learner.accuracies

    def spy(model: nn.Module, look: object, examples: Labelled, *rest: object) -> dict[str, float]:
        judged.append(len(examples))
        return accuracies(model, look, examples, *rest)

    monkeypatch.setattr(image_learner, "accuracies", spy)
    test = len(PICTURES.load().test)
    scores = TRAINING.fit(POLICY, 0.2, seed=0)
    assert judged == [100]
    assert not any(name.startswith("test") for name in scores.metrics)
    assert 0.0 < TRAINING.fit(POLICY, 0.2, seed=0, run=Run(test=True)).metrics["test_accuracy"] < 1.0
    assert judged == [100, 100, test]


def test_reports_and_what_a_report_raises() -> None:
    heard: list[tuple[int, float]] = []
    scores = replace(TRAINING, evaluate_every=4).fit(None, 0.0, 0, Run(report=lambda *one: heard.append(one)))
    assert [step for step, _ in heard] == [4, 8, 10]
    assert heard[-1][1] == scores.reward
    assert TRAINING.fit(None, 0.0, 0).reward == scores.reward, "judging changes nothing in the training"

    class Enough(Exception):
        pass

    def report(step: int, value: float) -> None:
        raise Enough

    with pytest.raises(Enough):
        TRAINING.fit(None, 0.0, 0, Run(report=report))


class Killed(BaseException):
    """As hard as a power cut: nothing is saved on its way out."""


@pytest.mark.parametrize("mix", ["cutmix", "manifold_mixup"])
def test_a_killed_training_resumes_to_the_same_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mix: str) -> None:
    training = replace(BUSY, mix=mix)
    run = Run(folder=tmp_path / "killed", checkpoint_every=3)
    whole = outcome(training.fit(POLICY, 0.3, seed=1, run=replace(run, folder=tmp_path / "whole")))
    for kill_at in (5, 3):  # in the first run at step 5; the second goes on after step 3
        done = 0

        def die(model: nn.Module, images: Tensor, kill_at: int = kill_at) -> None:
            nonlocal done
            done += model.training
            if done == kill_at:
                raise Killed

        with monkeypatch.context() as patch:
            watch(patch, die)
            with pytest.raises(Killed):
                training.fit(POLICY, 0.3, seed=1, run=run)
    assert outcome(training.fit(POLICY, 0.3, seed=1, run=run)) == whole
    again = training.fit(POLICY, 0.3, seed=1, run=replace(run, test=True))
    assert "test_accuracy" in again.metrics, "a finished training can still be tested"
    assert again.reward == whole[""]


def test_the_moving_average_is_what_is_judged() -> None:
    training = replace(TRAINING, steps=30, optimizer=Sgd(lr=0.1))
    plain = training.fit(None, 0.0, 0)
    assert replace(training, average=1e-9).fit(None, 0.0, 0).reward == plain.reward, "an average that forgets at once"
    lagging = replace(training, average=0.9999).fit(None, 0.0, 0)
    assert lagging.metrics["train_loss"] == plain.metrics["train_loss"], "it does not touch the training"
    assert lagging.reward != plain.reward


def test_the_weights_that_were_judged_are_left_in_the_folder(tmp_path: Path) -> None:
    training = replace(TRAINING, steps=30, optimizer=Sgd(lr=0.1), average=0.8)
    reward = training.fit(POLICY, 0.1, seed=0, run=Run(folder=tmp_path)).reward
    model = training.build()
    safetensors.torch.load_model(model, tmp_path / module.WEIGHTS)
    found = image_learner.accuracies(model, PICTURES.view("none", 12), PICTURES.load().validation, 10, Run())
    assert found["accuracy"] == reward


def test_the_rate_rises_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    watch(monkeypatch, lambda model, _: rates.append(ad.attached(model).rate) if model.training else None)
    replace(TRAINING, rates="linear").fit(POLICY, 0.5, seed=0)
    assert rates == pytest.approx([0.05 * step for step in range(10)])


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_trains_and_comes_off_again(mix: str) -> None:
    training = replace(TRAINING, mix=mix, label_smoothing=0.1, steps=12)  # of which MoEx exchanges in a quarter
    loss = training.fit(POLICY, 0.2, seed=0).metrics["train_loss"]
    assert 1.0 < loss < 4.0
    if mix != "none":
        assert loss != replace(training, mix="none").fit(POLICY, 0.2, seed=0).metrics["train_loss"]


def test_a_baseline_goes_on_like_a_policy() -> None:
    rewards = {
        name: outcome(TRAINING.fit(ad.baseline(name), 0.3, seed=0)) for name in ("dropout", "dropblock", "drop_path")
    }
    assert len({tuple(found.items()) for found in rewards.values()}) == 3


def test_divergence() -> None:
    with pytest.raises(FloatingPointError, match=r"train_loss is (nan|inf)|logits are not finite"):
        replace(TRAINING, optimizer=Sgd(lr=1e20)).fit(None, 0.0, 0)


def test_a_last_step_into_nan_is_divergence_too() -> None:
    """One step at a finite loss, then weights that are not finite: only what the model says afterwards shows it."""
    with pytest.raises(FloatingPointError, match="logits"):
        replace(TRAINING, steps=1, optimizer=Sgd(lr=1e38, weight_decay=0.0)).fit(None, 0.0, 0)


def test_bfloat16_trains() -> None:
    exact, rounded = (TRAINING.fit(POLICY, 0.2, 0, Run(precision=name)) for name in ("float32", "bfloat16"))
    assert rounded.metrics["train_loss"] == pytest.approx(exact.metrics["train_loss"], rel=0.1)
    assert rounded.metrics["train_loss"] != exact.metrics["train_loss"]


def test_fixres_fine_tunes_the_head_and_tests_larger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pictures = Pictures(name="imagenette", train=40, validation=20, folder=tiny_imagenette(tmp_path))
    training = ImageTraining(
        model="wrn-10-1",
        pictures=pictures,
        resolution=32,
        steps=2,
        batch=8,
        optimizer=Sgd(lr=0.1),
        schedule=Cosine(),
        augmentation="imagenet",
        fixres=FixRes(resolution=48, steps=3, batch=8, lr=0.1),
    )
    models: list[nn.Module] = []
    weights: list[dict[str, Tensor]] = []
    modes: list[list[str]] = []

    def look(model: nn.Module, images: Tensor) -> None:
        models.append(model)
        if images.shape[-1] == 48:
            weights.append({name: value.clone() for name, value in model.state_dict().items()})
            modes.append([name for name, module in model.named_modules() if module.training])
            assert ad.attached(model) is None

    watch(monkeypatch, look)
    run = Run(folder=tmp_path / "run", test=True)
    scores = training.fit(POLICY, 0.3, seed=0, run=run)
    changed = {name for name, value in weights[-1].items() if not torch.equal(value, weights[0][name])}
    assert {name.rsplit(".", 1)[0] for name in changed} == {"norm", "classifier"}
    assert modes[:3] == [["norm"]] * 3
    assert all(weight.requires_grad for weight in models[-1].parameters())
    assert {"validation_before_fixres_accuracy", "validation_accuracy", "test_accuracy"} <= scores.metrics.keys()
    seen = len(weights)
    assert outcome(training.fit(POLICY, 0.3, seed=0, run=run)) == outcome(scores), "finished in both parts"
    assert len(weights) < 2 * seen, "it did not train again"


def test_the_space_needs_no_data_and_smoke_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pictures, "load", lambda self: pytest.fail("the data were asked for"))
    assert TRAINING.space() == ad.ConvSpace(groups=((12, 12), (6, 6), (3, 3)), resolution=(12, 12))
    small = replace(TRAINING, model="wrn-28-10", steps=100_000).smoke()
    assert (small.model, small.augmentation, small.optimizer) == ("wrn-10-1", TRAINING.augmentation, TRAINING.optimizer)
    assert small.steps <= 10


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()

    def fail_on(count: int) -> None:
        with threads(count):
            raise RuntimeError(f"failed on {torch.get_num_threads()} threads")

    with pytest.raises(RuntimeError, match=f"failed on {before + 1} threads"):
        fail_on(before + 1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps .* got 0"),
        ({"batch": 0}, "batch .* got 0"),
        ({"evaluate_every": 0}, "evaluate_every .* got 0"),
        ({"label_smoothing": 1.0}, "label_smoothing .* got 1.0"),
        ({"model": "wrn-11-1"}, "depth must be 6 n .* got 11"),
        ({"model": "resnet50"}, "resnet50 takes images of 3 channels, got 1"),
        ({"mix": "cutmixx"}, "mix must be one of .*cutmix.*, got 'cutmixx'"),
        ({"rates": "linar"}, "rates must be one of constant, .*, got 'linar'"),
        ({"average": 1.5}, "decay must lie between 0 and 1, got 1.5"),
        ({"schedule": Cosine(warmup=TRAINING.steps)}, r"warmup must lie in \[0, 10\), .* got 10"),
        ({"augmentation": "fog"}, "no augmentation is called 'fog'; there are none, standard"),
        ({"resolution": 20}, "images of 12x12 as they are, not at 20"),
        ({"fixres": FixRes(resolution=16, steps=1, batch=1)}, "FixRes needs images that are resized"),
    ],
)
def test_mistakes(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TRAINING, **change)


@pytest.mark.parametrize("size", [0, -16])
def test_a_size_that_is_none(size: int) -> None:
    with pytest.raises(ValueError, match=f"size must be at least 1, got {size}"):
        replace(PICTURES, size=size)


def test_the_smoke_of_a_long_warm_up_is_a_training() -> None:
    smoke = replace(TRAINING, schedule=Cosine(warmup=8)).smoke()
    assert 0 < smoke.schedule.warmup < smoke.steps


LABELS = torch.zeros(4, dtype=torch.int64)
IMAGES = torch.zeros(4, 1, 12, 12)


def digits_with(**change: Labelled) -> Callable[..., Splits]:
    """The digits, some parts of which are replaced."""
    splits = replace(digits.load(100, 100, 12), **change)
    return lambda *_, **__: splits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": Labelled(IMAGES, LABELS + 10)}, r"training labels must lie in 0\.\.9, got 10\.\.10"),
        ({"validation": Labelled(IMAGES, LABELS - 1)}, r"validation labels must lie in 0\.\.9, got -1\.\.-1"),
        ({"train": Labelled(IMAGES[..., :8], LABELS)}, r"training images must be \(1, 12, 12\) .* got \(1, 12, 8\)"),
        ({"validation": Labelled(IMAGES.expand(4, 3, 12, 12), LABELS)}, r"validation images .* got \(3, 12, 12\)"),
        ({"train": Labelled(IMAGES[:0], LABELS[:0])}, "no training images"),
        ({"validation": Labelled(IMAGES[:0], LABELS[:0])}, "keeps none for validation"),
    ],
)
def test_bad_data_is_said_before_training(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Labelled], message: str
) -> None:
    monkeypatch.setattr(digits, "load", digits_with(**change))
    monkeypatch.setattr(module, "image_model", lambda *_, **__: pytest.fail("it went on to the model"))
    with pytest.raises(ValueError, match=message):
        TRAINING.fit(None, 0.0, 0)


def test_a_final_run_that_does_not_ask_for_the_test_is_refused_before_images_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(digits, "load", lambda *_, **__: pytest.fail("it read the images"))
    with pytest.raises(ValueError, match=r"^a full-size run trains on all .* none for validation: add --test \(in"):
        replace(TRAINING, pictures=replace(PICTURES, validation=0)).fit(None, 0.0, 0)


def test_asking_for_the_test_does_not_help_where_there_are_no_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    none = Labelled(IMAGES[:0], LABELS[:0])
    monkeypatch.setattr(digits, "load", digits_with(validation=none, test=none))
    with pytest.raises(ValueError, match="neither validation nor test images"):
        TRAINING.fit(None, 0.0, 0, Run(test=True))


def test_without_validation_a_final_run_is_judged_by_the_test_part_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "load", digits_with(validation=Labelled(IMAGES[:0], LABELS[:0])))
    heard: list[int] = []
    run = Run(test=True, report=lambda step, value: heard.append(step))
    scores = replace(TRAINING, evaluate_every=2).fit(None, 0.0, 0, run)
    assert heard == [10]
    assert scores.reward == scores.metrics["test_accuracy"]
