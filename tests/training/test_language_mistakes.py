"""Training language models: what diverges and what cannot be used is said, before there is a model where it can be."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from language_tools import VOCABULARY, WORDS, small, write_text
from torch import Tensor

from autodropout.data import MissingData
from autodropout.data.corpora import corpus_in
from autodropout.models.transformer_xl import TransformerXL
from autodropout.training.language import LanguageTraining
from autodropout.training.run import Run

CPU = Run(device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("data"))


def test_divergence(folder: Path) -> None:
    with pytest.raises(FloatingPointError):
        small(folder, lr=1e30, lr_after_cosine=1e30, lr_constant=1e30).fit(None, 0.0, 0, CPU)


@pytest.mark.parametrize(("every", "diverges"), [(4, False), (1, True)])
def test_steps_whose_gradient_is_not_finite(
    folder: Path, monkeypatch: pytest.MonkeyPatch, every: int, diverges: bool
) -> None:
    """They are left out, unless they are most. A deep model under a policy gives such at an ordinary loss."""
    build, calls = LanguageTraining.build, []

    def overflowing(self: LanguageTraining) -> TransformerXL:
        model = build(self)

        def spoil(gradient: Tensor) -> Tensor | None:
            calls.append(len(calls))
            return gradient * torch.inf if len(calls) % every == 0 else None

        model.softmax_bias.register_hook(spoil)
        return model

    monkeypatch.setattr(LanguageTraining, "build", overflowing)
    how = small(folder, evaluate_every=20)
    if diverges:
        with pytest.raises(FloatingPointError, match="the gradient was not finite in 100% of the steps before step 20"):
            how.fit(None, 0.0, 0, CPU)
    else:
        assert how.fit(None, 0.0, 0, CPU).reward > 80 / VOCABULARY
    assert len(calls) == 20


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistakes must be found before there is a model."""

    def build(self: LanguageTraining) -> TransformerXL:
        raise AssertionError("a model was built")

    monkeypatch.setattr(LanguageTraining, "build", build)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": 12}, "ptb has 13 different words there, the model knows 12"),
        ({"batch": 400}, "the training text has 3,000 words, too few for 400 rows of segments of 8"),
        ({"segment": 900}, "the training text has .* too few for 4 rows of segments of 900"),
        ({"evaluation_batch": 90}, "the validation text has 600 words, too few for 90 rows of segments of 8"),
        ({"evaluation_words": 20}, "the validation text has 20 words, too few"),
    ],
)
def test_texts_that_do_not_fit(folder: Path, changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(folder, **changes).fit(None, 0.0, 0, CPU)


@pytest.mark.usefixtures("untrained")
def test_texts_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(MissingData):
        small(tmp_path).fit(None, 0.0, 0, CPU)
    write_text(tmp_path)
    validation, train = tmp_path / "ptb" / "ptb.valid.txt", tmp_path / "ptb" / "ptb.train.txt"
    corpus_in.cache_clear()
    validation.write_text(" ".join(WORDS) + "\nw1 stranger\n")
    with pytest.raises(ValueError, match=r"ptb.valid.txt, line 2: 'stranger' is not in the vocabulary of 13 words"):
        small(tmp_path).fit(None, 0.0, 0, CPU)
    train.write_text("")
    with pytest.raises(ValueError, match=r"ptb.train.txt holds no words"):
        small(tmp_path).fit(None, 0.0, 0, CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": "brown"}, "corpus must be one of ptb, wikitext-2, got 'brown'"),
        ({"steps": 0}, "steps .* got 0"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"clip": -1.0}, "clip must be positive, got -1.0"),
        ({"state_value": -1.0}, "state_value must not be negative, got -1.0"),
        ({"training_words": -8}, "training_words must be at least 1, got -8"),
        ({"cosine_share": 1.7}, r"share must lie in \[0, 1\], got 1.7"),
        ({"warmup": 20}, r"warmup must lie in \[0, 20\), .* got 20"),
        ({"lr_after_cosine": 1.0}, "floor must lie in"),
        ({"evaluation_words": 0}, "evaluation_words must be at least 1, got 0"),
    ],
)
def test_mistakes(folder: Path, changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(folder, **changes)


def test_the_smoke_of_a_long_warm_up_is_a_training(folder: Path) -> None:
    smoke = replace(small(folder), steps=6_000, warmup=2_000).smoke()
    assert 0 < smoke.warmup < smoke.steps
