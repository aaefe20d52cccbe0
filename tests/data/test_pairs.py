"""Sentence pairs as ids: the vocabulary, the filters, and what is kept between two calls."""

import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from autodropout.data import Pairs, Sentences, Translation
from autodropout.data.bitext import Bitext
from autodropout.data.pairs import prepare
from autodropout.data.subwords import BOS, EOS, PAD, UNK, Subwords, trained

pytest.importorskip("sentencepiece", reason="sentencepiece, of the extra `translation`, is not installed")
WORDS = [
    "der",
    "die",
    "das",
    "ein",
    "eine",
    "mann",
    "frau",
    "kind",
    "hund",
    "geht",
    "sieht",
    "isst",
    "the",
    "a",
    "man",
    "woman",
    "child",
    "dog",
    "goes",
    "sees",
    "eats",
]


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(count)]


def text(folder: Path, name: str, pairs: list[tuple[str, str]]) -> Bitext:
    files = folder / f"{name}.de", folder / f"{name}.en"
    for file, side in zip(files, zip(*pairs, strict=True), strict=True):
        file.write_text("\n".join(side) + "\n")
    return Bitext(files, lambda: pairs)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    folder = tmp_path_factory.mktemp("vocabulary")
    return trained(text(folder, "train", list(zip(sentences(300), sentences(300, 1), strict=True))), 40, folder / "v")


def prepared(folder: Path, train: list[tuple[str, str]], longest: int = 1000, count: int | None = None) -> Translation:
    held = text(folder, "valid", [("der hund sieht eine frau", "the dog sees a woman"), ("", "")])
    return prepare("toy", folder, text(folder, "train", train), held, held, pieces=40, longest=longest, count=count)


def test_text_to_ids_and_back(vocabulary: Subwords) -> None:
    assert len(vocabulary) == 40
    encoded = vocabulary.encode(["der hund sieht", ""])
    assert encoded[0][-1] == EOS
    assert encoded[0].count(EOS) == 1
    assert not {PAD, UNK, BOS} & set(encoded[0])
    assert encoded[1] == [EOS]
    assert vocabulary.decode(encoded[0]) == "der hund sieht"
    assert vocabulary.decode([BOS, *encoded[0], *encoded[0], PAD]) == "der hund sieht"  # up to the first EOS
    assert UNK in vocabulary.encode(["日"])[0]
    with pytest.raises(ValueError, match="the id 40 is outside the vocabulary of 40 subwords"):
        vocabulary.decode([40])


def test_a_vocabulary_travels(vocabulary: Subwords) -> None:
    again = pickle.loads(pickle.dumps(vocabulary))
    assert again.encode(["ein kind"]) == vocabulary.encode(["ein kind"])


def test_the_same_text_gives_the_same_vocabulary(tmp_path: Path) -> None:
    """In another process, too."""
    code = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import test_pairs as t\n"
        "folder = pathlib.Path(sys.argv[2])\n"
        "pairs = t.text(folder, 'train', list(zip(t.sentences(300), t.sentences(300, 1), strict=True)))\n"
        "t.trained(pairs, 40, folder / 'v')"
    )
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        here = str(Path(__file__).parent)
        subprocess.run([sys.executable, "-c", code, here, str(tmp_path / name)], check=True, timeout=120)
    assert (tmp_path / "one/v").read_bytes() == (tmp_path / "two/v").read_bytes()


def test_a_vocabulary_that_cannot_be(tmp_path: Path) -> None:
    few = text(tmp_path, "train", [("ein hund", "a dog")])
    with pytest.raises(ValueError, match=r"no vocabulary of 5,000 subwords from .*train.de"):
        trained(few, 5_000, tmp_path / "v")
    with pytest.raises(ValueError, match="at least 8 subwords, got 3"):
        trained(few, 3, tmp_path / "v")
    with pytest.raises(ValueError, match=r"train.de holds no sentences"):
        trained(Bitext(few.files, list), 40, tmp_path / "v")
    assert not (tmp_path / "v").exists()
    (tmp_path / "v").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"v is no SentencePiece model: delete it"):
        trained(few, 40, tmp_path / "v")


def test_training_pairs_are_filtered_by_subwords(tmp_path: Path) -> None:
    pairs = list(zip(sentences(300), sentences(300, 1), strict=True))
    everything = prepared(tmp_path, [*pairs, ("", "a dog"), ("ein hund", "")], longest=1000)
    assert len(everything.train) == 300
    assert everything.left_out == 2
    for side, texts in ((everything.train.source, sentences(300)), (everything.train.target, sentences(300, 1))):
        assert [everything.vocabulary.decode(ids) for ids in side] == texts
    longest = int(everything.train.source.lengths.median()) - 1  # EOS does not count
    filtered = prepared(tmp_path, [*pairs, ("", "a dog"), ("ein hund", "")], longest=longest)
    kept = (everything.train.source.lengths <= longest + 1) & (everything.train.target.lengths <= longest + 1)
    assert 0 < len(filtered.train) == int(kept.sum()) < 300
    assert filtered.left_out == 302 - len(filtered.train)
    assert int(filtered.train.source.lengths.max()) == longest + 1


def test_validation_keeps_everything_and_its_text(tmp_path: Path) -> None:
    data = prepared(tmp_path, list(zip(sentences(300), sentences(300, 1), strict=True)), longest=5)
    assert len(data.validation) == 2
    assert data.validation.references == ("the dog sees a woman", "")
    assert data.validation.source[1].tolist() == [EOS]
    assert len(data.validation.source[0]) > 6
    assert data.train.references == ()


def test_what_was_made_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = list(zip(sentences(300), sentences(300, 1), strict=True))
    first = prepared(tmp_path, pairs)
    kept = {file.name for file in tmp_path.iterdir()} - {"train.de", "train.en", "valid.de", "valid.en"}
    assert {name.split(".")[-1] for name in kept} == {"model", "safetensors"}
    assert len({(tmp_path / name).stat().st_mode for name in (*kept, "train.de")}) == 1  # readable by the same people
    monkeypatch.setattr("autodropout.data.subwords._train", lambda *_: pytest.fail("it is there"))
    again = prepared(tmp_path, pairs)
    assert again.train.source.tokens.equal(first.train.source.tokens)
    assert len(prepared(tmp_path, pairs, count=7).train) == 7
    monkeypatch.undo()
    changed = prepared(tmp_path, pairs[:-1])  # another text, another vocabulary
    assert len(changed.train) == 299


def test_a_damaged_store_says_so(tmp_path: Path) -> None:
    pairs = list(zip(sentences(300), sentences(300, 1), strict=True))
    prepared(tmp_path, pairs)
    (store,) = tmp_path.glob("*.safetensors")
    store.write_bytes(store.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"safetensors is damaged: delete it"):
        prepared(tmp_path, pairs)


def test_no_pairs_left(tmp_path: Path) -> None:
    pairs = list(zip(sentences(300), sentences(300, 1), strict=True))
    with pytest.raises(ValueError, match=r"no training pairs \(1 training pairs were empty or too long\)"):
        prepared(tmp_path, [("", ""), *pairs], count=1)
    with pytest.raises(ValueError, match="at least 1, got 0 and None"):
        prepared(tmp_path, pairs, longest=0)


def test_sentences_are_a_sequence(vocabulary: Subwords, tmp_path: Path) -> None:
    data = prepared(tmp_path, list(zip(sentences(300), sentences(300, 1), strict=True)))
    source = data.train.source
    assert source[-1].equal(source[299])
    assert source.head(3).lengths.tolist() == source.lengths[:3].tolist()
    assert len(source.head(3)) == 3
    with pytest.raises(IndexError, match="sentence 300 of 300"):
        source[300]
    with pytest.raises(ValueError, match="300 sources, 2 targets, 0 references"):
        Pairs(source, data.validation.target)
    assert sum(len(ids) for ids in source) == len(source.tokens)
    assert isinstance(source, Sentences)


def test_without_sentencepiece_the_error_says_what_to_do() -> None:
    code = (
        "import sys; sys.modules['sentencepiece'] = None\n"
        "from autodropout.data.subwords import Subwords\n"
        "try: Subwords(b'')\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    assert done.stdout == "subwords need sentencepiece: pip install 'autodropout[translation]'\n"
