"""What a search needs of its machine, data and a GPU: said before anything is begun."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_recipe
from cli_tools import refused, run

from autodropout import recipes


def begin(*arguments: object, **settings: object) -> None:
    raise ValueError("the search begins")


def test_a_search_looks_for_data_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTODROPOUT_DATA", "elsewhere")  # set back in the end
    monkeypatch.chdir(tmp_path)
    said = refused("search", "ptb", "--workers", "1", "--storage", "sqlite:///s.db", "--data", "there")
    assert "there/ptb" in said
    assert "elsewhere" not in said
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


@pytest.mark.parametrize("recipe", [name for name in recipes.RECIPES if name != "digits"])  # scikit-learn has those
def test_what_is_missing_is_said_before_anything_begins(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data, in a line; on a cluster they are the nodes' business."""
    monkeypatch.setattr("autodropout.study.search", begin)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTODROPOUT_DATA", str(tmp_path))
    assert re.search(r"^error: no (\S+) \(.*: looked in .*To mend it", refused("search", recipe))
    assert list(tmp_path.iterdir()) == []
    assert refused("search", recipe, "--engine", "ray") == "error: the search begins\n"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that nobody can write to")
def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be there: then it is not enough to make it."""
    monkeypatch.setattr("autodropout.study.search", begin)
    monkeypatch.chdir(tmp_path)
    assert re.match(r"error: /proc: nothing can be written there \(.+\)", refused("search", "digits", "--out", "/proc"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (("--deadline", "nan"), 2, "a positive number of seconds, got nan"),
        (("--deadline", "inf"), 2, "a positive number of seconds, got inf"),
        (("--deadline", "0"), 2, "a positive number of seconds, got 0.0"),
        (("--name", " "), 1, "no space around it, got ' '"),
    ],
)
def test_what_cannot_be_searched_so_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, str], code: int, message: str
) -> None:
    monkeypatch.setattr("autodropout.study.search", begin)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # or a message is broken into lines
    assert message in refused("search", "digits", *given, code=code)
    assert list(tmp_path.iterdir()) == []


def test_a_search_without_the_gpu_it_is_meant_for_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_recipe.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = "warning: a child of tiny is meant for a GPU, torch finds none here, and it may take hours; `autodropout"
    assert said not in run("search", "tiny", "--trials", "2").stderr
    monkeypatch.setattr(recipes, "get", lambda name: replace(tiny_recipe.TINY, on_cpu=False))
    assert said not in run("search", "tiny", "--trials", "2").stderr, "nothing is left to train"
    assert said in run("search", "tiny", "--trials", "4").stderr
    monkeypatch.setattr("autodropout.study.search", begin)
    assert said not in run("search", "tiny", "--trials", "6", "--engine", "ray").stderr
