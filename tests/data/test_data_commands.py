"""`autodropout data list` and `autodropout data get`."""

import hashlib
import json
from pathlib import Path

import pytest
from fetch_server import Site, serving
from typer.testing import CliRunner

from autodropout.cli import app
from autodropout.data.fetch import catalogue
from autodropout.data.fetch.catalogue import Dataset, Download
from autodropout.data.fetch.checks import Checksum
from autodropout.data.folders import find

FILES = {"train": b"one", "test": b"two"}


def where(data: Path | str | None) -> Path:
    return find("toy", tuple(FILES), data=data)


def toy(site: Site, wrong: str = "") -> Dataset:
    digests = {name: wrong or hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    downloads = tuple(
        Download((site.address + name,), name, Checksum("sha256", digest, "our")) for name, digest in digests.items()
    )
    return Dataset("toy", "two words", "6 bytes", "free", where, downloads)


def test_get_prints_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Site(files=FILES)) as site:
        monkeypatch.setitem(catalogue.DATASETS, "toy", toy(site))
        done = CliRunner().invoke(app, ["data", "get", "toy", "--data", str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert done.stdout == f"{tmp_path / 'toy'}\n"
        assert f"fetching {site.address}train" in done.stderr
        again = CliRunner().invoke(app, ["data", "get", "toy"], env={"AUTODROPOUT_DATA": str(tmp_path)})
        assert again.stdout == f"{tmp_path / 'toy'}\n"
        assert again.stderr == ""


def test_get_tells_in_a_line_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Site(files=FILES)) as site:
        monkeypatch.setitem(catalogue.DATASETS, "toy", toy(site, wrong="0" * 64))
        done = CliRunner().invoke(app, ["data", "get", "toy", "--data", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("error: train is not the file meant: our sha256 is 000")
    assert done.stdout == ""
    unknown = CliRunner().invoke(app, ["data", "get", "mnist", "--data", str(tmp_path)])
    assert unknown.exit_code == 2
    assert "'mnist' is not one of digits, digits-on-noise, cifar10" in unknown.stderr
    unchecked = CliRunner().invoke(app, ["data", "get", "iwslt14", "--data", str(tmp_path)])
    assert unchecked.exit_code == 1
    assert "--unverified" in unchecked.stderr


def test_list(tmp_path: Path) -> None:
    folder = tmp_path / "ptb"
    folder.mkdir()
    for name in ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"):
        (folder / name).write_text("a\n")
    done = CliRunner().invoke(app, ["data", "list", "--data", str(tmp_path), "--json"])
    told = json.loads(done.stdout)
    assert told["folder"] == str(tmp_path)
    found = {item["name"]: item["found"] for item in told["datasets"]}
    assert found["ptb"] == str(folder)
    assert found["cifar10"] is None
    assert set(found) == set(catalogue.DATASETS)
    for item in told["datasets"]:
        assert {"name", "what", "download", "found", "terms", "checked_by", "from"} == set(item)
    plain = CliRunner().invoke(app, ["data", "list", "--data", str(tmp_path)]).stdout
    assert f"found:      {folder}" in plain
    assert "checked by: the publisher's md5 and our sha256 of each file in it" in plain
