"""Comparisons that train many at once: the scores are those of each alone, and what was kept is read again."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from language_tools import small, write_text

import autodropout as ad
from autodropout.recipes.comparison import Row, Variant, compare
from autodropout.training import Cosine, ImageTraining, Pictures, Run, Sgd
from autodropout.training import image_crowd as module
from autodropout.training.display import PlainDisplay
from autodropout.training.language import LanguageTraining
from autodropout.training.run import Report, Scores

IMAGES = ImageTraining(
    model="wrn-10-1", pictures=Pictures(name="digits", train=60, validation=40), resolution=20, steps=6, batch=8,
    optimizer=Sgd(lr=0.05), schedule=Cosine(), evaluate_every=3,
)  # fmt: skip
POLICY = IMAGES.space().sample(seed=0)
VARIANTS = [Variant("none", None, 0.0), Variant("policy", POLICY, 0.4), Variant("dropout", ad.baseline("dropout"), 0.9)]
CPU = Run(device="cpu", test=True)

crowds: list[int] = []


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    crowds.clear()
    for kind in (ImageTraining, LanguageTraining):
        plain = kind.fit_many

        def counted(self: object, regularizers: Sequence[object], *others: object, plain=plain) -> list[float]:
            crowds.append(len(regularizers))
            return plain(self, regularizers, *others)

        monkeypatch.setattr(kind, "fit_many", counted)


def told(scores: Scores) -> dict[str, float]:
    """What a crowd has of what `fit` says."""
    return {name: value for name, value in scores.metrics.items() if name not in ("steps_per_s", "train_loss")}


def test_images_at_once_are_images_one_by_one(tmp_path: Path) -> None:
    alone = compare(IMAGES, VARIANTS, range(2), tmp_path / "alone", CPU)
    assert crowds == []
    at_once = compare(IMAGES, VARIANTS, range(2), tmp_path / "at once", CPU, together=5)
    assert crowds == [5, 1], "one that is left over leaves what the others leave"
    assert [(row.variant, row.seed) for row in at_once] == [(row.variant, row.seed) for row in alone]
    for one, other in zip(at_once, alone, strict=True):
        assert one.scores.reward == other.scores.reward
        assert dict(one.scores.metrics).items() <= dict(other.scores.metrics).items()
        assert set(one.scores.metrics) == {"validation_accuracy", "test_accuracy"}
    again = compare(IMAGES, VARIANTS, range(2), tmp_path / "at once", CPU)
    assert again == at_once
    assert all(row.was_finished for row in again)
    assert not list((tmp_path / "at once").rglob("*.safetensors")), "scores only"


def test_language_models_too_and_baselines_alone(tmp_path: Path) -> None:
    training = small(write_text(tmp_path), lr=2e-2)
    policy = training.space().sample(seed=0)
    everywhere = Variant("variational", ad.baseline("variational_dropout"), 0.1)
    variants = [everywhere, *(Variant(f"rate {rate}", policy, rate) for rate in (0.1, 0.3, 0.6))]
    rows = compare(training, variants, [3], tmp_path / "out", CPU, together=8)
    assert crowds == [3], "a baseline is code, and policies of one crowd are tokens"
    assert [row.variant for row in rows] == variants, "the first stays the first"
    for row in rows:
        alone = training.fit(row.variant.regularizer, row.variant.rate, 3, CPU)
        assert row.scores.reward == pytest.approx(alone.reward, rel=1e-3)
        assert told(row.scores) == pytest.approx(told(alone), rel=1e-3)


def test_a_final_run_that_holds_nothing_out_is_trained_alone() -> None:
    final = replace(IMAGES, pictures=Pictures(name="cifar10", train=50_000, validation=0), resolution=32)
    assert IMAGES.crowded(None)
    assert not final.crowded(None)


def test_one_that_diverges_is_named_and_the_others_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit_many(
        self: ImageTraining, regularizers: Sequence[object], rates: Sequence[float], seeds: Sequence[int], run: Run,
        reports: Sequence[Report], test_reports: Sequence[Report] | None,
    ) -> list[float]:  # fmt: skip
        for report in reports[1:]:
            report(self.steps, 0.5)
        return [math.nan, *[0.5] * (len(regularizers) - 1)]

    monkeypatch.setattr(ImageTraining, "fit_many", fit_many)
    run = Run(device="cpu")
    for _ in range(2):  # what has diverged is not trained again either
        rows = compare(IMAGES, VARIANTS, [7], tmp_path, run, together=3)
        assert [row.scores and row.scores.reward for row in rows] == [None, 0.5, 0.5]
        monkeypatch.setattr(ImageTraining, "fit_many", None)


def test_progress_is_one_line_an_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module._warm.clear()
    compare(IMAGES, VARIANTS, [0], tmp_path, replace(CPU, show=True), together=3)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert [line.split(",")[0] for line in lines] == ["step 3/6", "step 6/6"]
    assert "score 0." in lines[-1]


def test_a_display_that_fails_is_no_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be kept as the result of the training."""

    def full(*given: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(PlainDisplay, "evaluated", full)
    with pytest.raises(OSError, match="no space left"):
        compare(IMAGES, VARIANTS, [0], tmp_path, replace(CPU, show=True), together=3)
    assert not list(tmp_path.rglob("scores.json"))


def test_whoever_watches_may_fail_and_nothing_is_lost(tmp_path: Path) -> None:
    def watch(row: Row) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        compare(IMAGES, VARIANTS, [0], tmp_path, CPU, watch, together=3)
    assert len(list(tmp_path.glob("*/seed-0/scores.json"))) == 3


def test_at_once_means_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got together=0"):
        compare(IMAGES, VARIANTS, [0], tmp_path, CPU, together=0)
