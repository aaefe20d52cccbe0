"""The study of the default problem, whose children are trained in processes of their own."""

from dataclasses import replace
from pathlib import Path

import pytest

from autodropout.spaces import ConvPolicy
from autodropout.training import Sgd
from autodropout.training.run import Run
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
    assert "Not run, or not to its end: The final table; The best of each method" in page
    assert (tmp_path / "docs" / "digits-search.png").exists()
