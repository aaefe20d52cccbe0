"""Tatoeba's short sentence pairs with English, as manythings.org offers them: one table, `deu.txt` or `fra.txt`.

It has no official parts, and one English sentence often has several translations. So the digest of the English sentence
decides: one in fifty is for validation, one for test, and no part shares an English sentence with another. A stand-in
for larger corpora; the table grows over the years, so results belong to one version of it.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from autodropout.data.bitext import Bitext, in_columns
from autodropout.data.folders import find
from autodropout.data.pairs import Translation, prepare

CODES = {"de": "deu", "fr": "fra"}
EVERY = 50
VALIDATION, TEST = 0, 1  # of the fifty


def load(
    source: str = "de",
    target: str = "en",
    *,
    train: int | None = None,
    pieces: int = 10_000,
    longest: int = 360,
    data: Path | str | None = None,
) -> Translation:
    """Sentence pairs as subword ids.

    Args:
        source, target: en and one of de, fr.
        train: the first so many training pairs, which are the shortest: the table is sorted; all if None.
        pieces: the size of the vocabulary.
        longest: a training sentence may have so many subwords.
        data: the folder of datasets; see `folders.root`.

    Raises:
        MissingData: the table is not there.
        ValueError: an argument or the table is wrong.
    """
    other = other_than_english(source, target)
    place = folder(other, data)
    english = (source, target).index("en")  # its place in a pair; in the table it is the first column
    whole = in_columns(place / f"{CODES[other]}.txt", english, 1 - english)
    parts = (_part(whole, english, wanted) for wanted in (None, VALIDATION, TEST))
    return prepare(f"tatoeba.{source}-{target}", place, *parts, pieces=pieces, longest=longest, count=train)


def folder(language: str, data: Path | str | None = None) -> Path:
    """Where the table of English and another language is."""
    code = CODES[language]
    return find(name(language), (f"{code}.txt",), inside=(f"{code}-eng",), data=data)


def name(language: str) -> str:
    """Of the dataset with English and another language."""
    return f"tatoeba-{CODES[language]}-eng"


def other_than_english(source: str, target: str) -> str:
    """
    Raises:
        ValueError: it is none that we have, or neither is English.
    """
    other = target if source == "en" else source
    if other not in CODES or {source, target} != {"en", other}:
        raise ValueError(f"Tatoeba is here between en and one of {', '.join(CODES)}, not {source!r} and {target!r}")
    return other


def _part(whole: Bitext, english: int, wanted: int | None) -> Bitext:
    """One part; `wanted` None is the training part."""

    def read() -> Iterator[tuple[str, str]]:
        for pair in whole:
            place = int.from_bytes(hashlib.sha256(pair[english].encode()).digest()[:8]) % EVERY
            if (place if place in (VALIDATION, TEST) else None) == wanted:
                yield pair

    return Bitext(whole.files, read)
