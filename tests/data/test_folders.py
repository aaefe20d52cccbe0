"""Where datasets are looked for, and what is said when one is not there."""

from functools import partial
from pathlib import Path

import pytest

from autodropout.data import MissingData, cifar10, ptb, tatoeba
from autodropout.data.folders import beside, find, find_either, gzipped_or_not, root


@pytest.fixture(autouse=True)
def nobody_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AUTODROPOUT_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def put(folder: Path, *files: str) -> Path:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("x")
    return folder


def test_the_argument_comes_before_the_variable_before_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert root() == tmp_path / "home/.cache/autodropout"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert root() == tmp_path / "cache/autodropout"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # does not count
    assert root() == tmp_path / "home/.cache/autodropout"
    monkeypatch.setenv("AUTODROPOUT_DATA", "~/sets")
    assert root() == tmp_path / "home/sets"
    assert root(tmp_path / "own") == tmp_path / "own"


@pytest.mark.parametrize("place", ["cifar10", "cifar10/batches", "batches", ""])
def test_its_own_folder_the_archives_folder_or_the_root(tmp_path: Path, place: str) -> None:
    put(tmp_path / place, "a.bin", "b.bin")
    assert find("cifar10", ("a.bin", "b.bin"), inside=("batches",), data=tmp_path) == tmp_path / place


def test_its_own_folder_comes_first(tmp_path: Path) -> None:
    for place in ("sets", ".", "inner"):
        put(tmp_path / place, "a.bin")
    assert find("sets", ("a.bin",), inside=("inner",), data=tmp_path) == tmp_path / "sets"


def test_what_is_missing_says_where_and_what_to_do(tmp_path: Path) -> None:
    put(tmp_path / "inner", "a.bin")
    with pytest.raises(MissingData) as caught:
        find("sets", ("a.bin", "b.bin"), inside=("inner",), data=tmp_path)
    told = str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)
    assert f"looked in {tmp_path / 'sets'}, {tmp_path / 'sets/inner'}, {tmp_path / 'inner'}, {tmp_path};" in told
    assert f"{tmp_path / 'inner'} lacks b.bin" in told
    assert "autodropout data get sets" in told
    assert "AUTODROPOUT_DATA" in told
    with pytest.raises(MissingData, match="write to somebody"):
        find("sets", ("a.bin", "b.bin"), data=tmp_path, advice="write to somebody")


def test_a_gzipped_file_stands_for_the_plain_one(tmp_path: Path) -> None:
    put(tmp_path / "sets", "a.txt.gz")
    assert find("sets", ("a.txt",), data=tmp_path, gzipped=True) == tmp_path / "sets"
    assert find_either("sets", ("official",), ("a.txt",), data=tmp_path, gzipped=True) == (tmp_path / "sets", False)
    assert gzipped_or_not(tmp_path / "sets/a.txt").name == "a.txt.gz"
    with pytest.raises(MissingData, match=r"no sets \(a.txt\)"):
        find("sets", ("a.txt",), data=tmp_path)
    put(tmp_path / "sets", "a.txt")
    assert gzipped_or_not(tmp_path / "sets/a.txt").name == "a.txt"


def test_what_is_read_plain_is_missing_where_it_is_gzipped(tmp_path: Path) -> None:
    put(tmp_path / "ptb", *(f"{file}.gz" for file in ptb.FILES))
    put(tmp_path / "cifar10", *(f"{file}.gz" for file in (*cifar10.TRAINING_FILES, cifar10.TEST_FILE)))
    put(tmp_path / tatoeba.name("de"), "deu.txt.gz")
    for looked_for in (ptb.folder, cifar10.folder, partial(tatoeba.folder, "de")):
        with pytest.raises(MissingData, match="To mend it"):
            looked_for(tmp_path)


def test_either_layout(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"no sets \(official\)"):
        find_either("sets", ("official",), ("plain",), data=tmp_path)
    put(tmp_path / "sets", "plain")
    assert find_either("sets", ("official",), ("plain",), data=tmp_path) == (tmp_path / "sets", False)
    put(tmp_path / "sets", "official")
    assert find_either("sets", ("official",), ("plain",), data=tmp_path) == (tmp_path / "sets", True)


def test_the_layout_of_which_something_is_there_is_told(tmp_path: Path) -> None:
    put(tmp_path / "sets", "plain.de")
    with pytest.raises(MissingData, match=r"sets lacks plain.en"):
        find_either("sets", ("official",), ("plain.de", "plain.en"), data=tmp_path)


def test_a_folder_that_cannot_be_written_to_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert beside(tmp_path) == tmp_path
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    kept = beside(tmp_path / "ptb")
    assert kept.parent == tmp_path / "home/.cache/autodropout/prepared"
    assert kept.name.startswith("ptb-")
    assert kept.is_dir()
    (tmp_path / "link").symlink_to(tmp_path)
    assert beside(tmp_path / "link/ptb") == beside(tmp_path / "ptb") == kept
    assert beside(tmp_path / "other/ptb") != kept, "another dataset, though its folder has the same name"
