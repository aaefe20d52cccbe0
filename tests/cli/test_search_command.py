"""`search` and `resume`, called as a shell would call them: what a run leaves, and what the next one keeps of it."""

import html
import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import tiny_recipe
from cli_tools import ok, refused, run

import autodropout as ad
import small_study
from autodropout import recipes
from autodropout.cli.plan import Plan
from autodropout.search import gpus
from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposal
from autodropout.search.records import StudyInfo
from autodropout.spaces import parse
from autodropout.training.run import Scores


def test_a_search_leaves_its_results_and_can_be_resumed(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "results"
    result = run("search", "tiny", "--storage", tiny, "--name", "mine", "--seed", "5", "--out", out)
    assert result.exit_code == 0, result.output
    assert "mine: 8/8 trials" in result.stderr  # not a terminal: lines
    best = ad.Study(tiny, "mine").best
    assert f"best score {best.value:.6g}, by trial {best.number}" in result.stdout
    assert ad.load(out / "policy.json") == best.policy
    assert best.policy.provenance.rate == tiny_recipe.TINY.rate
    assert parse(ok("best", "mine", "--storage", tiny)).provenance.rate == tiny_recipe.TINY.rate
    assert f'"rate": {tiny_recipe.TINY.rate}' in html.unescape((out / "report.html").read_text())
    for name in ("policy.json", "masks.png", "report.html"):
        assert str(out / name) in result.stdout
        assert (out / name).stat().st_size > 500
    assert json.loads(ok("status", "--storage", tiny, "--json"))["wanted"] == 8

    told = json.loads(ok("resume", "--storage", tiny, "--trials", "12", "--workers", "1", "--json"))
    assert (told["scored"], told["seed"]) == (12, 5)
    assert told["files"]["policy"] == str(out / "policy.json")  # as it was begun
    assert "seed 5, not 0" in refused("search", "tiny", "--storage", tiny, "--name", "mine", "--seed", "0")
    assert json.loads(ok("status", "--storage", tiny, "--json"))["scored"] == 12


def test_a_search_says_how_many_children_share_a_gpu(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one by its name, that torch knows nothing of: the children of a job are then trained one by one."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tiny_recipe.Training, "crowds", True, raising=False)
    monkeypatch.setattr(recipes, "get", lambda name: replace(tiny_recipe.TINY, crowd=6, on_cpu=False))
    result = run("search", "tiny", "--storage", tiny)
    assert result.exit_code == 0, result.output
    assert "6 children at once on a GPU" in result.stderr
    assert ad.Study(tiny, "tiny").info.capacity == 6


def test_what_a_run_changes_holds_for_the_next(tiny: str, caplog: pytest.LogCaptureFixture) -> None:
    def facts() -> dict[str, object]:
        with Ledger(tiny) as ledger:
            return dict(ledger.read("tiny").info.attributes)

    def wanted(*arguments: str) -> tuple[int, int]:
        told = json.loads(ok(*arguments, "--storage", tiny, "--json"))
        return told["scored"], told["wanted"]

    assert wanted("search", "tiny", "--trials", "3", "--capacity", "2", "--seed", "5", "--rung", "4") == (3, 3)
    assert wanted("resume", "--trials", "5", "--workers", "1", "--capacity", "3", "--out", "there") == (5, 5)
    assert wanted("status") == (5, 5)
    assert (facts()["workers"], facts()["rung"]) == (1, 4)
    run("resume", "--storage", tiny)
    assert "study 'tiny' has its 5 trials, nothing is run. Ask for more (trials=, or --trials), or" in caplog.text
    fewer = run("search", "tiny", "--trials", "4", "--storage", tiny)
    assert "study 'tiny' has 5 trials, 4 were asked for, nothing is run. Ask for more" in caplog.text
    assert "tiny: 5 trials, 4 were asked for, best " in fewer.stderr
    run("resume", "--trials", "5", "--storage", tiny)
    assert wanted("search", "tiny") == (5, 5)  # the seed, too, is the study's
    assert Path("there/report.html").exists()
    assert wanted("search", "tiny", "--trials", "4") == (5, 4)
    assert re.search(r"^ended +5, 4 were asked for$", ok("status", "--storage", tiny), re.M)
    said = ok("status", "--storage", tiny)
    assert re.search(r"^trials +4 learned from, 1 finished after the last update$", said, re.M), said
    with Ledger(tiny) as ledger:
        assert ledger.read("tiny").info.capacity == 3
    assert "is of the recipe 'tiny', not 'other'" in refused("search", "other", "--name", "tiny", "--storage", tiny)


def test_a_capacity_raised_for_workers_is_not_that_of_the_next_run(tiny: str) -> None:
    def capacity(*arguments: str) -> int:
        return json.loads(ok(*arguments, "--storage", tiny, "--json"))["capacity"]

    assert capacity("search", "tiny", "--workers", "6", "--trials", "1") == 6
    assert capacity("resume", "--workers", "2", "--trials", "2") == 4, "the recipe's"
    assert capacity("search", "tiny", "--workers", "5", "--trials", "3") == 5
    assert capacity("resume", "--workers", "2", "--trials", "4", "--capacity", "3") == 3
    assert capacity("search", "tiny", "--trials", "5") == 3, "it was asked for"


def test_results_are_left_where_they_were(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a `resume` from another folder; one that names another is remembered in its turn."""
    ok("search", "tiny", "--storage", tiny, "--trials", "2", "--out", "there")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    told = json.loads(ok("resume", "--storage", tiny, "--json"))
    assert told["files"]["report"] == str(tmp_path / "there/report.html")
    ok("resume", "--storage", tiny, "--out", "here")
    with Ledger(tiny) as ledger:
        assert ledger.read("tiny").info.attributes["out"] == str(tmp_path / "elsewhere/here")


def test_the_data_are_looked_for_where_they_were(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `resume` and `confirm`, which take them elsewhere when they are told."""
    looked: list[str | None] = []

    def fit(self: tiny_recipe.Training, *given: object) -> Scores:
        looked.append(os.environ.get("AUTODROPOUT_DATA"))
        return Scores(0.5, {"validation_accuracy": 0.5})

    monkeypatch.setenv("AUTODROPOUT_DATA", "")  # set back in the end
    ok("search", "tiny", "--storage", tiny, "--trials", "3", "--data", "datasets")
    monkeypatch.setattr(tiny_recipe.Training, "fit", fit)
    for given, folder in ((), tmp_path / "datasets"), (("--data", "others"), "others"):
        monkeypatch.setenv("AUTODROPOUT_DATA", "")
        ok("confirm", "--storage", tiny, "--top", "1", "--seeds", "1", "--out", str(len(given)), *given)
        assert set(looked) == {str(folder)}
        looked.clear()
    monkeypatch.setenv("AUTODROPOUT_DATA", "")
    ok("resume", "--storage", tiny, "--trials", "5")
    assert os.environ["AUTODROPOUT_DATA"] == str(tmp_path / "datasets")


def test_a_best_policy_that_drops_nothing_is_told_to_do_so(tiny: str, caplog: pytest.LogCaptureFixture) -> None:
    begun = asdict(replace(Plan.of_recipe(tiny_recipe.TINY, "tiny"), trials=2))
    info = StudyInfo("tiny", small_study.SPACE, "random", 0, 4, 4, 0.0, attributes=begun)
    nothing = next(
        string
        for string in (small_study.SPACE.encode(small_study.SPACE.sample(i)) for i in range(10_000))
        if small_study.SPACE.decode(string).drops_nothing
    )
    something = small_study.SPACE.encode(small_study.SPACE.sample(0))
    with Ledger(tiny) as ledger, ledger.drive(info) as owned:
        owned.propose([Proposal(nothing, None, 0), Proposal(something, None, 0)])
        owned.start([0, 1])
        owned.finish(0, 0.9)
        owned.finish(1, 0.8)
    told = "0.9, by trial 0, whose policy drops nothing: no dropout was best"
    result = run("resume", "--storage", tiny)
    assert f"best score {told}\n" in result.stdout
    assert "of those that drop something, the best is trial 1, 0.8" in caplog.text
    said = ok("status", "--storage", tiny)
    assert re.search(f"^best +{told}$", said, re.M), said
    assert re.search("^trials +2 finished$", said, re.M), said
    assert json.loads(ok("status", "--storage", tiny, "--json"))["best"]["drops_nothing"] is True
    assert "drops nothing: no dropout was best" in run("best", "--storage", tiny).stderr


def test_a_study_of_a_cluster_goes_on_here(tiny: str) -> None:
    ok("search", "tiny", "--storage", tiny, "--trials", "3", "--workers", "1")
    with Ledger(tiny) as ledger:
        cluster = {"engine": "ray", "cpus_per_child": 2.0, "gpus_per_child": 1.0}  # as a run there leaves it
        ledger.drive(replace(ledger.read("tiny").info, attributes=cluster)).close()
    given = ("resume", "--storage", tiny, "--engine", "local", "--trials", "5")
    assert "are for the engine 'ray'" in refused(*given, "--gpus", "1")
    assert json.loads(ok(*given, "--json"))["scored"] == 5
    kept = ad.Study(tiny, "tiny").info.attributes
    assert (kept["engine"], kept["cpus_per_child"], kept["gpus_per_child"]) == ("local", 1.0, 0.0)


def test_a_study_of_ad_search_is_not_resumed_blindly(storage: str) -> None:
    assert "was not begun by `autodropout search`" in refused("resume", "small", "--storage", storage)


def test_the_childs_own_error_is_shown(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "1")
    result = run("search", "tiny", "--storage", tiny, "--workers", "1")
    assert result.exit_code == 1
    assert "no such column" in result.stderr
    assert "tiny_recipe.py" in result.stderr  # where in the child
    assert "driver.py" not in result.stderr  # not where in the search
    assert result.stdout == ""
