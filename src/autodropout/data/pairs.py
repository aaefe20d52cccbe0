"""What a translation dataset is here: pairs of sentences as subword ids, flat in memory, and their vocabulary.

Every sentence ends with EOS; nothing is put before it. In the training part only pairs are kept in which neither
sentence is empty or has more than `longest` subwords (EOS not counted): the paper's filter, 360 for IWSLT'14 and 200
for WMT'14. Validation and test keep all, and their untouched target text as references for BLEU.

The ids of the training part are made once and kept beside the vocabulary, which is made from the training text alone.
"""

import shutil
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from autodropout.data.atomic import whole_file
from autodropout.data.bitext import Bitext
from autodropout.data.folders import beside
from autodropout.data.subwords import Subwords, trained

CHUNK = 10_000  # sentences encoded at a time


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences of different lengths, one after the other."""

    tokens: Tensor  # (T,), int32: of all sentences
    offsets: Tensor  # (N + 1,), int64: sentence i is tokens[offsets[i]:offsets[i + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tensor:
        """The ids of one sentence, (t,), EOS last."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        first, last = self.offsets[index % len(self) :][:2].tolist()
        return self.tokens[first:last]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(len(self)))

    @property
    def lengths(self) -> Tensor:
        """How many ids each sentence has, EOS among them: (N,), int64."""
        return self.offsets.diff()

    def head(self, count: int) -> "Sentences":
        """The first `count` sentences, without copying them."""
        return Sentences(self.tokens[: int(self.offsets[count])], self.offsets[: count + 1])


@dataclass(frozen=True, slots=True)
class Pairs:
    """Sentences and their translations."""

    source: Sentences
    target: Sentences
    references: tuple[str, ...] = ()  # the target text as it was, for BLEU; the training part has none

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target) or (self.references and len(self.references) != len(self.target)):
            counts = f"{len(self.source)} sources, {len(self.target)} targets, {len(self.references)} references"
            raise ValueError(f"pairs must be equally many, got {counts}")

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True)
class Translation:
    """Pairs in three parts, and the vocabulary that both languages share."""

    train: Pairs
    validation: Pairs
    test: Pairs
    vocabulary: Subwords
    left_out: int  # training pairs that were empty or too long

    def __post_init__(self) -> None:
        for name, part in (("training", self.train), ("validation", self.validation), ("test", self.test)):
            if not len(part):
                raise ValueError(f"there are no {name} pairs ({self.left_out} training pairs were empty or too long)")


def prepare(
    name: str,
    folder: Path,
    train: Bitext,
    validation: Bitext,
    test: Bitext,
    *,
    pieces: int,
    longest: int,
    count: int | None = None,
) -> Translation:
    """Vocabulary and ids of a dataset, from what was kept of an earlier call where there is such.

    Args:
        name: of what is kept, with the languages.
        folder: of the data; what is made is kept in it, or in the user's cache where it cannot be written to.
        pieces: the size of the vocabulary, which is made from the whole training text.
        longest: a training sentence may have so many subwords.
        count: take the first so many training pairs, before filtering; all if None.
    """
    if longest < 1 or (count is not None and count < 1):
        raise ValueError(f"longest and count must be at least 1, got {longest} and {count}")
    kept = beside(folder)
    stem = f"{name}.unigram-{pieces}.{train.digest()[:12]}"
    model = kept / f"{stem}.model"
    vocabulary = trained(train, pieces, model)
    stem += f".longest-{longest}" + ("" if count is None else f".first-{count}")
    pairs, left_out = _training(train.head(count), vocabulary, longest, kept / f"{stem}.safetensors", model)
    return Translation(pairs, _judged(validation, vocabulary), _judged(test, vocabulary), vocabulary, left_out)


def _training(
    text: Iterable[tuple[str, str]], vocabulary: Subwords, longest: int, file: Path, model: Path
) -> tuple[Pairs, int]:
    """The pairs that are kept and the number of those that are not, from `file`, which is made where it is missing."""
    if not file.exists():
        source, target, left_out = _Flat(), _Flat(), 0
        for one, other in _encoded(text, vocabulary):
            if 1 < len(one) <= longest + 1 and 1 < len(other) <= longest + 1:  # EOS is one of them
                source.add(one)
                target.add(other)
            else:
                left_out += 1
        tensors = {"left_out": torch.tensor(left_out)}
        for side, flat in (("source", source), ("target", target)):
            sentences = flat.sentences()
            tensors |= {f"{side}.tokens": sentences.tokens, f"{side}.offsets": sentences.offsets}
        with whole_file(file) as partial:
            save_file(tensors, partial)
            shutil.copymode(model, partial)  # safetensors makes files that others cannot read
    try:
        stored = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: delete it, and it is made again ({error})") from None
    source_side = Sentences(stored["source.tokens"], stored["source.offsets"])
    target_side = Sentences(stored["target.tokens"], stored["target.offsets"])
    return Pairs(source_side, target_side), int(stored["left_out"])


def _judged(text: Bitext, vocabulary: Subwords) -> Pairs:
    source, target = _Flat(), _Flat()
    for one, other in _encoded(text, vocabulary):
        source.add(one)
        target.add(other)
    return Pairs(source.sentences(), target.sentences(), tuple(other for _, other in text))


def _encoded(pairs: Iterable[tuple[str, str]], vocabulary: Subwords) -> Iterator[tuple[list[int], list[int]]]:
    left = iter(pairs)
    while some := list(islice(left, CHUNK)):
        yield from zip(*(vocabulary.encode(side) for side in zip(*some, strict=True)), strict=True)


class _Flat:
    """Sentences while they are collected, 4 bytes a token."""

    def __init__(self) -> None:
        self.tokens, self.offsets = array("i"), array("q", [0])

    def add(self, ids: list[int]) -> None:
        self.tokens.extend(ids)
        self.offsets.append(len(self.tokens))

    def sentences(self) -> Sentences:
        tokens, offsets = np.array(self.tokens, np.int32), np.array(self.offsets, np.int64)
        return Sentences(torch.from_numpy(tokens), torch.from_numpy(offsets))
