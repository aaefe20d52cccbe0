"""Variants on one training: paired seeds, exact small statistics, and nothing trained twice."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import autodropout as ad
from autodropout.recipes.comparison import Row, Variant, compare, summaries, table
from autodropout.training.run import Regularizer, Run, Scores

CALLS: list[tuple[float, int]] = []


@dataclass(frozen=True)
class Tiny:
    """The score is the rate and a little of the seed."""

    offset: float = 0.0

    def space(self) -> ad.ConvSpace:
        return ad.ConvSpace(groups=((8, 8),))

    def fit(self, regularizer: Regularizer, rate: float, seed: int, run: Run) -> Scores:
        assert run.folder is not None
        run.folder.mkdir(parents=True, exist_ok=True)
        CALLS.append((rate, seed))
        metrics = {"validation_accuracy": rate} | ({"test_accuracy": rate / 2} if run.test else {})
        return Scores(self.offset + rate + seed / 100, metrics)

    def smoke(self) -> "Tiny":
        return self


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()


NONE, HALF = Variant("none", None, 0.0), Variant("dropout 0.5", ad.baseline("dropout"), 0.5)


def test_what_is_finished_is_not_trained_again(tmp_path: Path) -> None:
    first = compare(Tiny(), [NONE, HALF], range(2), tmp_path)
    assert CALLS == [(0.0, 0), (0.5, 0), (0.0, 1), (0.5, 1)], "seeds outermost"
    CALLS.clear()
    again = compare(Tiny(), [NONE, HALF], range(3), tmp_path)
    assert again[:4] == first
    assert [row.was_finished for row in (*first, *again)] == [False] * 4 + [True] * 4 + [False] * 2
    assert CALLS == [(0.0, 2), (0.5, 2)]


@pytest.mark.parametrize("content", ["", "[]", '{"reward": 1.0}', "?"])
def test_damaged_scores_are_named(tmp_path: Path, content: str) -> None:
    compare(Tiny(), [NONE], [0], tmp_path)
    (scores,) = tmp_path.glob("*/seed-0/scores.json")
    scores.write_text(content)
    with pytest.raises(ValueError, match=f"{scores} is damaged: remove it"):
        compare(Tiny(), [NONE], [0], tmp_path)


def test_another_experiment_of_the_same_name_is_another(tmp_path: Path) -> None:
    compare(Tiny(), [NONE], [0], tmp_path)
    compare(Tiny(offset=1.0), [NONE], [0], tmp_path)
    compare(Tiny(), [replace(NONE, rate=0.1)], [0], tmp_path)
    assert len(CALLS) == 3


def test_the_test_set_is_judged_when_it_is_asked_for_later(tmp_path: Path) -> None:
    (row,) = compare(Tiny(), [HALF], [0], tmp_path)
    assert "test_accuracy" not in row.scores.metrics
    for _ in range(2):
        (row,) = compare(Tiny(), [HALF], [0], tmp_path, Run(test=True))
        assert row.scores.metrics["test_accuracy"] == 0.25
    assert len(CALLS) == 2


class Fragile(Tiny):
    """It diverges at high rates."""

    def fit(self, regularizer: Regularizer, rate: float, seed: int, run: Run) -> Scores:
        scores = super().fit(regularizer, rate, seed, run)
        if rate + seed / 10 > 0.55:
            raise FloatingPointError("the loss is nan at step 3")
        return scores


def test_one_that_diverges_is_a_result_and_the_others_go_on(tmp_path: Path) -> None:
    high = Variant("dropout 0.9", ad.baseline("dropout"), 0.9)
    for _ in range(2):
        found = compare(Fragile(), [high, NONE, HALF], range(2), tmp_path)
        assert [(row.variant.name, row.seed) for row in found if row.scores is None] == [
            *((high.name, 0), (high.name, 1), (HALF.name, 1))
        ]
        assert len(CALLS) == 6, "not again the second time"
    first, none, half = summaries(found)
    assert (first.values, first.diverged, half.values, half.diverged) == ((), 2, (0.5,), 1)
    assert math.isnan(first.mean)
    assert math.isnan(none.difference), "from nothing"
    said = table(found).splitlines()
    assert said[1].split()[-4:] == ["diverged", "0", "of", "2"]
    assert "nan" not in table(found)
    assert said[3].split()[-3:] == ["1", "of", "2"]


def test_where_all_diverge_that_is_an_error(tmp_path: Path) -> None:
    high = Variant("dropout 0.9", ad.baseline("dropout"), 0.9)
    with pytest.raises(FloatingPointError, match=r"all have diverged: dropout 0\.9; they are tried again once"):
        compare(Fragile(), [high], range(2), tmp_path)


def rows(**rewards: list[float]) -> list[Row]:
    return [
        Row(Variant(name, None, 0.0), seed, Scores(value, {"perplexity": 80 / value}))
        for name, values in rewards.items()
        for seed, value in enumerate(values)
    ]


def test_differences_are_paired_and_their_interval_is_students() -> None:
    """Differences 2, 4: mean 3, deviation sqrt(2), standard error 1, t(1) = 12.706."""
    first, second = summaries(rows(first=[1.0, 5.0], second=[3.0, 9.0]))
    assert (first.mean, first.error, first.difference, first.interval) == (3.0, 2.0, 0.0, None)
    assert (second.mean, second.difference) == (6.0, 3.0)
    assert second.interval == pytest.approx(12.706)
    assert summaries(rows(first=[4.0, 5.0]), "perplexity")[0].mean == 18.0


def test_many_seeds_use_a_quantile_close_to_students() -> None:
    """t(29) = 2.045; differences of ±1 have a standard error of sqrt(30/29)/sqrt(30)."""
    spread = [float(seed % 2 * 2 - 1) for seed in range(30)]
    found = summaries(rows(first=[0.5] * 30, second=[0.5 + one for one in spread]))[1]
    assert found.interval == pytest.approx(2.045 / math.sqrt(29), rel=0.01)


def test_one_seed_has_no_spread() -> None:
    lines = table(rows(first=[0.5], second=[0.75])).splitlines()
    assert not [line for line in lines[1:] if "±" in line]
    assert lines[2].endswith("+0.2500")
    assert lines[0].split("  ")[-1] == "minus first, ± 95%"
    assert "score ± s.e." in lines[0]


@pytest.mark.parametrize(
    ("variants", "message"),
    [([NONE, NONE], "two variants have one name: none, none"), ([("", 0.1)], "got ''"), ([("x", 1.5)], "1.5")],
)
def test_mistakes(tmp_path: Path, variants: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(Tiny(), [v if isinstance(v, Variant) else Variant(v[0], None, v[1]) for v in variants], [0], tmp_path)
