"""Storage URLs: what a user writes after `--storage`, checked, and never shown with its password.

sqlite:///study.db                         a file, relative to the current folder
sqlite:////data/study.db                   an absolute path
sqlite:///study.db?journal=delete          for a network file system whose locks can be trusted; slower
postgresql://user:password@host:5432/name  a server; libpq's parameters may follow, as in ?sslmode=require
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from autodropout.search.errors import BadAddress

EXAMPLES = "sqlite:///study.db or postgresql://user:password@host/database"
JOURNALS = ("wal", "delete")
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_SECRET = re.compile("pass|pw|secret", re.IGNORECASE)  # in a parameter's name, misspelt ones included


@dataclass(frozen=True, slots=True)
class Address:
    """Where a ledger is. `str` and `repr` hide passwords; `mask` takes them out of any text."""

    url: URL = field(repr=False)
    shown: str  # the URL without its secrets
    secrets: tuple[str, ...] = field(repr=False)
    path: Path | None = None  # SQLite's file
    journal: str = "wal"

    def __str__(self) -> str:
        return self.shown

    def mask(self, text: str) -> str:
        """The text with every secret replaced, however it was quoted."""
        for secret in self.secrets:
            for spelling in {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), repr(secret)[1:-1]}:
                text = text.replace(spelling, "***")
        return text


def parse_url(text: str) -> Address:
    """The address a storage URL names. Messages of a refusal repeat no part of it that could be a password."""
    scheme, found, rest = text.partition("://") if isinstance(text, str) else ("", "", "")
    if not found:
        raise BadAddress(f"a storage is a URL, such as {EXAMPLES}; a file needs sqlite:/// before its path")
    if scheme == "sqlite":
        return _sqlite(rest)
    if scheme in _POSTGRES:
        return _postgresql(rest)
    if re.fullmatch(r"postgres(ql)?\+\w+", scheme):
        raise BadAddress(f"PostgreSQL is reached through psycopg 3: write postgresql://, not {scheme}://")
    raise BadAddress(f"{scheme[:40]!r} is not a storage autodropout knows: write {EXAMPLES}")


def _sqlite(rest: str) -> Address:
    name, _, query = rest.partition("?")
    if not name.startswith("/"):
        raise BadAddress(f"sqlite://{rest} names no file: write three slashes, then a path, as in sqlite:///study.db")
    path = name[1:]
    if not path or path == ":memory:":
        raise BadAddress("a ledger must outlive its process: give a file, as in sqlite:///study.db")
    journal = "wal"
    if query:
        key, _, journal = query.partition("=")
        if key != "journal" or journal not in JOURNALS:
            raise BadAddress(f"sqlite://{rest}: the only option is ?journal=, one of {', '.join(JOURNALS)}")
    return Address(URL.create("sqlite", database=path), f"sqlite://{rest}", (), Path(path), journal)


def _postgresql(rest: str) -> Address:
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if rest.count("@") > authority.count("@") or authority.count("@") > 1:
        # Parsed anyway, a part of the password would become the host, and be shown in every message.
        raise BadAddress(
            "the PostgreSQL URL has an @ in an unexpected place: in user and password, "
            "write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23"
        )
    url, problem = None, ""
    try:
        url = make_url(f"postgresql+psycopg://{rest}")
    except (ArgumentError, ValueError):  # its message may quote what stands where a port should
        problem = "the PostgreSQL URL cannot be read"
    if url is not None and (not url.database or "/" in url.database):
        problem = "the PostgreSQL URL names no database"
    if url is None or problem:
        raise BadAddress(f"{problem}: write postgresql://user:password@host:5432/database")
    hidden = {key: value for key, value in url.query.items() if _SECRET.search(key)}
    texts = [str(url.password or ""), *(text for v in hidden.values() for text in ([v] if isinstance(v, str) else v))]
    shown = url.difference_update_query(hidden).set(drivername="postgresql").render_as_string(hide_password=True)
    return Address(url, shown, tuple(sorted(filter(None, texts), key=len, reverse=True)))
