"""Whether a downloaded file is the one meant: by a checksum of the file, or by the digests of what it holds.

Where nobody has published a checksum there is none here either. Such a file is taken only when the user says so; what
came is then written down in `checksums.json`, and the next download of that address must be the same.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autodropout.data.atomic import whole_file
from autodropout.data.fetch.unpack import Entry, opened

RECORD = "checksums.json"


class WrongContent(ValueError):
    """A file is not the one meant."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Of a whole file, and whose it is."""

    algorithm: Literal["md5", "sha256"]
    digest: str
    by: str  # "our", "the publisher's", "torchvision's"


def check_file(file: Path, expected: Checksum) -> None:
    """
    Raises:
        WrongContent: the file has another checksum.
    """
    if (found := digest_of(file, expected.algorithm)) != expected.digest:
        told = f"{expected.by} {expected.algorithm} is {expected.digest}"
        raise WrongContent(f"{file.name} is not the file meant: {told}, the downloaded file's {found}")


def check_members(file: Path, expected: Mapping[str, str]) -> None:
    """That an archive is safe to unpack and holds these files, by path, with these SHA-256. Nothing is written.

    Raises:
        WrongContent: one is missing or other.
        UnsafeArchive: the archive is hostile or damaged.
    """
    missing = set(expected)
    with opened(file) as entries:
        for entry in entries:
            if entry.path in expected:
                found, wanted = _sha256(entry), expected[entry.path]
                if found != wanted:
                    raise WrongContent(f"{entry.path} in {file.name} has the sha256 {found}, not {wanted}")
                missing.discard(entry.path)
    if missing:
        raise WrongContent(f"{file.name} does not hold {', '.join(sorted(missing))}")


def check_record(file: Path, url: str, folder: Path) -> None:
    """That a file nobody published a checksum of is the one that came the last time; the first time, remember it.

    Raises:
        WrongContent: it is another.
    """
    record = folder / RECORD
    known = json.loads(record.read_text()) if record.exists() else {}
    found = digest_of(file, "sha256")
    if known.setdefault(url, found) != found:
        raise WrongContent(
            f"{url} has the sha256 {found}; at the first download it had {known[url]}. If its publisher has changed "
            f"it, remove its line from {record}"
        )
    with whole_file(record) as partial:
        partial.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def _sha256(entry: Entry) -> str:
    total = hashlib.sha256()
    with entry.open() as content:
        while block := content.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def digest_of(file: Path, algorithm: str) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, algorithm).hexdigest()
