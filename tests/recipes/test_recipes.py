"""Recipes: found by name, complete, and searched by real processes."""

import pickle
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import autodropout as ad
from autodropout import recipes
from autodropout.recipes.digits import digits
from autodropout.training import ImageTraining, Scores, Sgd
from autodropout.training.run import Ended


def no_report(step: int, value: float) -> None:
    pass


def test_recipes_by_name() -> None:
    assert "digits" in recipes.RECIPES
    for name in recipes.RECIPES:
        assert recipes.get(name).name == name
    with pytest.raises(ValueError, match=r"'digit' is not a recipe; there are digits"):
        recipes.get("digit")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"trials": 0}, "trials .* got 0"), ({"workers": -1}, "workers .* got -1"), ({"rate": 1.5}, "rate .* got 1.5")],
)
def test_mistakes(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"recipe 'digits': {message}"):
        replace(digits(), **change)


def test_every_group_of_the_digits_has_sizes_to_choose_from() -> None:
    """Sizes are multiples of a fifth of the map, rounded down: below 5 cells there would be none."""
    assert digits().space() == ad.ConvSpace(groups=((20, 20), (10, 10), (5, 5)), resolution=(20, 20))


def test_the_child_travels_and_repeats_itself() -> None:
    recipe = digits(epochs=2)
    policy = recipe.space().sample(seed=0)
    heard: list[tuple[int, float]] = []
    score = recipe.child(policy, 7, lambda *one: heard.append(one))
    assert 0.0 < score <= 1.0
    assert heard[-1] == (32, score)
    assert [step for step, _ in heard] == [16, 32]
    torch.rand(3)
    assert pickle.loads(pickle.dumps(recipe.child))(policy, 7, no_report) == score


def test_the_policy_and_the_rate_reach_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def fit(self, policy, rate, seed, run):
        seen.append((policy, rate, seed, run.test))
        return Scores(0.5, {})

    monkeypatch.setattr(ImageTraining, "fit", fit)
    recipe = digits(rate=0.35)
    policy = recipe.space().sample(seed=0)
    assert recipe.child(policy, 3, no_report) == 0.5
    assert seen == [(policy, 0.35, 3, False)], "and the search never asks for the test part"
    assert recipe.rate == 0.35


def test_a_child_that_diverges_says_so() -> None:
    recipe = digits(epochs=1)
    child = replace(recipe.child, training=replace(recipe.child.training, optimizer=Sgd(lr=1e20)))
    with pytest.raises(FloatingPointError):
        child(recipe.space().sample(seed=0), 0, no_report)


def test_the_numbers_make_whole_updates() -> None:
    recipe = digits()
    assert recipe.trials % recipe.minibatch == 0
    assert recipe.workers <= recipe.capacity
    assert recipe.floor == 0.1


def test_a_search_with_two_workers(tmp_path: Path) -> None:
    recipe = digits(epochs=1)
    study = ad.search(
        recipe.space(),
        recipe.child,
        trials=4,
        workers=recipe.workers,
        capacity=recipe.capacity,
        minibatch=2,
        storage=f"sqlite:///{tmp_path}/study.db",
        floor=recipe.floor,
    )
    values = [trial.value for trial in study.trials]
    assert len(values) == 4
    assert all(0.0 < value <= 1.0 for value in values)
    assert study.best.value == max(values)
    assert len(study.reader.updates()) == 2
    best = study.best
    assert recipe.child(best.policy, best.record.seed, no_report) == best.value, "the ledger tells how to repeat it"


@dataclass(frozen=True)
class Together:
    """A training that can train many; notes how it was asked to."""

    space = smoke = None
    crowds: bool = True

    def fit(self, regularizer, rate, seed, run):
        return Scores(0.25, {"run": run})

    def fit_many(self, policies, rate, seeds, run, reports):
        assert (run.precision, run.compile, len(reports)) == ("bfloat16", True, len(seeds))
        return [rate + seed for seed in seeds]


def test_children_are_trained_together_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(digits(), proxy=Together(), on_cpu=False, crowd=4, rate=0.5)
    policies = [digits().space().sample(seed=seed) for seed in range(2)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert recipe.child.crowd == 4
    assert recipe.child.train_many is None
    assert recipe.child(policies[0], 1, no_report) == 0.25
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert recipe.child.train_many(policies, [1, 2], [no_report] * 2) == [1.5, 2.5]
    assert recipe.child(policies[0], 3, no_report) == 3.5, "one that is left over is trained in the same way"
    assert replace(recipe, crowd=1).child(policies[0], 1, no_report) == 1.5, "a crowd of one"
    assert replace(recipe, crowd=1, proxy=Together(crowds=False)).child(policies[0], 1, no_report) == 0.25
    assert replace(recipe, on_cpu=True).child.crowd == 1
    assert replace(recipe, on_cpu=True).child.train_many is None


def test_a_stopped_child_is_no_mistake_of_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings know of no search: what ends a child in good order is told them in their own words."""

    def fit_many(self, policies, rate, seeds, run, reports):
        with pytest.raises(Ended):
            reports[0](1, 0.5)
        with pytest.raises(KeyError):
            reports[1](1, 0.5)
        return [0.0, 0.0]

    def stops(step: int, value: float) -> None:
        raise ad.Stopped("hopeless")

    def breaks(step: int, value: float) -> None:
        raise KeyError("no such column")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Together, "fit_many", fit_many)
    recipe = replace(digits(), proxy=Together(), on_cpu=False, crowd=4)
    assert recipe.child.train_many([None, None], [1, 2], [stops, breaks]) == [0.0, 0.0]


def test_only_a_training_that_can_has_a_crowd() -> None:
    class Lonely:
        pass

    with pytest.raises(ValueError, match="recipe 'digits': Lonely trains one model at a time"):
        replace(digits(), proxy=Lonely(), crowd=2)
    with pytest.raises(ValueError, match="crowd must be at least 1, got 0"):
        replace(digits(), crowd=0)
