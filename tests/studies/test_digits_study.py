"""The study of the default problem, whose children are trained in processes of their own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_images import Fake

from autodropout.spaces import ConvPolicy
from autodropout.tables import Journal
from autodropout.training import Sgd
from autodropout.training.run import Run
from studies import images
from studies.digits import __main__ as command
from studies.digits import study
from studies.pieces import Child, study_options
from studies.report.__main__ import main as write_report


def piece(folder: Path) -> study.Piece:
    options = ["search", "--smoke", "--folder", str(folder)]
    return study.Piece(study_options(None, ["search"], options, study.TRAININGS, study.DEFAULTS), "search")


def test_a_child_of_a_job_is_the_child_alone(tmp_path: Path) -> None:
    """Under a policy, a baseline, or nothing; with its test score, which the search itself never asks for."""
    found = piece(tmp_path)
    policy = study.SPACE.encode(study.SPACE.sample(3))
    nothing = (0,) * len(policy)
    children = [
        Child("random", 3, policy, 0.5, 7),
        Child("dropblock", 0, nothing, 0.2, 7),
        *found.nothing(2),
    ]
    entries = found.train("alone", "wrn-10-1", 20_000, children, test=True)
    training = found.training("wrn-10-1", 20_000)
    assert training.steps == 40
    for child, entry in zip(children, entries, strict=True):
        curve: list[tuple[int, float]] = []
        run = Run(device="cpu", test=True, report=lambda *reading, into=curve: into.append(reading))
        scores = training.fit(found.regularizer(child), child.rate, child.seed, run)
        assert (entry.trial.value, entry.trial.curve) == (scores.reward, tuple(curve))
        assert entry.test == scores.metrics["test_accuracy"]
    assert len({entry.trial.value for entry in entries}) > 1
    assert isinstance(found.regularizer(children[2]), ConvPolicy), "none is a policy that drops nothing"


def test_a_child_that_diverges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        study.Piece, "trainings", {"wrn-10-1": lambda steps: replace(study.training(steps), optimizer=Sgd(lr=1e20))}
    )
    found = piece(tmp_path)
    (entry,) = found.train("diverging", "wrn-10-1", 2_000, found.nothing(1), test=True)
    assert (entry.trial.value, entry.trial.failure, entry.test) == (None, "diverged", None)


def test_a_search_and_its_report(tmp_path: Path) -> None:
    command.main(["search", "--smoke", "--methods", "random", "controller", "--folder", str(tmp_path)])
    write_report(["digits", "--folder", str(tmp_path), "--docs", str(tmp_path / "docs")])
    page = (tmp_path / "docs" / "results-digits.md").read_text()
    assert page.startswith("# Digits on noise: every table")
    assert "| random | 32 |" in page
    assert "Not run, or not to its end: The final table; A later search, beside the same methods; The best" in page
    assert (tmp_path / "docs" / "digits-search.png").exists()


def test_the_policies_of_a_later_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen by new seeds, tuned anew, trained with the seeds of the final table, whose methods stand beside them."""
    monkeypatch.setattr(study.Piece, "trainings", {"wrn-10-1": Fake})
    monkeypatch.setattr(study.Piece, "fit_many", images.Piece.fit_many)
    common = ["--folder", str(tmp_path), "--trials", "32", "--final-seeds", "6"]
    command.main(["proxy", "search", "finalists", "honest", *common])
    with pytest.raises(SystemExit, match=r"search 1 by random has 0 of 48 trials"):
        command.main(["again", "--seed", "1", *common, "--trials", "48"])
    command.main(["search", "--seed", "1", *common, "--trials", "48"])
    with pytest.raises(SystemExit, match="search 1 has no finalists by controller, random"):
        command.main(["again", "--seed", "1", *common, "--trials", "48"])
    command.main(["finalists", "again", "--seed", "1", *common, "--trials", "48"])
    found = json.loads((tmp_path / "again-1.json").read_text())
    ours, random = "policy of controller, 48 policies", "policy of random, 48 policies"
    trials = [e.trial for e in Journal(tmp_path / "search.jsonl").entries if e.trial.phase == "search 1"]
    tokens = {f"{trial.method} {trial.number}": list(trial.tokens) for trial in trials}
    again = {r["policy"]: sum(r["again"]) for r in json.loads((tmp_path / "finalists-1.json").read_text())["rows"]}
    for name, method in ((ours, "controller "), (random, "random ")):
        own = {policy: error for policy, error in again.items() if policy.startswith(method)}
        assert found["policies"][name] in [tokens[p] for p, error in own.items() if error == min(own.values())]
    table = {row["method"]: row for row in found["tables"]["test error, %, from policy of controller"]}
    honest = json.loads((tmp_path / "honest.json").read_text())
    before = honest["tables"]["test error, %, from none"]
    assert set(table) == {row["method"] for row in before} | {ours, random}
    assert all(table[row["method"]]["values"] == row["values"] for row in before), "nothing was trained again"
    assert [said["than"] for said in found["claims"]] == [random, honest["best_classical"], "policy of controller"]
    assert all(said["method"] == ours and said["n"] == 6 for said in found["claims"])
    write_report(["digits", "--folder", str(tmp_path), "--docs", str(tmp_path / "docs")])
    page = (tmp_path / "docs" / "results-digits.md").read_text()
    assert (tmp_path / "docs" / "digits-honest.png").stat().st_size > 5_000
    assert f"| {ours} | " in page.partition("## A later search")[2].partition("\n## ")[0]
