"""Multi30k: 29,000 captions of pictures in English, German and French, and 1,014 to validate with.

A stand-in for IWSLT'14 that is small and free; results on it are Multi30k's and must be called so.
"""

from pathlib import Path

from autodropout.data.bitext import in_parallel
from autodropout.data.folders import find
from autodropout.data.pairs import Translation, prepare

NAME = "multi30k"
LANGUAGES = ("de", "en", "fr")
TESTS = ("2016_flickr", "2017_flickr", "2017_mscoco", "2018_flickr")


def load(
    source: str = "de",
    target: str = "en",
    *,
    train: int | None = None,
    pieces: int = 10_000,
    longest: int = 360,
    test: str = "2016_flickr",
    data: Path | str | None = None,
) -> Translation:
    """Pairs of captions as subword ids.

    Args:
        source, target: two of de, en, fr.
        train: the first so many training pairs; all 29,000 if None.
        pieces: the size of the vocabulary.
        longest: a training sentence may have so many subwords.
        test: which of the four test sets.
        data: the folder of datasets; see `folders.root`.

    Raises:
        MissingData: the files are not there.
        ValueError: an argument or a file is wrong.
    """
    for language in (source, target):
        if language not in LANGUAGES:
            raise ValueError(f"Multi30k has {', '.join(LANGUAGES)}, not {language!r}")
    if source == target:
        raise ValueError(f"source and target are both {source!r}")
    if test not in TESTS:
        raise ValueError(f"Multi30k's test sets are {', '.join(TESTS)}, not {test!r}")
    place, parts = folder(data), ("train", "val", f"test_{test}")
    texts = (in_parallel(place / f"{part}.{source}", place / f"{part}.{target}") for part in parts)
    return prepare(f"{NAME}.{source}-{target}", place, *texts, pieces=pieces, longest=longest, count=train)


def folder(data: Path | str | None = None) -> Path:
    """Where the files of all languages are."""
    parts = ("train", "val", *(f"test_{test}" for test in TESTS))
    return find(NAME, [f"{part}.{language}" for part in parts for language in LANGUAGES], data=data, gzipped=True)
