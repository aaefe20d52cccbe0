"""The stages of the CIFAR-10 study, with a training that takes no time."""

import json
import time
from pathlib import Path

import pytest
from fake_images import Fake, jobs

import autodropout as ad
from autodropout.tables import Journal
from studies import found_policies
from studies.cifar import __main__ as command
from studies.cifar import study
from studies.in_turn import in_turn
from studies.pieces import study_options
from studies.report.__main__ import main as write_report


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study.Piece, "trainings", dict.fromkeys(study.TRAININGS, Fake))
    jobs.clear()


def test_candidates_are_judged_by_their_errors(tmp_path: Path) -> None:
    command.main(["candidates", "--folder", str(tmp_path), "--candidates", "wrn-16-2, as they are:50"])
    (row,) = json.loads((tmp_path / "candidates.json").read_text())["rows"]
    assert (row["training"], row["steps"]) == ("wrn-16-2, as they are", 50)
    assert row["none"] == pytest.approx([30.0] * 4, abs=0.5)
    assert row["best_peer"] == "dropout at 0.1"
    assert row["peers"]["dropout at 0.1"] == pytest.approx(25.0, abs=0.5)
    (job,) = jobs
    assert [type(one).__name__ for one in job] == ["ConvPolicy"] * 4 + ["Baseline"] * 7 + ["ConvPolicy"] * 5
    assert all(group.pattern.is_none for one in job[:4] for group in one.groups)


def test_a_candidate_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="like wrn-16-1:6000, got 'wrn-9:50'"):
        command.main(["candidates", "--folder", str(tmp_path), "--candidates", "wrn-9:50"])


def test_the_options_of_a_stage_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["--help"], ["search", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            command.main(given)
        told = capsys.readouterr().out
        assert "{candidates,proxy," in told
        assert "--longer-steps" in told


def test_the_minutes_are_those_of_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage has what those before it have left, and the time may be over; its JSON file has its name."""
    clock, left = iter([0.0, 0.0, 60.0, 150.0]), []
    args = study_options(None, "abc", [*"abc", "--folder", "d", "--minutes", "2"], study.TRAININGS, study.DEFAULTS)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    in_turn(args, lambda stage, args: left.append((stage, args.minutes, args.out)))
    assert left == [("a", 2.0, Path("d/a.json")), ("b", 1.0, Path("d/b.json")), ("c", -0.5, Path("d/c.json"))]


def test_a_search_at_a_rate_between_those_of_baselines(tmp_path: Path) -> None:
    """They are judged there by as many seeds as elsewhere: one seed chooses, the other judges."""
    steps = ["--steps", "30", "--longer-steps", "120", "--rate", "0.15"]
    command.main(["proxy", "--folder", str(tmp_path), *steps])
    found = json.loads((tmp_path / "proxy-wrn-16-2-as-they-are-30-0.15-for-120.json").read_text())
    peers = found["rows"][-1]["peers"]
    assert {peer for peer, scores in peers.items() if len(scores) == 2} == set(peers)
    assert "dropblock at 0.15" in peers


def test_a_search_at_a_rate_that_has_no_double(tmp_path: Path) -> None:
    """Classical methods are compared at half of it."""
    steps = ["--steps", "30", "--longer-steps", "120", "--rate", "0.6", "--longer-rate", "0.6"]
    command.main(["proxy", "--folder", str(tmp_path), *steps])
    found = json.loads((tmp_path / "proxy-wrn-16-2-as-they-are-30-0.6-for-120.json").read_text())
    assert {"dropout at 0.6", "dropout at 0.3"} < set(found["longer"]["peers"])


def test_a_study_from_its_proxy_to_its_report(tmp_path: Path) -> None:
    common = ["--folder", str(tmp_path), "--steps", "30", "--longer-steps", "120"]
    command.main(["proxy", *common])
    found = json.loads((tmp_path / "proxy-wrn-16-2-as-they-are-30-0.2-for-120.json").read_text())
    assert [row["steps"] for row in found["rows"]] == [10, 15, 30]
    whole = found["rows"][-1]
    assert whole["best_peer"] in ("dropout at 0.05", "dropout at 0.1")
    assert whole["gain_in_deviations"] > 20
    assert whole["longer"]["estimate"] > 0.9
    assert {len(job) for job in jobs[:-1]} <= {16, 12, 8, 4}, "jobs are no larger than a crowd"
    command.main(["search", "finalists", *common, "--trials", "64"])
    rows = json.loads((tmp_path / "search-0.json").read_text())["rows"]
    assert [(row["method"], row["trials"]) for row in rows] == [("random", 64), ("controller", 64)]
    trials = [entry.trial for entry in Journal(tmp_path / "search.jsonl").entries]
    best = max(trial.value for trial in trials if trial.method == "random")
    assert rows[0]["best"] == pytest.approx(100 * (1 - best))
    finalists = json.loads((tmp_path / "finalists-0.json").read_text())
    assert [(row["method"], row["policies"]) for row in finalists["methods"]] == [("random", 10), ("controller", 10)]
    command.main(["honest", *common, "--trials", "64", "--final-steps", "120"])
    table = json.loads((tmp_path / "honest.json").read_text())
    assert table["best_classical"] == "dropout"
    assert table["rates"]["dropout"] == 0.1, "the lowest is at the edge, and best"
    (dropout,) = (row for row in table["tables"]["test error, %, from none"] if row["method"] == "dropout")
    assert dropout["mean"] == pytest.approx(35.0, abs=0.5), "75% before the test, on which all are ten points worse"
    assert not any(said["holds"] for said in table["claims"] if said["than"] == "dropout")
    found_policies.main(["cifar", "--folder", str(tmp_path), "--to", str(tmp_path / "policies")])
    policy = ad.load(tmp_path / "policies" / "cifar-random.json")
    assert list(study.SPACE.encode(policy)) == table["policies"]["policy of random"]
    (row,) = (row for row in table["tables"]["validation error, %, from none"] if row["method"] == "policy of random")
    assert policy.provenance.score == pytest.approx(1 - row["mean"] / 100), "an accuracy"
    assert policy.provenance.rate == row["rate"]
    assert f"validation error, % {row['mean']:.2f} over" in policy.provenance.note
    write_report(["cifar", "--folder", str(tmp_path), "--docs", str(tmp_path / "docs")])
    page = (tmp_path / "docs" / "results-cifar.md").read_text()
    assert "Not run, or not to its end: Where regularization pays at all." in page
    assert f"| policy of random | {row['rate']:g}, 120 steps | {row['mean']:.2f} ±" in page
    assert "perplexity" not in page
    assert {path.name for path in (tmp_path / "docs").glob("*.png")} == {"cifar-honest.png", "cifar-search.png"}
