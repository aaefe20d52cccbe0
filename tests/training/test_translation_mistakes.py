"""What a translator says of a configuration and of text that it cannot use."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from translation_tools import PIECES, TOY, Words, pairs, sentences, toy

from autodropout.data import Pairs, Translation
from autodropout.data.folders import MissingData
from autodropout.data.subwords import EOS, PAD
from autodropout.training.run import Run

CPU = Run(device="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "wmt15"}, "iwslt14, multi30k, tatoeba, wmt14, got 'wmt15'"),
        ({"lowercase": True}, "multi30k is read as it is written"),
        ({"steps": 0}, "steps .* got 0"),
        ({"train": 0}, "train .* got 0"),
        ({"judged": 0}, "judged .* got 0"),
        ({"warmup": 30}, r"warmup .*\[0, 30\).* got 30"),
        ({"lr": 0.0}, "lr .* got 0.0"),
        ({"label_smoothing": 1.0}, "label_smoothing .* got 1.0"),
        ({"tokens": 10}, "10 tokens has no room for a sentence of 10 and its end"),
    ],
)
def test_configurations_that_are_none(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TOY, **change)


def test_that_bleu_is_missing_is_said_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    for name in ("sacrebleu", "sacrebleu.metrics", "sacrebleu.metrics.bleu"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    run = replace(CPU, report=lambda step, reward: heard.append(step))
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'autodropout\[translation\]'"):
        TOY.fit_on(toy(), None, 0.0, 0, run)
    assert heard == []


GOOD = pairs(3, 0)


def one(source: list[int], target: list[int], references: tuple[str, ...] = ("a",)) -> Pairs:
    return Pairs(sentences([source]), sentences([target]), references)


def with_part(name: str, part: Pairs) -> Translation:
    """Around the checks of `Translation` itself, which has some of these."""
    data = object.__new__(Translation)
    parts = {"train": GOOD, "validation": GOOD, "test": GOOD, name: part}
    for field, value in {**parts, "vocabulary": Words(), "left_out": 0}.items():
        object.__setattr__(data, field, value)
    return data


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        ("train", Pairs(sentences([]), sentences([])), "there are no training pairs"),
        ("validation", Pairs(sentences([]), sentences([])), "there are no validation pairs"),
        (
            "train",
            one([5, EOS], [5, PIECES, EOS]),
            f"training target holds the token {PIECES}: not in 1 to {PIECES - 1}",
        ),
        ("test", one([5, -1, EOS], [5, EOS]), "test source holds the token -1"),
        ("train", one([5, PAD, EOS], [5, EOS]), "training source holds the token 0"),
        ("train", one([5] * 11 + [EOS], [5, EOS]), "training pair 0: the source has 12 tokens, the limit is 11"),
        ("validation", one([5, EOS], [5] * 1024 + [EOS]), "validation pair 0: the target has 1025 tokens, .* 1024"),
        ("validation", one([5, EOS], [5, EOS], ()), "1 validation pairs have 0 references"),
        ("train", one([], [5, EOS]), "training pair 0: the source lacks its end"),
        ("train", one([5, 6], [5, EOS]), "training source does not end with its end token"),
    ],
)
def test_text_that_cannot_be_used(name: str, part: Pairs, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TOY.fit_on(with_part(name, part), None, 0.0, 0, CPU)


def test_sources_and_targets_that_are_not_equally_many() -> None:
    with pytest.raises(ValueError, match="1 sources, 2 targets"):
        Pairs(sentences([[EOS]]), sentences([[EOS], [EOS]]))


def test_a_vocabulary_of_another_size() -> None:
    with pytest.raises(ValueError, match=f"{PIECES} subwords, the model {PIECES + 1}"):
        replace(TOY, pieces=PIECES + 1).fit_on(toy(), None, 0.0, 0, CPU)


def test_text_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="multi30k"):
        replace(TOY, data=tmp_path).fit(None, 0.0, 0, CPU)
