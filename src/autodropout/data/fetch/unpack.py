"""Unpack archives that may be hostile: tar, plain or compressed, and zip.

Only files are unpacked, to paths below the folder; their contents alone, without owners, modes or dates. Refused are
absolute paths and those with `..`, links and devices, encrypted members, two members of one path, and archives that
grow too much: to more than GROWTH times their size and SLACK bytes, or to more than MEMBERS members.
"""

import gzip
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

GROWTH = 20  # text shrinks to a fourth; what shrinks to less than a twentieth is no data
SLACK = 100_000_000
MEMBERS = 2_000_000  # ImageNet has 1.4 million


class UnsafeArchive(ValueError):
    """An archive that we do not unpack."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in an archive."""

    path: str  # normalized
    size: int
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, folder: Path, only: Collection[str] = ()) -> None:
    """Unpack into a folder.

    Args:
        only: these paths alone; all if empty.

    Raises:
        UnsafeArchive: it is damaged or hostile; some of it may then be in the folder, for the caller to remove.
    """
    with opened(archive) as entries:
        for entry in entries:
            if only and entry.path not in only:
                continue
            target = folder / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with entry.open() as content, target.open("xb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            if target.stat().st_size != entry.size:
                raise UnsafeArchive(f"{archive.name}: {entry.path} has not the {entry.size:,} bytes it is said to have")


@contextmanager
def opened(archive: Path) -> Iterator[Iterator[Entry]]:
    """The files of an archive, each looked at before it is given; to be read in turn.

    Raises:
        UnsafeArchive: an entry is hostile, or the archive damaged.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                yield _watched(archive, _zip_entries(archive, packed))
        else:
            with tarfile.open(archive) as packed:
                yield _watched(archive, _tar_entries(archive, packed))
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UnsafeArchive(f"{archive.name} is damaged or no archive: {error}") from None


def is_archive(name: str) -> bool:
    return name.endswith((".tar", ".tar.gz", ".tgz", ".tar.xz", ".zip"))


def _watched(archive: Path, entries: Iterable[Entry]) -> Iterator[Entry]:
    """The same entries, unless there are too many, too large or twice the same."""
    limit, total, seen = archive.stat().st_size * GROWTH + SLACK, 0, set()
    for entry in entries:
        total += entry.size
        if total > limit:
            raise UnsafeArchive(f"{archive.name} would grow to more than {limit:,} bytes")
        if entry.path == ".":
            raise UnsafeArchive(f"{archive.name} holds a file without a name")
        if entry.path.casefold() in seen:  # on some disks A and a are one file
            raise UnsafeArchive(f"{archive.name} holds {entry.path!r} twice")
        seen.add(entry.path.casefold())
        if len(seen) > MEMBERS:
            raise UnsafeArchive(f"{archive.name} has more than {MEMBERS:,} members")
        yield entry


def _tar_entries(archive: Path, packed: tarfile.TarFile) -> Iterator[Entry]:
    for member in packed:
        path = _checked(archive, member.name)
        if member.isdir():
            continue
        if not member.isreg():
            raise UnsafeArchive(f"{archive.name}: {member.name!r} is a link or a device")
        yield Entry(path, member.size, lambda member=member: _content(packed, member))  # type: ignore[misc]


def _zip_entries(archive: Path, packed: zipfile.ZipFile) -> Iterator[Entry]:
    for member in packed.infolist():
        path = _checked(archive, member.filename)
        if member.is_dir():
            continue
        kind = stat.S_IFMT(member.external_attr >> 16)  # Unix's, 0 if made elsewhere
        if kind not in (0, stat.S_IFREG):
            raise UnsafeArchive(f"{archive.name}: {member.filename!r} is a link or a device")
        if member.flag_bits & 1:
            raise UnsafeArchive(f"{archive.name}: {member.filename!r} is encrypted")
        yield Entry(path, member.file_size, lambda member=member: packed.open(member))  # type: ignore[misc]


def _content(packed: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = packed.extractfile(member)
    assert content is not None, "only files are opened"
    return content


def _checked(archive: Path, name: str) -> str:
    """The path, normalized.

    Raises:
        UnsafeArchive: it leads out of the folder, or means different things on different systems.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise UnsafeArchive(f"{archive.name}: {name!r} leads out of its folder")
    return str(path)
