"""Do the proposers learn? On the benchmark's landscapes, against random search on the same, by noiseless value."""

import math
import statistics

import pytest

from autodropout.controller import make_proposer
from landscape import CHOICES, MEAN, SPACE, Landscape, Outcome, simulate


def studies(name: str, seeds: range, capacity: int, trials: int) -> list[Outcome]:
    return [simulate(make_proposer(name, SPACE, seed), seed, capacity, trials) for seed in seeds]


def test_the_landscape_is_as_described() -> None:
    values = []
    for seed in range(3):
        landscape = Landscape(seed)
        tokens = (Landscape(seed + 100).noise(24 * 5000) * 1e7).astype(int).reshape(-1, 24) % CHOICES
        values.append(landscape.value(tokens))
        assert values[-1].mean() == pytest.approx(MEAN, abs=0.002)
        assert values[-1].std() == pytest.approx(0.02, rel=0.05)
        assert (values[-1] > landscape.best_decile).mean() == pytest.approx(0.1, abs=0.02)
        assert (Landscape(seed).value(tokens) == values[-1]).all(), "a function of the seed"
    assert abs(values[0] - values[1]).max() > 0.01, "another one for each seed"
    assert Landscape(0).noise(5000).std() == pytest.approx(0.004, rel=0.05)


def test_a_simulated_study_is_a_function_of_its_arguments() -> None:
    assert studies("controller", range(1), 32, 64) == studies("controller", range(1), 32, 64)


@pytest.mark.parametrize(
    ("name", "gain"),
    [  # about half of what 20 seeds show
        ("controller", 0.025),
        pytest.param("controller-paper", 0.01, marks=pytest.mark.slow),
        ("evolution", 0.02),
    ],
)
def test_it_beats_random_search_in_512_trials(name: str, gain: float) -> None:
    ours, random = (studies(proposer, range(3), 16, 512) for proposer in (name, "random"))
    assert statistics.mean(o.best - r.best for o, r in zip(ours, random, strict=True)) > gain
    if name != "controller-paper":
        assert all(outcome.last > outcome.best_decile for outcome in ours)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "capacity", "trials"),
    [("controller", 16, 512), ("controller", 128, 2048), ("controller-paper", 16, 4096)],
)
def test_it_beats_random_search_beyond_doubt(name: str, capacity: int, trials: int) -> None:
    """20 paired seeds: best above random's by 3 standard errors, the last 64 above the start of its best decile."""
    ours, random = (studies(proposer, range(20), capacity, trials) for proposer in (name, "random"))
    gains = [o.best - r.best for o, r in zip(ours, random, strict=True)]
    assert statistics.mean(gains) > 3 * statistics.stdev(gains) / math.sqrt(len(gains))
    assert statistics.mean(o.last for o in ours) > statistics.mean(o.best_decile for o in ours)
