"""Penn Treebank as Mikolov prepared it for language models: 929,589 / 73,760 / 82,430 words, 10,000 different ones.

Counted with the `<eos>` that ends each line.
"""

from pathlib import Path

from autodropout.data.corpora import Corpus, corpus_in
from autodropout.data.folders import find

NAME = "ptb"
FILES = ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt")


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
    return find(NAME, FILES, inside=("simple-examples/data",), data=data)
