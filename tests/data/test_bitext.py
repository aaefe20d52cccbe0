"""The formats of parallel text."""

import gzip
from pathlib import Path

import pytest

from autodropout.data.bitext import in_columns, in_parallel, joined, lines, segments, tagged, without_bpe

SGML = """<srcset setid="newstest2014" srclang="any">
<doc docid="1" genre="news" origlang="fr">
<hl>
<seg id="1">A &amp; B's &quot;C&quot;</seg>
</hl>
<p>
<seg id="2"> two
lines </seg>
<SEG id="3"></SEG>
</p>
</doc>
</srcset>
"""
TAGS = """<url>http://www.ted.com/talks/1</url>
<keywords>talks, science</keywords>
<speaker>Somebody</speaker>
<talkid>1</talkid>
<title>Eine Frage</title>
<description>TED Talk: Wieso?</description>
 Das Volk von <b>hier</b>.
<reviewer></reviewer>
Zwei.
"""


def test_plain_and_gzipped(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(" eins \nzwei\u2028drei\n\nvier", encoding="utf-8")
    with gzip.open(tmp_path / "packed.gz", "wt", encoding="utf-8") as file:
        file.write("eins\nzwei\n")
    assert list(lines(tmp_path / "plain")) == ["eins", "zwei\u2028drei", "", "vier"]
    assert list(lines(tmp_path / "packed.gz")) == ["eins", "zwei"]


def test_a_damaged_gzip_and_a_wrong_encoding(tmp_path: Path) -> None:
    packed = gzip.compress(b"eins\n" * 1000)
    (tmp_path / "cut.gz").write_bytes(packed[:-12])
    (tmp_path / "no.gz").write_bytes(b"eins\n")
    (tmp_path / "wrong.gz").write_bytes(packed[:10] + b"\xff" * 20 + packed[30:])
    (tmp_path / "latin").write_bytes(b"f\xfcnf\n")
    for name, message in (("cut.gz", "damaged"), ("no.gz", "damaged"), ("wrong.gz", "damaged"), ("latin", "not UTF-8")):
        with pytest.raises(ValueError, match=f"{name} is {message}"):
            list(lines(tmp_path / name))


def test_segments(tmp_path: Path) -> None:
    (tmp_path / "x.sgm").write_text(SGML)
    assert list(segments(tmp_path / "x.sgm")) == ['A & B\'s "C"', "two lines", ""]
    (tmp_path / "cut.sgm").write_text(SGML[: SGML.index("</SEG>")])
    with pytest.raises(ValueError, match=r"cut.sgm is truncated: it opens 3 segments and closes 2"):
        list(segments(tmp_path / "cut.sgm"))


def test_tags(tmp_path: Path) -> None:
    (tmp_path / "train.tags").write_text(TAGS)
    assert list(tagged(tmp_path / "train.tags")) == [
        "Eine Frage",
        "TED Talk: Wieso?",
        "Das Volk von <b>hier</b>.",
        "Zwei.",
    ]


def test_words_that_were_cut(tmp_path: Path) -> None:
    (tmp_path / "bpe").write_text("es ist diese pyrami@@ de .\nend@@\n@@ bleibt\n")
    assert list(without_bpe(tmp_path / "bpe")) == ["es ist diese pyramide .", "end", "bleibt"]


def test_pairs_are_read_anew_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("one\ntwo\nthree\n")
    pairs = in_parallel(tmp_path / "a", tmp_path / "b")
    assert list(pairs) == list(pairs) == [("1", "one"), ("2", "two"), ("3", "three")]
    assert list(pairs.head(2)) == [("1", "one"), ("2", "two")]
    twice = joined([pairs, pairs])
    assert len(list(twice)) == 6
    assert twice.files == pairs.files * 2
    before = pairs.digest()
    (tmp_path / "b").write_text("one\ntwo\n")
    assert pairs.digest() != before
    with pytest.raises(ValueError, match=r"b ends after 2 sentences, .*a does not"):
        list(pairs)


def test_columns(tmp_path: Path) -> None:
    (tmp_path / "deu.txt").write_text("Hi.\tHallo!\tCC-BY\nRun!\tLauf!\n")
    assert list(in_columns(tmp_path / "deu.txt", 1, 0)) == [("Hallo!", "Hi."), ("Lauf!", "Run!")]
    (tmp_path / "deu.txt").write_text("\tHallo!\tCC-BY\n Run! \tLauf!\r\n")
    assert list(in_columns(tmp_path / "deu.txt", 0, 1)) == [("", "Hallo!"), ("Run!", "Lauf!")], "no column moves up"
    (tmp_path / "deu.txt").write_text("Hi.\tHallo!\nRun!\n")
    with pytest.raises(ValueError, match=r"deu.txt, line 2: 1 columns, but 2 are needed"):
        list(in_columns(tmp_path / "deu.txt", 0, 1))


def test_gzipped_files_are_found_under_their_plain_names(tmp_path: Path) -> None:
    """As giga-fren's archive holds them."""
    for language in ("en", "fr"):
        with gzip.open(tmp_path / f"giga.{language}.gz", "wt") as file:
            file.write(f"{language}\n")
    assert list(in_parallel(tmp_path / "giga.en", tmp_path / "giga.fr")) == [("en", "fr")]
