"""One file over HTTP, with a progress bar, resumed where an earlier attempt was cut.

    FILE.part          the bytes so far
    FILE.part.json     what they are bytes of: the address, and the server's validator for its version of the file

A cut download is continued with `Range`, and only where the server confirms, by `If-Range` with a strong ETag or a
date, that its file is still the one we have the head of. A server that ignores the range sends the whole file, and we
start anew; one that answers with another part than asked for is not believed. After a cut we try again, until ATTEMPTS
in a row have gained nothing.
"""

import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPResponse
from importlib.metadata import version
from pathlib import Path
from ssl import SSLError
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from autodropout.data.atomic import whole_file
from autodropout.data.progress import bar

ATTEMPTS = 5
TIMEOUT = 60.0  # seconds without a byte
BLOCK = 1 << 16


class FetchError(OSError):
    """A download did not succeed."""


class _Cut(Exception):
    """The connection ended too early, or the server asked for patience: worth another attempt."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What is there of a file, on this disk."""

    file: Path
    facts: Path

    def size_of(self, url: str) -> tuple[int, str]:
        """How many bytes, and the validator of the version they are of; 0 where they cannot be continued."""
        try:
            facts = json.loads(self.facts.read_text())
            same, validator = facts["url"] == url, str(facts["validator"])
            return (self.file.stat().st_size, validator) if same and validator else (0, "")
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0, ""

    def begin(self, url: str, validator: str) -> None:
        """Forget the bytes, then say what those to come will be of."""
        self.file.write_bytes(b"")
        with whole_file(self.facts) as partial:
            partial.write_text(json.dumps({"url": url, "validator": validator}))

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)
        self.facts.unlink(missing_ok=True)


def download(url: str, file: Path, *, pause: float = 1.0) -> None:
    """Fetch `url` to `file`, which is there only once it is whole.

    Args:
        pause: seconds before the second attempt, doubled before each further one.

    Raises:
        FetchError: the server refuses, or the connection breaks again and again.
        OSError: the disk is full; what was fetched is kept for the next time.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"only http and https are fetched from, got {url!r}")
    file.parent.mkdir(parents=True, exist_ok=True)
    part = _Part(file.with_name(file.name + ".part"), file.with_name(file.name + ".part.json"))
    attempt, reached = 1, part.size_of(url)[0]
    while True:
        try:
            _attempt(url, part)
            break
        except _Cut as cut:
            now = part.size_of(url)[0]
            attempt = 1 if now > reached else attempt + 1
            reached = max(reached, now)
            if attempt > ATTEMPTS:
                raise FetchError(f"{url}: {cut}; gave up after {ATTEMPTS} attempts that gained nothing") from None
            time.sleep(pause * 2 ** (attempt - 1))
    with part.file.open("rb") as content:
        os.fsync(content.fileno())
    os.replace(part.file, file)
    part.remove()


def _attempt(url: str, part: _Part) -> None:
    have, validator = part.size_of(url)
    headers = {"User-Agent": f"autodropout/{version('autodropout')}", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    try:
        with _opener().open(Request(url, headers=headers), timeout=TIMEOUT) as response:
            _receive(response, url, part, have)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # nothing follows what we have: it may be all, if we were killed at the end
            if error.headers.get("Content-Range") != f"bytes */{have}":
                part.remove()
                raise _Cut(f"the server has nothing after byte {have}") from None
            return
        if error.code in (429, 500, 502, 503, 504):
            raise _Cut(f"the server answers {error.code} {error.reason}") from None
        raise FetchError(f"{url}: the server answers {error.code} {error.reason}") from None
    except URLError as error:
        raise _Cut(f"no connection ({error.reason})") from None
    except (HTTPException, TimeoutError, ConnectionError, SSLError) as error:
        raise _Cut(f"the connection broke ({error or type(error).__name__})") from None


def _receive(response: HTTPResponse, url: str, part: _Part, have: int) -> None:
    """Append the answer to the part, or begin it anew."""
    if have and response.status == 206:
        if (start := _first_byte(response.headers)) != have:
            part.remove()
            raise _Cut(f"the server sent what follows byte {start}, not {have}")
    else:
        have = 0
        part.begin(url, _validator(response.headers))
    length = response.headers.get("Content-Length") or ""
    total = have + int(length) if length.isdecimal() else None
    free = shutil.disk_usage(part.file.parent).free
    if total is not None and total - have > free:
        raise FetchError(f"{url} has {total:,} bytes, {part.file.parent} has room for {free:,}")
    with part.file.open("ab") as file, bar(Path(urlsplit(url).path).name, total, have, in_bytes=True) as advance:
        while block := response.read(BLOCK):
            file.write(block)
            advance(len(block))
        got = file.tell()
    if total is not None and got != total:  # never more: the client stops reading there
        raise _Cut(f"the connection ended after {got:,} of {total:,} bytes")


def _first_byte(headers: Message) -> int | None:
    """Of a partial answer: 100 for `bytes 100-199/200`."""
    found = re.match(r"bytes (\d+)-", headers.get("Content-Range") or "")
    return int(found[1]) if found else None


def _validator(headers: Message) -> str:
    """What names the server's version of the file; a weak ETag does not."""
    etag = headers.get("ETag") or ""
    return etag if etag.startswith('"') else headers.get("Last-Modified") or ""


class _NeverToPlain(HTTPRedirectHandler):
    """From https we are not led to http."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise FetchError(f"{req.full_url} leads to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> Any:
    return build_opener(_NeverToPlain)
