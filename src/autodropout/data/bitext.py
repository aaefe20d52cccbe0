"""Sentence pairs in files, in the formats they are published in: plain text, gzip, SGML, IWSLT's XML and tags, tables.

A reader turns one file into its sentences, in order. Two files that are translations of each other must have equally
many: a sentence too few would pair all that follow wrongly.
"""

import gzip
import hashlib
import html
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path

from autodropout.data.folders import gzipped_or_not

Reader = Callable[[Path], Iterator[str]]

_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
_LEFT_OUT = re.compile(r"\s*</?(url|talkid|keywords|speaker|reviewer|translator|doc)\b", re.IGNORECASE)
_KEPT_TAG = re.compile(r"</?(title|description)>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Bitext:
    """Sentence pairs, read from their files at each iteration: those of WMT'14 do not fit into memory."""

    files: tuple[Path, ...]
    read: Callable[[], Iterable[tuple[str, str]]]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.read())

    def head(self, count: int | None) -> Iterator[tuple[str, str]]:
        return islice(self, count)

    def digest(self) -> str:
        """SHA-256 of the files' contents: names what is made from them."""
        total = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as content:
                total.update(hashlib.file_digest(content, "sha256").digest())
        return total.hexdigest()


def lines(file: Path) -> Iterator[str]:
    """Plain text, also as .gz: a sentence a line."""
    return (line.strip() for line in _lines(file))


def _lines(file: Path) -> Iterator[str]:
    """As they stand there."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8", newline="\n") as content:  # other separators of lines are text
        try:
            yield from content
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8: {error}") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{file} is damaged: {error}") from None


def without_bpe(file: Path) -> Iterator[str]:
    """Text whose words were cut by subword-nmt, put together again."""
    return (re.sub(r"@@( |$)", "", line) for line in lines(file))


def segments(file: Path) -> Iterator[str]:
    """The `<seg>` elements of WMT's SGML and IWSLT's XML test sets. Both are read as text: SGML is no XML."""
    text = "\n".join(lines(file))
    if (found := len(_SEGMENT.findall(text))) != (opened := len(re.findall(r"<seg\b", text, re.IGNORECASE))):
        raise ValueError(f"{file} is truncated: it opens {opened} segments and closes {found}")
    return (" ".join(html.unescape(segment).split()) for segment in _SEGMENT.findall(text))


def tagged(file: Path) -> Iterator[str]:
    """IWSLT's train.tags files: talks' titles and descriptions are sentences too, their other headers are not."""
    return (_KEPT_TAG.sub("", line).strip() for line in lines(file) if not _LEFT_OUT.match(line))


def in_parallel(source: Path, target: Path, read: Reader = lines) -> Bitext:
    """Two files that are translations of each other; each may be gzipped, its name then ending in .gz."""
    source, target = gzipped_or_not(source), gzipped_or_not(target)
    return Bitext((source, target), lambda: _zipped(source, target, read))


def in_columns(file: Path, source: int, target: int) -> Bitext:
    """A table with tabs, such as Tatoeba's: the columns of the two languages, the first being 0."""
    return Bitext((file,), lambda: _columns(file, source, target))


def joined(parts: Iterable[Bitext]) -> Bitext:
    """One after the other."""
    kept = tuple(parts)
    return Bitext(tuple(file for part in kept for file in part.files), lambda: chain.from_iterable(kept))


def _zipped(source: Path, target: Path, read: Reader) -> Iterator[tuple[str, str]]:
    for number, (one, other) in enumerate(zip_longest(read(source), read(target))):
        if one is None or other is None:
            short, long = (source, target) if one is None else (target, source)
            raise ValueError(f"{short} ends after {number:,} sentences, {long} does not: they are no translations")
        yield one, other


def _columns(file: Path, source: int, target: int) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_lines(file), start=1):
        cells = [cell.strip() for cell in line.split("\t")]  # the first may be empty
        if len(cells) <= max(source, target):
            raise ValueError(f"{file}, line {number}: {len(cells)} columns, but {max(source, target) + 1} are needed")
        yield cells[source], cells[target]
