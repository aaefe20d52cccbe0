"""A small text in Penn Treebank's layout, a training on it that takes a second, children alone and in a crowd."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import autodropout as ad
from autodropout.models.transformer_xl import TransformerXLSize
from autodropout.spaces import TRANSFORMER_SITES, Policy
from autodropout.training.language import LanguageTraining
from autodropout.training.run import Run

WORDS = [f"w{number}" for number in range(12)]
VOCABULARY = len(WORDS) + 1  # and <eos>

SIZE = TransformerXLSize(
    layers=2, width=16, heads=2, head_size=8, inner=24, memory=8, embedding_dropout=0.1, softmax_dropout=0.2
)


def write_text(folder: Path, train: int = 300, held_out: int = 60) -> Path:
    """Lines of 9 words, of which each is followed by one of two others, likely by the first: 1.65 are expected."""
    draw = random.Random(0)
    (folder / "ptb").mkdir()
    word = 0
    for part, lines in (("train", train), ("valid", held_out), ("test", held_out)):
        text = []
        for _ in range(lines):
            line = []
            for _ in range(9):
                word = (word + (1 if draw.random() < 0.8 else 5)) % len(WORDS)
                line.append(WORDS[word])
            text.append(" ".join(line))
        (folder / "ptb" / f"ptb.{part}.txt").write_text("\n".join(text) + "\n")
    return folder


def small(folder: Path, **changes) -> LanguageTraining:
    settings = {
        "corpus": "ptb",
        "vocabulary": VOCABULARY,
        "size": SIZE,
        "segment": 8,
        "batch": 4,
        "steps": 20,
        "lr": 3e-3,
        "lr_after_cosine": 1e-3,
        "lr_constant": 5e-4,
        "cosine_share": 0.8,
        "clip": 0.25,
        "state_value": 0.02,
        "state_difference": 0.01,
        "evaluate_every": 5,
        "evaluation_batch": 3,
        "evaluation_memory": 8,
        "data": folder,
    }
    return LanguageTraining(**settings | changes)


def everywhere(size: int = 10, stride: int = 5, **shared: bool) -> Policy:
    """One pattern at every site."""
    pattern = ad.SequencePattern(**{"size": size, "stride": stride, "share_t": False, "share_c": False} | shared)
    return ad.TransformerPolicy(sites=dict.fromkeys(TRANSFORMER_SITES, pattern))


def curves_alone(
    how: LanguageTraining, policies: Sequence[Policy | None], rate: float, seeds: Sequence[int], run: Run
) -> list[list[float]]:
    """What each reports, trained one after another."""
    curves = []
    for policy, seed in zip(policies, seeds, strict=True):
        curve: list[float] = []
        how.fit(policy, rate, seed, replace(run, report=lambda step, reward, curve=curve: curve.append(reward)))
        curves.append(curve)
    return curves


def curves_together(
    how: LanguageTraining, policies: Sequence[Policy | None], rate: float, seeds: Sequence[int], run: Run
) -> list[list[float]]:
    """What each reports, trained at once; the best of it is its reward."""
    curves: list[list[float]] = [[] for _ in policies]
    reports = [lambda step, reward, curve=curve: curve.append(reward) for curve in curves]
    rewards = how.fit_many(policies, rate, seeds, run, reports)
    assert rewards == [max(curve) for curve in curves]
    return curves
