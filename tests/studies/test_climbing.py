"""How the Penn Treebank study tunes: rates between, rates climbed to, and the lengths that suit a method."""

import json
from pathlib import Path

import pytest
from fake_study import install, piece_of, run

from autodropout.tables import Journal
from studies.pieces import Child
from studies.ptb import bracketed, climbing, finer, lengths, trainings


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.mark.parametrize(
    ("rate", "around"), [(0.05, (0.0375, 0.075)), (0.025, (0.0125, 0.0375)), (0.1, (0.075, 0.125))], ids=str
)
def test_rates_between(rate: float, around: tuple[float, float]) -> None:
    assert finer.between(rate, [0.1, 0.025, 0.05]) == around


def test_a_rate_is_climbed_to_until_it_is_surrounded() -> None:
    """A summit at 0.1 for a short training, which starts below; a long one is far behind, and left alone."""
    summits = {6: 0.1, 12: 0.3}
    scores: dict[climbing.Try, float] = {}
    waiting = [climbing.Try("some", rate, steps) for steps in summits for rate in climbing.beside(0.05)]
    rounds = 0
    while waiting:
        for one in waiting:
            distance = abs(climbing.SCALE.index(one.rate) - climbing.SCALE.index(summits[one.steps]))
            scores[one] = (0.9 if one.steps == 12 else 1.0) - 0.01 * distance
        waiting, rounds = climbing.wanted(scores), rounds + 1
    assert sorted(one.rate for one in scores if one.steps == 6) == [0.0375, 0.05, 0.0625, 0.075, 0.0875, 0.1, 0.125]
    assert len(scores) == 7 + 3
    assert climbing.best_of_each(scores) == {"some": climbing.Try("some", 0.1, 6)}
    assert rounds == 5


def test_nothing_is_tuned_of_none() -> None:
    assert climbing.beside(climbing.nearest(0.0)) == (0.0,)
    assert climbing.wanted({climbing.Try("none", 0.0, 6): 0.5}) == []


@pytest.mark.parametrize(("rate", "known"), [(0.033, 0.0375), (0.001, 0.0125), (0.9, 0.4)])
def test_the_nearest_rate_of_the_scale(rate: float, known: float) -> None:
    assert climbing.nearest(rate) == known


def test_where_climbing_starts() -> None:
    """At the best rate, one further where that was at the edge; at a length that nobody had, as at the nearest."""
    before = {climbing.Try("some", rate, 6): -abs(rate - 0.05) for rate in (0.025, 0.05, 0.1)}
    before |= {climbing.Try("some", rate, 8): rate for rate in (0.05, 0.0625)}
    before |= {climbing.Try("other", 0.1, 8): 1.0}
    assert bracketed.start("some", 6, before).rate == 0.05
    assert bracketed.start("some", 8, before).rate == 0.075
    assert bracketed.start("some", 11, before) == climbing.Try("some", 0.075, 11)
    assert bracketed.start("other", 6, before) == climbing.Try("other", 0.1, 6)


def test_lengths_that_suit_a_method() -> None:
    """Each at its best rate; one that is behind the method's best by more than a hundredth is left out."""
    scores = {
        climbing.Try("some", 0.05, 6): 0.9,
        climbing.Try("some", 0.1, 6): 1.0,
        climbing.Try("some", 0.1, 8): 0.992,
    }
    scores |= {climbing.Try("other", 0.05, 6): 0.98, climbing.Try("other", 0.05, 8): 1.0}
    found = {climbing.Try("some", 0.1, 6), climbing.Try("some", 0.1, 8), climbing.Try("other", 0.05, 8)}
    assert set(lengths.suitable(scores)) == found


def test_a_length_that_suits_is_trained_with_the_tables_seeds(tmp_path: Path) -> None:
    """Of two lengths that were equally good the table has one."""
    folder = ["--smoke", "--folder", str(tmp_path)]
    piece = piece_of("bracketed", *folder)
    tokens, methods = (0,) * len(trainings.SPACE.tokens), ("policy of controller", "policy of random", "dropout")
    for phase, steps, seeds in (("climbing", 4, (7,)), ("climbing", 8, (7,)), ("bracketed", 8, (1, 2))):
        children = [Child(name, 0, tokens, 0.1, seed) for name in methods for seed in seeds]
        piece.train(phase, "small", piece.asked(steps), children, test=phase == "bracketed")
    run("lengths", *folder)
    new = [entry.trial for entry in Journal(tmp_path / "lengths.jsonl").entries]
    assert {(trial.method, trial.steps, trial.seed) for trial in new} == {(m, 4, s) for m in methods for s in (1, 2)}
    for of in json.loads((tmp_path / "lengths.json").read_text())["by_length"].values():
        assert {row["method"] for row in of["tables"]["test perplexity, from dropout"]} == set(methods)
        pairs = {(claim["method"], claim["than"]) for claim in of["claims"]}
        assert pairs == {(methods[0], methods[1]), (methods[0], methods[2]), (methods[1], methods[2])}
