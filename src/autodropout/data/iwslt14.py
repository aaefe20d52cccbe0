"""IWSLT'14 German-English: TED talks, 174,000 sentence pairs, in the split that the literature uses.

Two layouts are read:

    train.tags.de-en.{de,en}, IWSLT14.TED*.de-en.{de,en}.xml     the official archive's folder de-en/
    {train,valid,test}.{de,en}                                   prepared text; words cut by "@@ " are put together

Of the official files every 23rd training pair is held out for validation, and the five test sets of 2010 to 2012 make
the test part, 6,750 pairs. Where we differ from most of the literature, all of it left open by the paper:

1. The text is neither cut into Moses tokens nor, unless asked, lower-cased: SentencePiece sees it as it is. BLEU in the
   literature is mostly of text that fairseq's script prepared, which does both: `lowercase=True` comes nearer.
2. Pairs are left out for length alone (the paper's 360 subwords), not for more than 175 words or a ratio above 1.5.
"""

from collections.abc import Iterator
from pathlib import Path

from autodropout.data.bitext import Bitext, in_parallel, joined, segments, tagged, without_bpe
from autodropout.data.folders import find_either
from autodropout.data.pairs import Translation, prepare

NAME = "iwslt14"
LANGUAGES = ("de", "en")
TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
HELD_OUT = 23  # of so many training pairs, one
ADVICE = (
    "run `autodropout data get iwslt14`, or put the folder de-en/ of the official archive (train.tags.de-en.de, ...) "
    "or the files train.de, train.en, valid.de, ... into a folder iwslt14/ of AUTODROPOUT_DATA or --data"
)


def load(
    source: str = "de",
    target: str = "en",
    *,
    train: int | None = None,
    pieces: int = 10_000,
    longest: int = 360,
    lowercase: bool = False,
    data: Path | str | None = None,
) -> Translation:
    """Sentence pairs as subword ids.

    Args:
        source, target: de and en, either way.
        train: the first so many training pairs; all if None.
        pieces: the size of the vocabulary.
        longest: a training sentence may have so many subwords.
        lowercase: all text, the references too.
        data: the folder of datasets; see `folders.root`.

    Raises:
        MissingData: the files are not there.
        ValueError: an argument or a file is wrong.
    """
    if sorted((source, target)) != list(LANGUAGES):
        raise ValueError(f"IWSLT'14 is between de and en, not {source!r} and {target!r}")
    place, parts = _parts(source, target, data)
    if lowercase:
        parts = tuple(_lowered(part) for part in parts)
    name = f"{NAME}{'-lowercase' if lowercase else ''}.{source}-{target}"
    return prepare(name, place, *parts, pieces=pieces, longest=longest, count=train)


def folder(data: Path | str | None = None) -> Path:
    """Where the files are, of either layout."""
    return _parts(*LANGUAGES, data)[0]


def _parts(source: str, target: str, data: Path | str | None) -> tuple[Path, tuple[Bitext, ...]]:
    """The folder; train, validation and test."""
    training = [f"train.tags.de-en.{language}" for language in (source, target)]
    tests = [[f"IWSLT14.{test}.de-en.{language}.xml" for language in (source, target)] for test in TESTS]
    official = [*training, *(file for pair in tests for file in pair)]
    pairs = [(f"{part}.{source}", f"{part}.{target}") for part in ("train", "valid", "test")]
    plain = [file for pair in pairs for file in pair]
    place, as_published = find_either(NAME, official, plain, inside=("de-en",), data=data, advice=ADVICE, gzipped=True)
    if not as_published:
        return place, tuple(in_parallel(place / one, place / other, without_bpe) for one, other in pairs)
    whole = in_parallel(place / training[0], place / training[1], tagged)
    test = joined(in_parallel(place / one, place / other, segments) for one, other in tests)
    return place, (_dealt(whole, held_out=False), _dealt(whole, held_out=True), test)


def _dealt(whole: Bitext, *, held_out: bool) -> Bitext:
    def read() -> Iterator[tuple[str, str]]:
        return (pair for number, pair in enumerate(whole, start=1) if (number % HELD_OUT == 0) == held_out)

    return Bitext(whole.files, read)


def _lowered(text: Bitext) -> Bitext:
    return Bitext(text.files, lambda: ((one.lower(), other.lower()) for one, other in text))
