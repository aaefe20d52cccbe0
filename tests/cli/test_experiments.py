"""The commands around a search, on a recipe that takes no time: what is trained, how often, and what is told."""

import json
import re
from pathlib import Path

import pytest
import tiny_recipe
from cli_tools import ok, refused

import small_study


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The recipe `tiny`, a folder of one's own, and a policy in it."""
    tiny_recipe.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    small_study.SPACE.sample(seed=3).save("policy.json")


def test_recipes_are_listed() -> None:
    assert re.search(r"^tiny  nothing is trained$", ok("recipes"), re.M)
    found = json.loads(ok("recipes", "--json"))["recipes"]
    assert [recipe["name"] for recipe in found] == ["tiny", "other"]
    assert found[0]["trials"] == 8


def test_train_says_what_it_reached_and_where_it_is() -> None:
    said = ok("train", "tiny", "--policy", "policy.json", "--seed", "5", "--json")
    (row,) = json.loads(said)["rows"]
    assert row["reward"] == small_study.score(small_study.SPACE.sample(seed=3))
    assert (row["variant"], row["rate"], row["seed"]) == ("policy", 0.2, 5)
    assert list(Path("out/tiny/train-policy").glob("*/seed-5/scores.json"))
    (row,) = json.loads(ok("train", "tiny", "--json"))["rows"]
    assert (row["variant"], row["rate"], row["reward"]) == ("none", 0.0, 0.5)


def test_tune_rate_trains_with_each_rate() -> None:
    rows = json.loads(ok("tune-rate", "tiny", "--policy", "policy.json", "--json"))["rows"]
    assert [row["rate"] for row in rows] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    said = ok("tune-rate", "tiny", "--policy", "policy.json", "--rates", "0.25,0.5", "--seeds", "2")
    assert re.search(r"^rate 0\.25 +0\.25 .* 2$", said, re.M)
    assert re.search(r"^rate 0\.5 +0\.50 .* 2 +\+0\.0000 ± 0\.0000$", said, re.M)


def test_ablate_and_transfer() -> None:
    rows = json.loads(ok("ablate", "tiny", "--policy", "policy.json", "--json"))["rows"]
    assert rows[0]["variant"] == "whole"
    assert rows[-1]["variant"] == "none"
    rows = json.loads(ok("transfer", "tiny", "--policy", "policy.json", "--json"))["rows"]
    assert [row["variant"] for row in rows] == ["none", "policy"]
    assert Path("out/tiny/transfer/policy.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("train", "nothing"), 2, "'nothing' is not one of tiny, other"),
        (("train", "tiny", "--policy", "missing.json"), 1, "missing.json"),
        (("train", "tiny", "--policy", "policy.json", "--baseline", "dropout"), 1, "choose one"),
        (("train", "tiny", "--baseline", "hope"), 1, "no baseline is called 'hope'"),
        (("tune-rate", "tiny", "--policy", "policy.json", "--rates", "0.1;0.2"), 1, "got '0.1;0.2'"),
        (("tune-rate", "tiny", "--policy", "policy.json", "--rates", "1.5"), 1, "1.5"),
        (("ablate", "tiny"), 2, "Missing option '--policy'"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], code: int, message: str) -> None:
    assert message in refused(*arguments, code=code)
