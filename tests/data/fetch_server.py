"""An HTTP server on this machine that behaves as well or as badly as a test wants."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What it serves, and how. Each request takes one item of `cuts` and of `statuses` while there are any."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    etag: str | None = '"first"'
    ranges: bool = True  # answers with parts
    shifted: int = 0  # answers with another part than asked for
    length: bool = True  # says how much will come
    cuts: list[int | None] = field(default_factory=list)  # end the connection after so many bytes of the body
    statuses: list[int] = field(default_factory=list)  # instead of an answer
    redirect: str | None = None
    asked: list[dict[str, str]] = field(default_factory=list)  # the headers of each request


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    server = _Server(site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def __init__(self, site: Site) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.site = site


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        site, name = self.server.site, self.path.lstrip("/")
        site.asked.append({header.lower(): value for header, value in self.headers.items()})
        if site.statuses:
            self.send_error(site.statuses.pop(0))
        elif site.redirect is not None:
            self.answer(302, b"", Location=site.redirect)
        elif name not in site.files:
            self.send_error(404)
        else:
            self.send_part(site, site.files[name])

    def send_part(self, site: Site, content: bytes) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        valid = self.headers.get("If-Range") in (None, site.etag)
        if not wanted or not valid or not site.ranges:
            self.answer(200, content, ETag=site.etag)
            return
        total, first = len(content), int(wanted[1])
        if first >= total:
            self.answer(416, b"", **{"Content-Range": f"bytes */{total}"})
            return
        first += site.shifted
        self.answer(206, content[first:], ETag=site.etag, **{"Content-Range": f"bytes {first}-{total - 1}/{total}"})

    def answer(self, status: int, body: bytes, **headers: str | None) -> None:
        site = self.server.site
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        if site.length or not body:
            self.send_header("Content-Length", str(len(body)))
        self.close_connection = True
        self.end_headers()
        cut = site.cuts.pop(0) if body and site.cuts else None
        self.wfile.write(body[:cut])

    def log_message(self, *_: object) -> None:
        pass
