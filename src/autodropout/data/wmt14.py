"""WMT'14 English-French: five corpora of some 40 million sentence pairs; newstest2013 validates, newstest2014 tests.

Two layouts are read:

    training/europarl-v7.fr-en.{en,fr}, ...      what the official archives unpack to, side by side in one folder
    {train,valid,test}.{en,fr}                   plain text

The paper names neither the corpora nor the validation part; these are the usual ones. Training pairs with a sentence of
more than 200 subwords are left out, as the paper says, and no others but empty ones. Preparing takes hours once: its
results, 9 GB, are kept in the folder.
"""

from pathlib import Path

from autodropout.data.bitext import Bitext, in_parallel, joined, segments
from autodropout.data.folders import find_either
from autodropout.data.pairs import Translation, prepare

NAME = "wmt14"
LANGUAGES = ("en", "fr")
CORPORA = (
    "training/europarl-v7.fr-en",
    "commoncrawl.fr-en",
    "un/undoc.2000.fr-en",
    "training/news-commentary-v9.fr-en",
    "giga-fren.release2.fixed",
)
ADVICE = (
    "run `autodropout data get wmt14`, or unpack the official archives of europarl v7, common crawl, UN, news "
    "commentary v9, giga-fren, wmt13/test.tgz and wmt14/test-full.tgz into a folder wmt14/ of AUTODROPOUT_DATA or "
    "--data, or put plain text there as train.en, train.fr, valid.en, valid.fr, test.en, test.fr"
)


def load(
    source: str = "en",
    target: str = "fr",
    *,
    train: int | None = None,
    pieces: int = 32_000,
    longest: int = 200,
    data: Path | str | None = None,
) -> Translation:
    """Sentence pairs as subword ids.

    Args:
        source, target: en and fr, either way.
        train: the first so many training pairs; all if None.
        pieces: the size of the vocabulary.
        longest: a training sentence may have so many subwords.
        data: the folder of datasets; see `folders.root`.

    Raises:
        MissingData: the files are not there.
        ValueError: an argument or a file is wrong.
    """
    if sorted((source, target)) != list(LANGUAGES):
        raise ValueError(f"WMT'14 is here between en and fr, not {source!r} and {target!r}")
    place, parts = _parts(source, target, data)
    return prepare(f"{NAME}.{source}-{target}", place, *parts, pieces=pieces, longest=longest, count=train)


def folder(data: Path | str | None = None) -> Path:
    """Where the files are, of either layout."""
    return _parts(*LANGUAGES, data)[0]


def _parts(source: str, target: str, data: Path | str | None) -> tuple[Path, tuple[Bitext, ...]]:
    """The folder; train, validation and test."""
    corpora = [(f"{corpus}.{source}", f"{corpus}.{target}") for corpus in CORPORA]
    valid = (f"test/newstest2013-src.{source}.sgm", f"test/newstest2013-src.{target}.sgm")
    test = (f"test-full/newstest2014-fren-src.{source}.sgm", f"test-full/newstest2014-fren-ref.{target}.sgm")
    plain = [(f"{part}.{source}", f"{part}.{target}") for part in ("train", "valid", "test")]
    files = ([file for pair in layout for file in pair] for layout in ((*corpora, valid, test), plain))
    place, as_published = find_either(NAME, *files, data=data, advice=ADVICE, gzipped=True)
    if not as_published:
        return place, tuple(in_parallel(place / one, place / other) for one, other in plain)
    training = joined(in_parallel(place / one, place / other) for one, other in corpora)
    judged = (in_parallel(place / one, place / other, segments) for one, other in (valid, test))
    return place, (training, *judged)
