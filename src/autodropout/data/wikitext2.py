"""WikiText-2, word level: 2,088,628 / 217,646 / 245,569 words, 33,278 different ones.

Counted with the `<eos>` that ends each line, empty lines too, as is usual.
"""

from pathlib import Path

from autodropout.data.corpora import Corpus, corpus_in
from autodropout.data.folders import find

NAME = "wikitext-2"
FILES = ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens")


def load(*, data: Path | str | None = None) -> Corpus:
    """The text in three parts.

    Args:
        data: the folder of datasets; see `folders.root`.

    Raises:
        MissingData: the files are not there.
        ValueError: a file is empty, or has a word the training part has not.
    """
    return corpus_in(folder(data), FILES)


def folder(data: Path | str | None = None) -> Path:
    """Where the files are."""
    return find(NAME, FILES, inside=("wikitext-2",), data=data)
