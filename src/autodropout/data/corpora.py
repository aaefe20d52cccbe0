"""What a text to model is here: three streams of word ids, and the words.

Words are what stands between spaces; every line, empty ones too, ends with `<eos>`, which is a word of the vocabulary.
The vocabulary is the training part's, the most frequent word first; words equally frequent keep the order in which they
appear. Nothing is lower-cased or replaced: the files come prepared, rare words written as `<unk>`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

EOS = "<eos>"


@dataclass(frozen=True, slots=True)
class Corpus:
    """One text in three parts, each a stream of ids into `vocabulary`."""

    train: Tensor  # (T,), int64
    validation: Tensor  # (T',), int64
    test: Tensor  # (T'',), int64
    vocabulary: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, part in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            if part.dim() != 1 or part.dtype != torch.int64:
                raise ValueError(f"{name} must be (T,) of int64, got {tuple(part.shape)} of {part.dtype}")
            if not len(part):
                raise ValueError(f"{name} holds no words")
            for token in (int(part.min()), int(part.max())):
                if not 0 <= token < len(self.vocabulary):
                    raise ValueError(f"{name} holds the id {token}, the vocabulary has {len(self.vocabulary)} words")


@lru_cache(maxsize=1)
def corpus_in(folder: Path, files: tuple[str, str, str]) -> Corpus:
    """`read_corpus`, once: the children of a search come back for the same text."""
    train, validation, test = (folder / name for name in files)
    return read_corpus(train, validation, test)


def read_corpus(train: Path, validation: Path, test: Path) -> Corpus:
    """Read three files of one text.

    Raises:
        ValueError: a file is empty or not UTF-8, or a word outside the training part's vocabulary appears.
    """
    words = _words(train)
    ids = {word: number for number, (word, _) in enumerate(Counter(words).most_common())}
    return Corpus(
        torch.tensor([ids[word] for word in words]), _encoded(validation, ids), _encoded(test, ids), tuple(ids)
    )


def _encoded(file: Path, ids: dict[str, int]) -> Tensor:
    try:
        return torch.tensor([ids[word] for word in _words(file)])
    except KeyError as error:
        word = error.args[0]
        line = next(number for number, words in enumerate(_lines(file), start=1) if word in words)
        raise ValueError(f"{file}, line {line}: {word!r} is not in the vocabulary of {len(ids):,} words") from None


def _words(file: Path) -> list[str]:
    words = [word for line in _lines(file) for word in line]
    if all(word == EOS for word in words):
        raise ValueError(f"{file} holds no words")
    return words


def _lines(file: Path) -> Iterator[list[str]]:
    with file.open(encoding="utf-8", newline="\n") as lines:  # other separators of lines are part of the text
        try:
            for line in lines:
                yield [*line.split(), EOS]
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8: {error}") from None
