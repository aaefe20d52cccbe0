"""A language small enough to be learned in a second: each word has one translation, and sentences are turned round."""

import random
from collections.abc import Iterable, Sequence

import torch

from autodropout.data import Pairs, Sentences, Translation
from autodropout.data.subwords import EOS
from autodropout.models.transformer import TransformerSize
from autodropout.training.decoding import Beam
from autodropout.training.translation import TranslationTraining

WORDS = 8
PIECES = 4 + 2 * WORDS  # the special tokens, then the words of both languages


class Words:
    """Stands for `Subwords`: a word a token."""

    def __len__(self) -> int:
        return PIECES

    def decode(self, ids: Iterable[int]) -> str:
        kept = []
        for token in ids:
            if token == EOS:
                break
            kept.append(f"w{token}")
        return " ".join(kept)


def sentences(rows: Sequence[Sequence[int]]) -> Sentences:
    lengths = torch.tensor([0, *map(len, rows)])
    flat = [token for row in rows for token in row]
    return Sentences(torch.tensor(flat, dtype=torch.int32), lengths.cumsum(0))


def pairs(count: int, seed: int, longest: int = 6) -> Pairs:
    draw = random.Random(seed)
    sources = [[4 + draw.randrange(WORDS) for _ in range(draw.randint(3, longest))] for _ in range(count)]
    targets = [[word + WORDS for word in reversed(source)] for source in sources]
    references = tuple(Words().decode(target) for target in targets)
    return Pairs(sentences([[*s, EOS] for s in sources]), sentences([[*t, EOS] for t in targets]), references)


def toy(train: int = 60, judged: int = 12) -> Translation:
    return Translation(pairs(train, 0), pairs(judged, 1), pairs(judged, 2), Words(), 0)  # type: ignore[arg-type]


TOY = TranslationTraining(
    dataset="multi30k",
    source="de",
    target="en",
    pieces=PIECES,
    longest=10,
    steps=30,
    warmup=5,
    lr=5e-3,
    tokens=160,
    label_smoothing=0.1,
    betas=(0.9, 0.98),
    epsilon=1e-9,
    size=TransformerSize(layers=1, width=16, heads=2, inner=32),
    beam=Beam(size=2, extra=3),
    evaluate_every=10,
)
