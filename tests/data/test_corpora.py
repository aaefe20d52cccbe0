"""Texts to model: ids, the vocabulary, and what is refused."""

from pathlib import Path
from types import ModuleType

import pytest
import real_data
import torch

from autodropout.data import Corpus, MissingData, ptb, wikitext2
from autodropout.data.corpora import read_corpus


def written(folder: Path, train: str, valid: str = "a\n", test: str = "a\n") -> tuple[Path, Path, Path]:
    files = folder / "train", folder / "valid", folder / "test"
    for file, text in zip(files, (train, valid, test), strict=True):
        file.write_text(text)
    return files


def test_words_and_line_ends(tmp_path: Path) -> None:
    """The most frequent word first, then as they appear; each line, also an empty one, ends with <eos>."""
    corpus = read_corpus(*written(tmp_path, " b a c \n\n a  c a\n", "c b\n", "a"))
    assert corpus.vocabulary == ("a", "<eos>", "c", "b")
    assert corpus.train.tolist() == [3, 0, 2, 1, 1, 0, 2, 0, 1]
    assert corpus.validation.tolist() == [2, 3, 1]
    assert corpus.test.tolist() == [0, 1]
    assert corpus.train.dtype == torch.int64


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    corpus = read_corpus(*written(tmp_path, "a\u2028b\u0085c\n"))
    assert corpus.train.tolist().count(corpus.vocabulary.index("<eos>")) == 1


@pytest.mark.parametrize("text", ["", "\n\n", "  \n"])
def test_an_empty_text(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="train holds no words"):
        read_corpus(*written(tmp_path, text))
    with pytest.raises(ValueError, match="valid holds no words"):
        read_corpus(*written(tmp_path, "a\n", text))


def test_a_word_outside_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"test, line 3: 'zebra' is not in the vocabulary of 3 words"):
        read_corpus(*written(tmp_path, "a b\n", "b\n", "a\nb\nzebra\n"))


def test_a_text_that_is_not_utf8(tmp_path: Path) -> None:
    files = written(tmp_path, "a\n")
    files[0].write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match="train is not UTF-8"):
        read_corpus(*files)


def test_a_corpus_checks_its_ids() -> None:
    some = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="validation holds the id 2, the vocabulary has 2 words"):
        Corpus(some, torch.tensor([0, 2]), some, ("a", "b"))
    with pytest.raises(ValueError, match="test holds the id -1"):
        Corpus(some, some, torch.tensor([-1]), ("a", "b"))
    with pytest.raises(ValueError, match="train holds no words"):
        Corpus(some[:0], some, some, ("a", "b"))
    with pytest.raises(ValueError, match=r"train must be \(T,\) of int64, got \(1, 2\)"):
        Corpus(some[None], some, some, ("a", "b"))


@pytest.mark.parametrize(("dataset", "inside"), [(ptb, "simple-examples/data"), (wikitext2, "wikitext-2")])
def test_the_archives_layout(dataset: ModuleType, inside: str, tmp_path: Path) -> None:
    folder = tmp_path / inside
    folder.mkdir(parents=True)
    with pytest.raises(MissingData, match=f"autodropout data get {dataset.NAME}"):
        dataset.load(data=tmp_path)
    for name in dataset.FILES:
        (folder / name).write_text("a b\n")
    assert dataset.load(data=tmp_path).train.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("dataset", "counts", "words"),
    [(ptb, (929_589, 73_760, 82_430), 10_000), (wikitext2, (2_088_628, 217_646, 245_569), 33_278)],
)
def test_the_real_ones(dataset: ModuleType, counts: tuple[int, int, int], words: int) -> None:
    """As counted in the literature."""
    corpus = dataset.load(data=real_data.folder_of(dataset.folder))
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == counts
    assert len(corpus.vocabulary) == words
    assert {"<eos>", "<unk>"} <= set(corpus.vocabulary)
