"""`confirm`: the best policies of a study, trained again with new seeds."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_recipe
from cli_tools import ok, refused, run

import autodropout as ad
import small_study
from autodropout import recipes
from autodropout.search.ledger import Ledger
from autodropout.search.records import StudyInfo
from autodropout.spaces import Policy
from autodropout.training.run import Run, Scores

TRAINED: list[tuple[str, int]] = []
DEVICES: set[object] = set()


class Unlucky(tiny_recipe.Training):
    """With new seeds all lose a little, and the best of the search lose most."""

    def fit(self, regularizer: Policy | None, rate: float, seed: int, run: Run) -> Scores:
        found = super().fit(regularizer, rate, seed, run).reward
        TRAINED.append((f"{rate:g}", seed))
        DEVICES.add(run.device)
        return Scores(0.0 if regularizer is None else seed / 100 - found, {"validation_accuracy": found})


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a study of the recipe `tiny`."""
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        tiny_recipe.install(patch.setattr)
        patch.chdir(folder)
        ok("search", "tiny", "--trials", "24")
    return folder / "autodropout.db"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, searched: Path) -> ad.Study:
    """That study, in a folder of one's own; its training is another when it is confirmed."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(searched, "autodropout.db")
    unlucky = replace(tiny_recipe.TINY, proxy=Unlucky(), tuning=tiny_recipe.Training())
    monkeypatch.setattr(recipes, "get", {"tiny": unlucky}.__getitem__)
    TRAINED.clear()
    return ad.Study("sqlite:///autodropout.db", "tiny")


def test_the_best_are_trained_again_and_the_best_of_these_is_left(study: ad.Study) -> None:
    result = run("confirm", "tiny", "--top", "4", "--seeds", "3")
    said = result.stdout
    assert "none of them is better than no policy at all" in result.stderr
    top = study.top(4)
    assert sorted(TRAINED) == sorted([("0", seed) for seed in range(3)] + [("0.2", s) for s in range(3)] * 4)
    assert re.search(r"^none +0\.00 .* 3$", said, re.M), "differences are from no policy at all"
    worst = min(top, key=lambda trial: trial.value)  # the first of equals, as `max` has it of their means
    mean = 0.01 - worst.value
    assert re.search(rf"^best: trial {worst.number}, {mean:.4f}, {worst.value:.4f} in the search$", said, re.M)
    before, after = (sum(values) / 4 for values in ([t.value for t in top], [0.01 - t.value for t in top]))
    assert f"4 policies had on average {before:.4f} in the search, {after:.4f} with new seeds" in said
    policy = ad.load("out/tiny/confirm/policy.json")
    assert policy.groups == worst.policy.groups
    assert policy.provenance.score == pytest.approx(mean)
    assert policy.provenance.rate == 0.2
    assert policy.provenance.trial == worst.number
    assert (
        policy.provenance.note
        == f"score: mean of 3 new seeds, the best of 4 such means; {worst.value:.6g} in the search"
    )


def test_what_was_confirmed_is_not_trained_again(study: ad.Study) -> None:
    ok("confirm", "--top", "2", "--seeds", "2")
    TRAINED.clear()
    found = json.loads(ok("confirm", "--top", "3", "--seeds", "2", "--json"))
    assert TRAINED == [("0.2", 0), ("0.2", 1)]
    assert found["best"]["in_search"] == study.top(3)[-1].value
    assert len(found["rows"]) == 8
    assert Path(found["policy"]).exists()


@pytest.mark.parametrize(("on_cpu", "device"), [(True, "cpu"), (False, None)])
def test_it_is_trained_where_the_search_was(
    study: ad.Study, monkeypatch: pytest.MonkeyPatch, on_cpu: bool, device: str | None
) -> None:
    recipe = replace(recipes.get("tiny"), on_cpu=on_cpu)
    monkeypatch.setattr(recipes, "get", {"tiny": recipe}.__getitem__)
    DEVICES.clear()
    ok("confirm", "--top", "1", "--seeds", "1")
    assert {device} == DEVICES


def test_the_full_size_training_at_another_rate(study: ad.Study) -> None:
    said = ok("confirm", "--top", "2", "--seeds", "1", "--final", "--rate", "0.4", "--out", "elsewhere")
    assert TRAINED == [], "that of the search's children is another"
    assert "policies had" not in said, "scores of two trainings are not compared"
    assert f", {study.top(1)[0].value:.4f} in the search" in said
    assert ad.load("elsewhere/policy.json").provenance.rate == 0.4


def test_a_study_that_cannot_be_confirmed(study: ad.Study, tmp_path: Path) -> None:
    small_study.search("sqlite:///other.db")
    assert "was not begun by `autodropout search`" in refused("confirm", "small", "--storage", "sqlite:///other.db")
    with (
        Ledger("sqlite:///empty.db") as ledger,
        ledger.drive(StudyInfo("new", small_study.SPACE, "random", 0, 1, 1, 0)),
    ):
        pass
    assert "study 'new' has no scored trial yet" in refused("confirm", "--storage", "sqlite:///empty.db")


def test_no_two_of_the_top_do_the_same(tmp_path: Path) -> None:
    """Tokens of a group without a pattern have no effect."""
    space = ad.ConvSpace(groups=((8, 8),))

    def child(policy: ad.Policy, seed: int, report: object) -> float:
        return float(policy.groups[0].pattern.size == 0)

    study = ad.search(space, child, 120, storage=f"sqlite:///{tmp_path / 'one.db'}", proposer="random", minibatch=50)
    empty = [trial for trial in study.trials if trial.policy.groups[0].pattern.is_none]
    assert len({trial.record.tokens for trial in empty}) > 3
    top = study.top(3)
    assert [trial.policy.groups[0].pattern.is_none for trial in top] == [True, False, False]
    assert top[0].number == min(trial.number for trial in empty)
    assert len(study.top(10_000)) == len(study.trials) - len(empty) + 1 - _repeated(study)
    with pytest.raises(ValueError, match="at least one trial must be asked for, got 0"):
        study.top(0)


def _repeated(study: ad.Study) -> int:
    """Policies, other than the empty one, that were tried before."""
    used = [trial.record.tokens for trial in study.trials if not trial.policy.groups[0].pattern.is_none]
    return len(used) - len(set(used))
