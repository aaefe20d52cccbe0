"""A dataset is fetched, checked, unpacked and put in place, or nothing of it is there."""

import errno
import hashlib
import io
import json
import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetch_server import Site, serving

from autodropout.data import MissingData, cifar10, multi30k, ptb, wikitext2
from autodropout.data.fetch import get as module
from autodropout.data.fetch.catalogue import DATASETS, Dataset, Download
from autodropout.data.fetch.checks import Checksum, WrongContent
from autodropout.data.fetch.download import FetchError
from autodropout.data.fetch.get import Unverified, get
from autodropout.data.fetch.unpack import UnsafeArchive
from autodropout.data.folders import find


def packed(**members: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


ARCHIVE = packed(**{"toy/train": b"one two", "toy/test": b"three", "toy/readme": b"hello"})


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


MEMBERS = {"toy/train": sha256(b"one two"), "toy/test": sha256(b"three")}


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(files={"toy.tgz": ARCHIVE})) as running:
        yield running


def toy(*downloads: Download) -> Dataset:
    def where(data: Path | str | None) -> Path:
        return find("toy", ("train", "test"), inside=("toy",), data=data)

    return Dataset("toy", "a toy", "1 kB", "free", where, downloads)


def from_site(site: Site, checksum: Checksum | None = None, members: dict[str, str] | None = None) -> Dataset:
    return toy(Download((site.address + "toy.tgz",), "toy.tgz", checksum, members or {}))


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("how", ["sha256", "md5", "members"])
def test_fetched_checked_unpacked(site: Site, tmp_path: Path, how: str) -> None:
    checksums = {
        "sha256": Checksum("sha256", sha256(ARCHIVE), "our"),
        "md5": Checksum("md5", hashlib.md5(ARCHIVE).hexdigest(), "the publisher's"),
        "members": None,
    }
    said: list[str] = []
    dataset = from_site(site, checksums[how], MEMBERS if how == "members" else None)
    assert get(dataset, tmp_path, say=said.append) == tmp_path / "toy/toy"
    assert (tmp_path / "toy/toy/train").read_bytes() == b"one two"
    assert (tmp_path / "toy/toy/readme").exists() == (how != "members")  # of pinned members, nothing else is taken
    assert visible(tmp_path) == ["toy"]
    assert [line.split()[0] for line in said] == ["fetching", "checking", "unpacking"]
    assert not (tmp_path / ".downloads/toy").exists()
    before = len(site.asked)
    assert get(dataset, tmp_path) == tmp_path / "toy/toy"  # it is there
    assert len(site.asked) == before


@pytest.mark.parametrize("how", ["whole", "member", "missing member"])
def test_wrong_bytes_are_not_unpacked(site: Site, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "unpack", lambda *_, **__: pytest.fail("unpacked before it was checked"))
    checksum, members = None, MEMBERS
    if how == "whole":
        checksum, message = Checksum("md5", "0" * 32, "the publisher's"), "the publisher's md5 is 0{32}, the downloaded"
    elif how == "member":
        members, message = {**MEMBERS, "toy/test": "1" * 64}, "toy/test in toy.tgz has the sha256 .*, not 1{64}"
    else:
        members, message = {**MEMBERS, "toy/valid": "1" * 64}, "toy.tgz does not hold toy/valid"
    with pytest.raises(WrongContent, match=message):
        get(from_site(site, checksum, members), tmp_path)
    assert visible(tmp_path) == []
    assert not list((tmp_path / ".downloads/toy").iterdir())  # the next attempt starts anew


def test_an_archive_that_tries_to_escape(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "unpack", lambda *_, **__: pytest.fail("unpacked before it was looked at"))
    site.files["toy.tgz"] = evil = packed(**{"toy/train": b"one two", "toy/test": b"three", "../../escaped": b"!"})
    for checksum, members in ((Checksum("sha256", sha256(evil), "our"), {}), (None, MEMBERS)):
        with pytest.raises(UnsafeArchive, match=r"'../../escaped' leads out of its folder"):
            get(from_site(site, checksum, members), tmp_path / "data")
    with pytest.raises(UnsafeArchive):
        get(from_site(site), tmp_path / "data", unverified=True)
    assert visible(tmp_path) == ["data"]
    assert visible(tmp_path / "data") == ["checksums.json"] or visible(tmp_path / "data") == []
    assert not list(tmp_path.rglob("escaped"))


def test_without_a_published_checksum_the_user_decides(site: Site, tmp_path: Path) -> None:
    with pytest.raises(Unverified, match=r"nobody has published a checksum of toy.tgz.*--unverified"):
        get(from_site(site), tmp_path)
    assert not site.asked
    get(from_site(site), tmp_path, unverified=True)
    assert json.loads((tmp_path / "checksums.json").read_text()) == {site.address + "toy.tgz": sha256(ARCHIVE)}


def test_what_came_without_a_checksum_is_compared_the_next_time(site: Site, tmp_path: Path) -> None:
    get(from_site(site), tmp_path, unverified=True)
    shutil.rmtree(tmp_path / "toy")
    get(from_site(site), tmp_path, unverified=True)  # the same again
    shutil.rmtree(tmp_path / "toy")
    site.files["toy.tgz"] = packed(**{"toy/train": b"changed", "toy/test": b"three"})
    with pytest.raises(WrongContent, match=f"at the first download it had {sha256(ARCHIVE)}"):
        get(from_site(site), tmp_path, unverified=True)
    assert visible(tmp_path) == ["checksums.json"]


def test_the_next_address_is_tried(site: Site, tmp_path: Path) -> None:
    site.files["moved.tgz"] = b"<html>We have moved</html>"
    urls = tuple(site.address + name for name in ("gone.tgz", "moved.tgz", "toy.tgz"))
    said: list[str] = []
    get(toy(Download(urls, "toy.tgz", None, MEMBERS)), tmp_path, say=said.append, pause=0.0)
    assert (tmp_path / "toy/toy/test").exists()
    assert sum("trying the next address" in line for line in said) == 2


def test_files_that_are_no_archives_are_kept_as_they_are(site: Site, tmp_path: Path) -> None:
    site.files |= {"train": b"1", "test": b"2"}
    files = (
        Download((site.address + name,), name, Checksum("sha256", sha256(content), "our"))
        for name, content in (("train", b"1"), ("test", b"2"))
    )
    assert get(toy(*files), tmp_path) == tmp_path / "toy"
    assert (tmp_path / "toy/test").read_bytes() == b"2"


def test_what_is_downloaded_is_not_downloaded_again(site: Site, tmp_path: Path) -> None:
    """Of two files the second fails: the first is kept for the next attempt, and checked again."""
    site.files["train"] = b"1"
    first = Download((site.address + "train",), "train", Checksum("sha256", sha256(b"1"), "our"))
    second = Download((site.address + "test",), "test", Checksum("sha256", sha256(b"2"), "our"))
    with pytest.raises(FetchError, match="404"):
        get(toy(first, second), tmp_path)
    assert visible(tmp_path) == []
    site.files["test"] = b"2"
    before = len(site.asked)
    get(toy(first, second), tmp_path)
    assert len(site.asked) == before + 1
    (tmp_path / ".downloads/toy").mkdir(parents=True)
    shutil.rmtree(tmp_path / "toy")
    (tmp_path / ".downloads/toy/train").write_bytes(b"not one")
    with pytest.raises(WrongContent):
        get(toy(first, second), tmp_path)


def test_a_disk_that_fills_up_while_unpacking(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half-written is left, and the download is kept."""
    real = shutil.copyfileobj

    def full(source: io.BytesIO, target: io.BytesIO, *rest: int) -> None:
        real(source, target, *rest)
        if target.name.endswith("test"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    dataset = from_site(site, members=MEMBERS)
    with pytest.raises(OSError, match="No space left"):
        get(dataset, tmp_path)
    assert visible(tmp_path) == []
    assert not list(tmp_path.glob(".toy-*.tmp"))
    monkeypatch.undo()
    before = len(site.asked)
    get(dataset, tmp_path)
    assert len(site.asked) == before


def test_a_folder_that_is_there_is_not_touched(site: Site, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/train").write_text("my own")
    with pytest.raises(FetchError, match="toy is there but incomplete: move it away"):
        get(from_site(site, members=MEMBERS), tmp_path)
    assert (tmp_path / "toy/train").read_text() == "my own"
    assert not site.asked


def test_an_archive_without_what_we_need(site: Site, tmp_path: Path) -> None:
    site.files["toy.tgz"] = other = packed(**{"toy/train": b"one two"})
    with pytest.raises(MissingData, match="lacks test"):
        get(from_site(site, Checksum("sha256", sha256(other), "our")), tmp_path)


def test_two_at_once_fetch_it_once(site: Site, tmp_path: Path) -> None:
    dataset, found = from_site(site, members=MEMBERS), []
    threads = [threading.Thread(target=lambda: found.append(get(dataset, tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "toy/toy"] * 4
    assert len(site.asked) == 1


def test_what_we_cannot_fetch_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"get an account at image-net.org"):
        get(DATASETS["imagenet"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_catalogue() -> None:
    """Every address is encrypted unless its publisher has none; a digest has its length; names are the modules'."""
    plain = [url for item in DATASETS.values() for file in item.downloads for url in file.urls if url[:8] != "https://"]
    assert plain == ["http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"]
    for name, dataset in DATASETS.items():
        assert name == dataset.name
        for file in dataset.downloads:
            sums = [(file.checksum.algorithm, file.checksum.digest)] if file.checksum else []
            sums += [("sha256", digest) for digest in file.members.values()]
            assert all(len(digest) == {"md5": 32, "sha256": 64}[kind] for kind, digest in sums)
            assert all(set(digest) <= set("0123456789abcdef") for _, digest in sums)
    assert [name for name, dataset in DATASETS.items() if not all(file.is_checked for file in dataset.downloads)] == [
        "iwslt14",
        "wmt14",
        "tatoeba-deu-eng",
        "tatoeba-fra-eng",
    ]


def test_the_catalogue_fits_the_readers() -> None:
    """What is taken from the archives is what the readers look for."""
    for name, members in (
        ("cifar10", [f"cifar-10-batches-bin/{file}" for file in (*cifar10.TRAINING_FILES, cifar10.TEST_FILE)]),
        ("wikitext-2", [f"wikitext-2/{file}" for file in wikitext2.FILES]),
    ):
        assert sorted(DATASETS[name].downloads[0].members) == sorted(members)
    assert sorted(file.file for file in DATASETS["ptb"].downloads) == sorted(ptb.FILES)
    parts = ("train", "val", *(f"test_{test}" for test in multi30k.TESTS))
    wanted = [f"{part}.{language}.gz" for part in parts for language in multi30k.LANGUAGES]
    assert sorted(file.file for file in DATASETS["multi30k"].downloads) == sorted(wanted)
