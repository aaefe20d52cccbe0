"""`confirm`: the best policies of a study, trained again with new seeds."""

import inspect
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tiny_recipe
from cli_tools import ok, refused, run

import autodropout as ad
import small_study
from autodropout import recipes
from autodropout.cli.confirming import confirm
from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposal
from autodropout.search.records import Outcome, StudyInfo
from autodropout.search.states import State
from autodropout.spaces import Policy
from autodropout.training.run import Run, Scores

FIRST: int = inspect.signature(confirm).parameters["first_seed"].default
TRAINED: list[tuple[str, int]] = []
DEVICES: set[object] = set()


@dataclass(frozen=True)
class Unlucky(tiny_recipe.Training):
    """With new seeds all policies lose a little, and the best of the search lose most."""

    none: float  # without a policy: below -1 all are better, from 0.04 on none

    def fit(self, regularizer: Policy | None, rate: float, seed: int, run: Run) -> Scores:
        found = super().fit(regularizer, rate, seed, run).reward
        TRAINED.append((f"{rate:g}", seed))
        DEVICES.add(run.device)
        reward = self.none if regularizer is None else (seed - FIRST) / 100 - found
        return Scores(reward, {"validation_accuracy": found})


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
    train_by(monkeypatch, Unlucky(none=-2.0))
    TRAINED.clear()
    return ad.Study("sqlite:///autodropout.db", "tiny")


def train_by(monkeypatch: pytest.MonkeyPatch, proxy: tiny_recipe.Training) -> None:
    recipe = replace(tiny_recipe.TINY, proxy=proxy, tuning=tiny_recipe.Training())
    monkeypatch.setattr(recipes, "get", {"tiny": recipe}.__getitem__)


def test_the_best_are_trained_again_and_the_best_of_these_is_left(study: ad.Study) -> None:
    said = ok("confirm", "tiny", "--top", "4", "--seeds", "3")
    assert "better than no policy" not in said
    top = study.top(4)
    new = range(FIRST, FIRST + 3)
    assert sorted(TRAINED) == sorted([("0", seed) for seed in new] + [("0.2", seed) for seed in new] * 4)
    assert re.search(r"^none +0 +-2\.0000 .* 3$", said, re.M), "differences are from no policy at all"
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


def test_no_policy_is_left_where_none_is_better_than_no_policy(
    study: ad.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok("confirm", "--top", "2", "--seeds", "2")
    left = Path("out/tiny/confirm/policy.json")
    assert left.exists()
    train_by(monkeypatch, Unlucky(none=0.5))
    said = ok("confirm", "--top", "2", "--seeds", "2")
    assert re.search(r"^none +0 +0\.5000 ", said, re.M)
    assert re.search(r"^best: trial \d+, ", said, re.M)
    assert "with new seeds none of them is better than no policy at all, 0.5000\nno policy is written" in said
    assert str(left) not in said
    assert not left.exists(), "that of the first run would be taken for the best of this one"
    found = json.loads(ok("confirm", "--top", "2", "--seeds", "2", "--json"))
    assert found["policy"] is None
    assert found["best"]["mean"] < 0.5
    assert len(found["rows"]) == 6


@pytest.mark.parametrize(("without", "better"), [(0.50, True), (0.52, False), (None, True)])
def test_a_policy_is_compared_on_the_seeds_that_trained_without_one(
    study: ad.Study, monkeypatch: pytest.MonkeyPatch, without: float | None, better: bool
) -> None:
    """Without a policy the last seed, on which all others do badly, diverges; or all do."""

    def fit(self: Unlucky, regularizer: Policy | None, rate: float, seed: int, run: Run) -> Scores:
        hard = seed == FIRST + 4
        if regularizer is None and (without is None or hard):
            raise FloatingPointError("train_loss is nan at step 7")
        reward = 0.10 if hard else 0.51
        reward = reward if regularizer is not None else without
        return Scores(reward, {"validation_accuracy": reward})

    monkeypatch.setattr(Unlucky, "fit", fit)
    said = ok("confirm", "--top", "2", "--seeds", "5")
    assert Path("out/tiny/confirm/policy.json").exists() == better
    assert ("better than no policy at all, 0.5200, where that did not diverge" in said) == (not better)


@pytest.mark.parametrize("all_of_them", [False, True])
def test_no_policy_is_left_where_all_diverge(
    study: ad.Study, monkeypatch: pytest.MonkeyPatch, all_of_them: bool
) -> None:
    def diverges(self: Unlucky, regularizer: Policy | None, *given: object) -> Scores:
        if regularizer is None and not all_of_them:
            return Scores(0.5, {"validation_accuracy": 0.5})
        raise FloatingPointError("train_loss is nan at step 7")

    ok("confirm", "--top", "2", "--seeds", "2")
    left = Path("out/tiny/confirm/policy.json")
    assert "got 'gpu'" in refused("confirm", "--device", "gpu")
    assert left.exists(), "a mistake changes nothing"
    monkeypatch.setattr(Unlucky, "fit", diverges)
    given = ("confirm", "--top", "2", "--seeds", "2", "--first-seed", "7")
    result = run(*given)
    assert result.exit_code == 1
    assert "diverged" in result.stderr
    assert not left.exists()
    if not all_of_them:
        assert re.search(r"^trial \d+ +0\.2 +diverged +0 of 2", result.stdout, re.M), "the table comes first"
        told = json.loads(run(*given, "--json").stdout)
        assert (told["best"], told["policy"], len(told["rows"])) == (None, None, 6)


def test_what_was_confirmed_is_not_trained_again(study: ad.Study) -> None:
    ok("confirm", "--top", "2", "--seeds", "2")
    TRAINED.clear()
    found = json.loads(ok("confirm", "--top", "3", "--seeds", "2", "--json"))
    assert TRAINED == [("0.2", FIRST), ("0.2", FIRST + 1)]
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


def test_the_rate_is_the_searchs_even_if_the_recipe_has_another_by_now(
    study: ad.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = replace(recipes.get("tiny"), rate=0.7)
    monkeypatch.setattr(recipes, "get", {"tiny": changed}.__getitem__)
    rows = json.loads(ok("confirm", "--top", "1", "--seeds", "1", "--json"))["rows"]
    assert [row["rate"] for row in rows] == [0.0, 0.2]


def test_the_full_size_training_at_another_rate(study: ad.Study) -> None:
    said = ok("confirm", "--top", "2", "--seeds", "1", "--final", "--rate", "0.4", "--out", "elsewhere")
    assert TRAINED == [], "that of the search's children is another"
    assert "policies had" not in said, "scores of two trainings are not compared"
    assert f", {study.top(1)[0].value:.4f} in the search" in said
    assert ad.load("elsewhere/policy.json").provenance.rate == 0.4


def test_a_study_that_cannot_be_confirmed(study: ad.Study, tmp_path: Path) -> None:
    small_study.search("sqlite:///other.db")
    said = refused("confirm", "small", "--top", "7", "--storage", "sqlite:///other.db")
    assert "was not begun by `autodropout search`: `ad.confirm(study, child)` in Python" in said
    with (
        Ledger("sqlite:///empty.db") as ledger,
        ledger.drive(StudyInfo("new", small_study.SPACE, "random", 0, 1, 1, 0)),
    ):
        pass
    assert "study 'new' has no scored trial yet" in refused("confirm", "--storage", "sqlite:///empty.db")


def test_a_study_whose_policies_all_drop_nothing_cannot_be_confirmed(study: ad.Study) -> None:
    nothing = Proposal((0,) * len(small_study.SPACE.tokens), -1.0, 0)
    info = StudyInfo("empty", small_study.SPACE, "random", 0, 1, 1, 0, attributes=study.info.attributes)
    with Ledger("sqlite:///autodropout.db") as ledger, ledger.drive(info) as owned:
        owned.propose([nothing])
        owned.start([0])
        owned.record([Outcome(0, State.FINISHED, 0.5)])
    assert "no policy that has a score in study 'empty' drops anything" in refused("confirm", "empty")


def test_what_python_has_confirmed_is_beside_its_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command without a name means the search; the other can be named, and reported on."""
    monkeypatch.chdir(tmp_path)
    small_study.search("sqlite:///autodropout.db")
    ad.confirm(ad.Study("sqlite:///autodropout.db", "small"), small_study.child, top=1, seeds=1)
    assert json.loads(ok("status", "--json"))["study"] == "small"
    assert json.loads(ok("status", "small, confirmed", "--json"))["study"] == "small, confirmed"
    ok("report", "small, confirmed")
    page = Path("report.html").read_text()
    assert "confirms: small" in page
