"""Multi30k, IWSLT'14, WMT'14 and Tatoeba in their layouts, on small files; and the real ones where they are there."""

import gzip
import random
from pathlib import Path

import pytest
import real_data

from autodropout.data import MissingData, iwslt14, multi30k, tatoeba, wmt14
from autodropout.data.bitext import in_parallel, segments, without_bpe

pytest.importorskip("sentencepiece", reason="sentencepiece, of the extra `translation`, is not installed")
WORDS = {
    "de": ["Der", "Die", "Ein", "mann", "frau", "kind", "hund", "geht", "sieht", "isst", "haus"],
    "en": ["The", "A", "man", "woman", "child", "dog", "goes", "sees", "eats", "house", "book"],
    "fr": ["Le", "La", "Un", "homme", "femme", "enfant", "chien", "va", "voit", "mange", "maison"],
}
SMALL = {"pieces": 70, "longest": 40}


def sentences(language: str, count: int) -> list[str]:
    draw = random.Random(0)
    return [f"{' '.join(draw.choices(WORDS[language], k=4))} {number}" for number in range(count)]


def put(file: Path, rows: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".gz":
        file.write_bytes(gzip.compress("\n".join(rows).encode()))
    else:
        file.write_text("\n".join(rows) + "\n")


def marked(rows: list[str]) -> list[str]:
    return ["<refset>", "<doc>", *(f'<seg id="{number}">{row}</seg>' for number, row in enumerate(rows, 1)), "</doc>"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_multi30k(tmp_path: Path, suffix: str) -> None:
    """As unpacked, and as its repository has it."""
    for part, count in (("train", 150), ("val", 9), *((f"test_{test}", 5) for test in multi30k.TESTS)):
        for language in multi30k.LANGUAGES:
            put(tmp_path / f"multi30k/{part}.{language}{suffix}", sentences(language, count))
    data = multi30k.load("fr", "de", data=tmp_path, **SMALL)
    assert (len(data.train), len(data.validation), len(data.test)) == (150, 9, 5)
    assert data.validation.references == tuple(sentences("de", 9))
    assert data.vocabulary.decode(data.train.source[3]) == sentences("fr", 4)[3]
    assert len(multi30k.load(train=20, data=tmp_path, **SMALL).train) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "cs"}, "Multi30k has de, en, fr, not 'cs'"),
        ({"target": "de"}, "both 'de'"),
        ({"test": "2019"}, "not '2019'"),
    ],
)
def test_what_multi30k_has_not(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        multi30k.load(**options, data=tmp_path)


def iwslt(folder: Path) -> None:
    """230 training pairs among headers, 3 pairs in each of five test sets."""
    for language in ("de", "en"):
        rows = sentences(language, 230)
        headers = ["<url>x</url>", "<talkid>1</talkid>", f"<title>{rows[0]}</title>"]
        put(folder / f"train.tags.de-en.{language}", [*headers, *rows[1:], "<reviewer></reviewer>"])
        for number, test in enumerate(iwslt14.TESTS):
            named = [f"{row} {number}" for row in sentences(language, 3)]
            put(folder / f"IWSLT14.{test}.de-en.{language}.xml", marked(named))


def test_iwslt14_as_published(tmp_path: Path) -> None:
    iwslt(tmp_path / "iwslt14/de-en")
    data = iwslt14.load(data=tmp_path, **SMALL)
    assert (len(data.train), len(data.validation), len(data.test)) == (220, 10, 15)
    english = sentences("en", 230)
    assert data.validation.references == tuple(english[22::23])
    assert data.test.references[3:6] == tuple(f"{row} 1" for row in english[:3])
    assert data.vocabulary.decode(data.train.target[0]) == english[0]  # a title is a sentence
    assert data.vocabulary.decode(data.train.target[22]) == english[23]  # the 23rd is held out
    other_way = iwslt14.load("en", "de", data=tmp_path, **SMALL)
    assert other_way.test.references[0] == sentences("de", 1)[0] + " 0"
    lowered = iwslt14.load(data=tmp_path, lowercase=True, **SMALL)
    assert lowered.validation.references[0] == english[22].lower()


def test_iwslt14_prepared(tmp_path: Path) -> None:
    for part, count in (("train", 150), ("valid", 4), ("test", 5)):
        for language in ("de", "en"):
            put(
                tmp_path / f"iwslt14/{part}.{language}",
                [row.replace("s", "s@@ ") for row in sentences(language, count)],
            )
    data = iwslt14.load(data=tmp_path, **SMALL)
    assert (len(data.train), len(data.validation), len(data.test)) == (150, 4, 5)
    assert data.test.references == tuple(sentences("en", 5))


def wmt(folder: Path) -> None:
    for number, corpus in enumerate(wmt14.CORPORA):
        for language in ("en", "fr"):
            suffix = ".gz" if corpus.startswith("giga") else ""
            put(folder / f"{corpus}.{language}{suffix}", sentences(language, 40 + number))
    for language in ("en", "fr"):
        put(folder / f"test/newstest2013-src.{language}.sgm", marked(sentences(language, 3)))
    put(folder / "test-full/newstest2014-fren-src.en.sgm", marked(sentences("en", 4)))
    put(folder / "test-full/newstest2014-fren-ref.fr.sgm", marked(sentences("fr", 4)))


def test_wmt14_as_published(tmp_path: Path) -> None:
    wmt(tmp_path / "wmt14")
    data = wmt14.load(data=tmp_path, **SMALL)
    assert (len(data.train), len(data.validation), len(data.test)) == (40 + 41 + 42 + 43 + 44, 3, 4)
    assert data.test.references == tuple(sentences("fr", 4))
    (tmp_path / "wmt14/un/undoc.2000.fr-en.fr").unlink()
    with pytest.raises(MissingData, match=r"lacks un/undoc.2000.fr-en.fr.* run `autodropout data get wmt14`"):
        wmt14.load(data=tmp_path)


def test_wmt14_as_plain_text(tmp_path: Path) -> None:
    for part, count in (("train", 150), ("valid", 4), ("test", 5)):
        for language in ("en", "fr"):
            put(tmp_path / f"{part}.{language}", sentences(language, count))
    assert len(wmt14.load(data=tmp_path, **SMALL).train) == 150


@pytest.mark.parametrize(("dataset", "message"), [(iwslt14, "between de and en"), (wmt14, "between en and fr")])
def test_other_languages(dataset: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        dataset.load("it", "en", data=tmp_path)
    with pytest.raises(ValueError, match=message):
        dataset.load("en", "en", data=tmp_path)


def test_tatoebas_parts_share_no_english_sentence(tmp_path: Path) -> None:
    english, german = sentences("en", 400), sentences("de", 400)
    rows = [f"{one}\t{two}" for pair in zip(english, german, strict=True) for one, two in (pair, (pair[0], "Oder so."))]
    put(tmp_path / "tatoeba-deu-eng/deu.txt", rows)
    parts = {}
    for source, target in (("de", "en"), ("en", "de")):
        data = tatoeba.load(source, target, data=tmp_path, **SMALL)
        side = data.train.target if target == "en" else data.train.source
        held = (
            [data.validation.source, data.test.source] if source == "en" else [data.validation.target, data.test.target]
        )
        named = [[data.vocabulary.decode(ids) for ids in part] for part in (side, *held)]
        assert sum(map(len, named)) == 800
        assert set(named[0]).isdisjoint(named[1])
        assert set(named[0] + named[1]).isdisjoint(named[2])
        parts[source] = [set(part) for part in named]
    assert parts["de"] == parts["en"]  # the same parts either way
    with pytest.raises(ValueError, match="between en and one of de, fr, not 'de' and 'fr'"):
        tatoeba.load("de", "fr", data=tmp_path)
    with pytest.raises(MissingData, match="autodropout data get tatoeba-fra-eng"):
        tatoeba.load("fr", "en", data=tmp_path)


def test_the_real_multi30k() -> None:
    data = multi30k.load(train=500, pieces=1_000, data=real_data.folder_of(multi30k.folder))
    assert (len(data.train), len(data.validation), len(data.test)) == (500, 1_014, 1_000)
    assert data.left_out == 0
    assert data.vocabulary.decode(data.train.target[0]) == "Two young, White males are outside near many bushes."
    assert len(data.vocabulary) == 1_000


def test_real_test_sets_are_read_whole() -> None:
    """newstest2014 has 3,003 pairs; the literature's IWSLT'14 has 7,283 and 6,750."""
    folder = real_data.folder_of(lambda data: real_data.present(data, "newstest2014", "iwslt14_valid_test"))
    news = folder / "newstest2014"
    pairs = list(in_parallel(news / "newstest2014-fren-src.en.sgm", news / "newstest2014-fren-ref.fr.sgm", segments))
    assert len(pairs) == 3_003
    assert all(one and other for one, other in pairs)
    assert pairs[0] == ("Spectacular Wingsuit Jump Over Bogota", 'Spectaculaire saut en "wingsuit" au-dessus de Bogota')
    for part, count in (("valid", 7_283), ("test", 6_750)):
        files = (folder / f"iwslt14_valid_test/{part}.bpe.{language}" for language in ("de", "en"))
        pairs = list(in_parallel(*files, without_bpe))
        assert len(pairs) == count
        assert not any("@@" in side for pair in pairs for side in pair)
