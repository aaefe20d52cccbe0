"""Downloads over a server that cuts, lies, changes its file or ignores ranges."""

import errno
import json
import shutil
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetch_server import Site, serving

from autodropout.data.fetch import download as module
from autodropout.data.fetch.download import FetchError, download

CONTENT = bytes(range(256)) * 2000  # half a megabyte: several blocks


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(files={"x.bin": CONTENT})) as running:
        yield running


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "downloads/x.bin"


def fetch(site: Site, file: Path) -> None:
    download(site.address + "x.bin", file, pause=0.0)


def only_the_file(file: Path) -> bool:
    return file.read_bytes() == CONTENT and list(file.parent.iterdir()) == [file]


def test_a_whole_file(site: Site, file: Path) -> None:
    fetch(site, file)
    assert only_the_file(file)
    assert site.asked[0]["user-agent"].startswith("autodropout/")  # some servers turn Python's own name away
    assert "range" not in site.asked[0]


def test_a_cut_connection_is_continued_where_it_was_cut(site: Site, file: Path) -> None:
    site.cuts = [100_000, 150_000, None]
    fetch(site, file)
    assert only_the_file(file)
    assert [asked.get("range") for asked in site.asked] == [None, "bytes=100000-", "bytes=250000-"]
    assert site.asked[1]["if-range"] == '"first"'


def test_another_process_continues(site: Site, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the attempts are used up the part stays, for the next command."""
    site.cuts = [100_000, 0, 0]
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    with pytest.raises(FetchError, match=r"ended after 100,000 of 512,000 bytes; gave up after 2 attempts"):
        fetch(site, file)
    assert not file.exists()
    fetch(site, file)
    assert only_the_file(file)
    assert site.asked[-1]["range"] == "bytes=100000-"


def test_a_file_that_changed_in_between_is_fetched_anew(
    site: Site, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never the head of one version and the tail of another."""
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    site.cuts = [100_000, 0]
    with pytest.raises(FetchError):
        fetch(site, file)
    site.cuts = []
    site.files["x.bin"], site.etag = CONTENT[::-1], '"second"'
    fetch(site, file)
    assert file.read_bytes() == CONTENT[::-1]


def test_a_server_that_ignores_ranges(site: Site, file: Path) -> None:
    site.cuts, site.ranges = [100_000, None], False
    fetch(site, file)
    assert only_the_file(file)
    assert site.asked[1]["range"] == "bytes=100000-"


def test_a_server_that_sends_another_part(site: Site, file: Path) -> None:
    site.cuts, site.shifted = [100_000], 7
    fetch(site, file)
    assert only_the_file(file)
    assert [asked.get("range") for asked in site.asked] == [None, "bytes=100000-", None]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_validator_nothing_is_continued(site: Site, file: Path, etag: str | None) -> None:
    site.cuts, site.etag = [100_000, None], etag
    fetch(site, file)
    assert only_the_file(file)
    assert "range" not in site.asked[1]


def test_killed_after_the_last_byte(site: Site, file: Path) -> None:
    """The whole file is there as a part: the server has nothing to add, and is believed if it has the same length."""
    file.parent.mkdir()
    facts = {"url": site.address + "x.bin", "validator": '"first"'}
    (file.parent / "x.bin.part.json").write_text(json.dumps(facts))
    (file.parent / "x.bin.part").write_bytes(CONTENT)
    fetch(site, file)
    assert only_the_file(file)
    assert len(site.asked) == 1


def test_a_part_longer_than_the_file(site: Site, file: Path) -> None:
    file.parent.mkdir()
    facts = {"url": site.address + "x.bin", "validator": '"first"'}
    (file.parent / "x.bin.part.json").write_text(json.dumps(facts))
    (file.parent / "x.bin.part").write_bytes(CONTENT + b"x")
    fetch(site, file)
    assert only_the_file(file)


@pytest.mark.parametrize("facts", ["", "{}", "[1]", '{"url": "http://elsewhere/", "validator": "x"}'])
def test_a_part_of_something_else_is_not_continued(site: Site, file: Path, facts: str) -> None:
    file.parent.mkdir()
    (file.parent / "x.bin.part.json").write_text(facts)
    (file.parent / "x.bin.part").write_bytes(b"garbage")
    fetch(site, file)
    assert only_the_file(file)
    assert "range" not in site.asked[0]


def test_a_busy_server_is_asked_again_a_missing_file_is_not(site: Site, file: Path) -> None:
    site.statuses = [503, 429, 500]
    fetch(site, file)
    assert only_the_file(file)
    before = len(site.asked)
    with pytest.raises(FetchError, match=r"none.bin: the server answers 404"):
        download(site.address + "none.bin", file.with_name("none.bin"), pause=0.0)
    assert len(site.asked) == before + 1


def test_a_server_that_is_always_busy_or_always_cuts(site: Site, file: Path) -> None:
    site.statuses = [503] * 20
    with pytest.raises(FetchError, match=r"503 .* gave up after 5 attempts"):
        fetch(site, file)
    assert len(site.asked) == 5
    site.statuses, site.cuts, site.ranges = [], [1000] * 20, False  # no range and always the same cut: no gain
    with pytest.raises(FetchError, match="1,000 of 512,000 bytes; gave up"):
        fetch(site, file)
    assert len(site.asked) == 5 + 1 + 5


def test_no_server(file: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # ours, so nobody else's, and nobody listens
        with pytest.raises(FetchError, match="no connection"):
            download(f"http://127.0.0.1:{port}/x.bin", file, pause=0.0)
    assert not file.exists()


def test_a_full_disk_keeps_the_part(site: Site, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write fails in the middle; with room again, the same command continues."""
    real = Path.open

    def failing(self: Path, mode: str = "r", *args: object, **kwargs: object) -> object:
        opened = real(self, mode, *args, **kwargs)
        if self.name == "x.bin.part" and mode == "ab":
            write = opened.write

            def full(block: bytes) -> int:
                if opened.tell() > 200_000:
                    raise OSError(errno.ENOSPC, "No space left on device", str(self))
                return write(block)

            return Wrapped(opened, full)
        return opened

    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(OSError, match="No space left"):
        fetch(site, file)
    monkeypatch.undo()
    assert not file.exists()
    fetch(site, file)
    assert only_the_file(file)
    assert int(site.asked[-1]["range"][6:-1]) > 200_000


class Wrapped:
    def __init__(self, opened: object, write: object) -> None:
        self.opened, self.write = opened, write

    def __enter__(self) -> "Wrapped":
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self.opened, name)


def test_a_disk_too_small_is_noticed_before(site: Site, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1000))
    with pytest.raises(FetchError, match=r"has 512,000 bytes, .* has room for 1,000"):
        fetch(site, file)
    assert len(site.asked) == 1


def test_without_a_length_the_end_is_believed(site: Site, file: Path) -> None:
    site.length = False
    fetch(site, file)
    assert only_the_file(file)


def test_redirects_are_followed(site: Site, file: Path) -> None:
    with serving(Site(redirect=site.address + "x.bin")) as other:
        download(other.address + "x.bin", file, pause=0.0)
    assert only_the_file(file)


def test_only_http(tmp_path: Path) -> None:
    for url in ("file:///etc/hostname", "ftp://127.0.0.1/x", "/etc/hostname"):
        with pytest.raises(ValueError, match="only http and https"):
            download(url, tmp_path / "x")


def test_from_https_we_are_not_led_to_http() -> None:
    from urllib.request import Request

    handler = module._NeverToPlain()
    with pytest.raises(FetchError, match="which is not encrypted"):
        handler.redirect_request(Request("https://a/x"), None, 302, "", {}, "http://b/x")
    assert handler.redirect_request(Request("https://a/x"), None, 302, "", {}, "https://b/x").full_url == "https://b/x"
