"""A small text in Penn Treebank's layout, and a training on it that takes a second."""

import random
from pathlib import Path

from autodropout.models.transformer_xl import TransformerXLSize
from autodropout.training.language import LanguageTraining

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
