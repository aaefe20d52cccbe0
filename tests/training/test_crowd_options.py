"""What a final table asks of a crowd: a rate for each child, and its reward on the test text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from language_tools import small, write_text

from autodropout.spaces import TransformerSpace
from autodropout.training import language_crowd
from autodropout.training.children import rates_of
from autodropout.training.run import Ended, Run

CPU = Run(device="cpu")


def test_each_child_has_its_rate_and_its_test_score(tmp_path: Path) -> None:
    """As alone: the weights that read the validation text best read the test text."""
    how = small(write_text(tmp_path), lr=2e-2)
    policy = TransformerSpace().sample(0)
    rates, seeds = [0.0, 0.2, 0.9], [3, 3, 3]
    curves: list[list[tuple[int, float]]] = [[] for _ in rates]
    tests: list[list[tuple[int, float]]] = [[] for _ in rates]
    rewards = how.fit_many(
        [policy] * 3,
        rates,
        seeds,
        CPU,
        [lambda step, value, curve=curve: curve.append((step, value)) for curve in curves],
        [lambda step, value, curve=curve: curve.append((step, value)) for curve in tests],
    )
    assert len({round(reward, 4) for reward in rewards}) == 3, "the rates make a difference"
    for rate, reward, curve, test in zip(rates, rewards, curves, tests, strict=True):
        alone = how.fit(policy, rate, 3, replace(CPU, test=True))
        assert reward == pytest.approx(alone.reward, rel=1e-3)
        best = max(range(len(curve)), key=lambda place: curve[place][1])
        assert [step for step, _ in test] == [step for step, _ in curve]
        assert 80 / test[best][1] == pytest.approx(alone.metrics["test_perplexity"], rel=1e-3)


@pytest.mark.parametrize(("rates", "said"), [([0.1], "got 1 for 2"), ([0.1, 1.5], "rate must lie in .0, 1., got 1.5")])
def test_bad_rates(tmp_path: Path, rates: list[float], said: str) -> None:
    how = small(write_text(tmp_path))
    with pytest.raises(ValueError, match=said):
        how.fit_many([None, None], rates, [0, 1], CPU)


def test_one_rate_may_be_numpys() -> None:
    assert rates_of(np.float32(0.5), 2) == rates_of(np.array([0.5, 0.5]), 2) == [0.5, 0.5]


def test_a_crowd_is_made_ready_for_averaged_weights_too(tmp_path: Path) -> None:
    """Also where all children of the job before ended before there were any."""
    how = small(write_text(tmp_path))
    language_crowd._warm.clear()

    def ends(step: int, reward: float) -> None:
        raise Ended

    how.fit_many([None], 0.0, [0], CPU, [ends])
    assert how.prepare_many(1, CPU)
    assert not how.prepare_many(1, CPU)


def test_a_part_of_the_training_text(tmp_path: Path) -> None:
    how = small(write_text(tmp_path))
    part = replace(how, training_words=100)
    assert part.text().train.tolist() == how.text().train[:100].tolist()
    assert part.text().vocabulary == how.text().vocabulary
    with pytest.raises(ValueError, match="the training text has 20 words, too few"):
        replace(how, training_words=20).fit(None, 0.0, 0, CPU)


def test_one_crowd_serves_trainings_of_any_length(tmp_path: Path) -> None:
    """Nothing is built again for another length, and the children are those that they are alone."""
    how = small(write_text(tmp_path))
    policy = TransformerSpace().sample(0)
    language_crowd._warm.clear()
    how.fit_many([policy] * 2, 0.1, [0, 1], CPU)
    (crowd,) = language_crowd._warm.values()
    longer = replace(how, steps=35, evaluate_every=10)
    rewards = longer.fit_many([policy] * 2, 0.1, [0, 1], CPU)
    assert list(language_crowd._warm.values()) == [crowd]
    for seed, reward in enumerate(rewards):
        assert reward == pytest.approx(longer.fit(policy, 0.1, seed, CPU).reward, rel=1e-3)


def test_a_crowd_is_made_ready_before_its_children_are_known(tmp_path: Path) -> None:
    how, policy = small(write_text(tmp_path)), TransformerSpace().sample(0)
    language_crowd._warm.clear()
    assert how.prepare_many(3, CPU)
    (crowd,) = language_crowd._warm.values()
    assert not replace(how, steps=35).prepare_many(2, CPU), "it serves fewer, and other lengths"
    (reward,) = how.fit_many([policy], 0.1, [5], CPU)
    assert list(language_crowd._warm.values()) == [crowd]
    assert reward == pytest.approx(how.fit(policy, 0.1, 5, CPU).reward, rel=1e-3), (
        "nothing is left of what made it ready"
    )
