"""Searches replayed on a made-up table: the surrogate finds what is there, simulated searches do what real ones do."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from made_trials import NOISE, SPACE, STEPS, made, trial, worth

from autodropout.controller import make_proposer
from autodropout.search.halving import Halving
from autodropout.search.protocols import Proposal, Scored
from autodropout.tables import Rows, Simulated, Smooth, Surrogate, TableError, confirm, replay_stopping, simulate
from autodropout.tables.statistics import (
    best_so_far,
    bootstrap,
    exchanges,
    ranks,
    seed_spread,
    sign_flips,
    spearman,
)
from autodropout.tables.surrogate import active


@pytest.fixture(scope="module")
def surrogate() -> Surrogate:
    return Surrogate.fit(SPACE, made(150, 2).trials(steps=STEPS))


@pytest.fixture(scope="module")
def rows() -> Rows:
    return Rows(SPACE, made(60, 2).trials(steps=STEPS))


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=12), st.data())
def test_rank_correlation_is_scipys(first: list[int], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.integers(-3, 3), min_size=len(first), max_size=len(first)))
    assert ranks(first).tolist() == scipy.stats.rankdata(first).tolist()
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert math.isnan(spearman(first, second))
    else:
        assert spearman(first, second) == pytest.approx(scipy.stats.spearmanr(first, second).statistic)


def test_bootstrap_intervals_cover() -> None:
    """The mean of 30 normal numbers: its 90% interval holds zero in 90% of cases, a little less as known for n = 30.

    Of 300 cases, fewer than 246 or more than 289 would happen with p < 0.001 if it held in 89%.
    """
    hits = 0
    for case in range(300):
        values = np.random.default_rng([1, case]).standard_normal(30)
        interval = bootstrap(lambda column: float(column.mean()), values, draws=300, seed=case, level=0.9)
        assert interval.estimate == pytest.approx(values.mean())
        hits += interval.low <= 0 <= interval.high
    assert 246 <= hits <= 289
    with pytest.raises(ValueError, match="of one length"):
        bootstrap(spearman, [1.0, 2.0], [1.0])


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=8))
def test_sign_flips_are_scipys(differences: list[int]) -> None:
    found = scipy.stats.permutation_test(
        (differences, [0] * len(differences)),
        lambda a, b: abs(float(np.sum(a - b))),
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert sign_flips(differences) == pytest.approx(found.pvalue)


def test_differences_that_are_zero_but_for_rounding() -> None:
    assert sign_flips([0.5, 0.3, -0.1, -0.1, -0.4, -0.2]) == 1.0
    assert exchanges([1.6, 1.2, 1.1], [1.8, 1.0, 1.1]) == 1.0


def test_sign_flips_of_many_seeds() -> None:
    assert sign_flips([-0.3, -0.1, -0.2] * 4) == 2 / 2**12, "all point one way"
    with pytest.raises(ValueError, match="1 to 24"):
        sign_flips([])


@given(
    first=st.lists(st.integers(-9, 9), min_size=2, max_size=5),
    second=st.lists(st.integers(-9, 9), min_size=2, max_size=4),
)
def test_exchanges_are_scipys(first: list[int], second: list[int]) -> None:
    found = scipy.stats.permutation_test(
        (first, second),
        lambda a, b: abs(float(np.mean(a) - np.mean(b))),
        permutation_type="independent",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert exchanges(first, second) == pytest.approx(found.pvalue)


def test_exchanges_of_finalists() -> None:
    assert exchanges(range(10), range(10, 20)) == 2 / 184_756, "all of one group are below the other"
    with pytest.raises(ValueError, match="20 at most, got 11 and 10"):
        exchanges(range(11), range(10))


def test_the_spread_between_seeds_is_pooled() -> None:
    assert seed_spread([[1.0, 3.0], [10.0, 10.0], [5.0]]) == (1.0, 2)
    with pytest.raises(ValueError, match="two seeds or more"):
        seed_spread([[1.0], [2.0]])


def test_the_band_of_a_search() -> None:
    """Blocks are never mixed: before the second one, nothing of it can be in the band."""
    values = [0.1, 0.2, 0.0, 0.3, 0.9, 0.8, 0.7, 0.6]
    band = best_so_far(values, block=4)
    assert band.best.tolist() == [0.1, 0.2, 0.2, 0.3, 0.9, 0.9, 0.9, 0.9]
    assert band.high[:4].max() <= 0.3
    assert band.low[4:].min() >= 0.6
    assert (band.low <= band.high).all()
    with pytest.raises(ValueError, match="there must be trials"):
        best_so_far([], block=4)


def test_tokens_without_effect_are_known() -> None:
    tokens = (0, 3, 1, 1, 2, 1, 0, 1, 0, 0, 0, 0)  # the first and the third place have no pattern
    assert active(SPACE, [tokens]).tolist() == [[True, False, False, False, *[True] * 4, True, *[False] * 3]]


def test_a_seed_that_was_trained_twice_is_one_seed() -> None:
    trials = made(40, seeds=2).trials(steps=STEPS)
    again = [dataclasses.replace(trial, phase="again") for trial in trials]
    once = Surrogate.fit(SPACE, trials).noise
    assert Surrogate.fit(SPACE, trials + again).noise == once
    assert once == pytest.approx(NOISE, rel=0.3)


def test_the_surrogate_finds_what_is_there(surrogate: Surrogate) -> None:
    assert surrogate.noise == pytest.approx(NOISE, rel=0.2)
    best = surrogate.held_out[surrogate.kind]
    assert best.error == min(judged.error for judged in surrogate.held_out.values())
    assert best.error < 2 * NOISE < surrogate.deviation
    assert best.correlation > 0.9
    unseen = [SPACE.encode(SPACE.sample(number)) for number in range(1000, 1200)]
    assert spearman(surrogate.predict(unseen, rate=0.1), [worth(tokens) for tokens in unseen]) > 0.9
    assert surrogate.kind in str(surrogate)
    assert "taken" in str(surrogate)


def test_the_surrogate_does_not_see_what_it_is_judged_by() -> None:
    """Values of pure chance: with a policy's seeds on both sides it would seem to know them, and must not."""
    trials = [
        trial(number, seed, value=float(np.random.default_rng([9, number]).standard_normal()))
        for number in range(60)
        for seed in range(3)
    ]
    found = Surrogate.fit(SPACE, trials)
    assert abs(found.held_out[found.kind].correlation) < 0.4, "60 policies: beyond 0.4 with p < 0.002"


def disguised(number: int, other: int) -> tuple[int, ...]:
    """Policy `number` without a pattern in the first place: strings of the same policy, whatever `other`."""
    return (0, other % 5, other % 2, other // 2 % 2, *SPACE.encode(SPACE.sample(number))[4:])


def test_nor_by_another_string_or_at_another_rate() -> None:
    """The same, where a policy's trials differ in tokens without effect and in the rate."""
    trials = [
        trial(number, tokens=disguised(number, 3 * number + other), rate=(0.1, 0.2, 0.3)[other], value=value)
        for number in range(60)
        for value in [float(np.random.default_rng([9, number]).standard_normal())]
        for other in range(3)
    ]
    found = Surrogate.fit(SPACE, trials, noise=0.1)
    assert abs(found.held_out[found.kind].correlation) < 0.4, "60 policies: beyond 0.4 with p < 0.002"
    with pytest.raises(TableError, match="needs 10 policies or more, got 9"):
        Surrogate.fit(SPACE, trials[:27], noise=0.1)
    with pytest.raises(ValueError, match="two seeds or more"):
        Surrogate.fit(SPACE, trials[:30])  # other rates are no other seeds
    several = [trial(n, s, tokens=disguised(n, s), value=n + 0.5 * s) for n in range(20) for s in range(2)]
    assert Surrogate.fit(SPACE, several).noise == pytest.approx(np.std([0.0, 0.5], ddof=1))


def test_what_no_surrogate_can_be_fitted_to() -> None:
    with pytest.raises(TableError, match="needs 10 policies or more, got 9"):
        Surrogate.fit(SPACE, made(9, 2).trials(steps=STEPS))
    with pytest.raises(ValueError, match="two seeds or more"):
        Surrogate.fit(SPACE, made(12, 1).trials(steps=STEPS))
    assert Surrogate.fit(SPACE, made(12, 1).trials(steps=STEPS), noise=0.5).noise == 0.5
    with pytest.raises(TableError, match="one training and one length"):
        Surrogate.fit(SPACE, [trial(0), trial(1, steps=160)])


def test_a_search_among_rows_takes_each_once(rows: Rows) -> None:
    found = simulate(make_proposer("random", SPACE, 0), rows, trials=60)
    assert len(set(found.tokens)) == 60
    assert found.distance > 0
    with pytest.raises(ValueError, match="all 60 rows are used"):
        simulate(make_proposer("random", SPACE, 0), rows, trials=61)
    string = found.tokens[0]
    assert rows.nearest(string, set()) == string
    assert rows.nearest(string, {string}) != string
    with pytest.raises(ValueError, match="no log-probability"):
        simulate(make_proposer("controller", SPACE, 0), rows, trials=32)


def test_what_a_row_is_worth_its_other_seeds_say() -> None:
    """Rewards and true values are of the seeds that were drawn, and of the rest."""
    trials = [trial(number, seed, value=float(10 * number + seed**2)) for number in range(16) for seed in range(3)]
    for repeats in (1, 2):
        found = simulate(make_proposer("random", SPACE, 0), Rows(SPACE, trials), trials=16, repeats=repeats)
        assert found.held_out.all()
        sums = repeats * found.rewards + (3 - repeats) * found.true
        assert sorted(sums.tolist()) == pytest.approx([30 * number + 5 for number in range(16)])
        assert found.best == found.true[int(found.rewards.argmax())] != found.rewards.max()


def test_where_there_is_no_other_seed_a_reward_is_said_to_be_all() -> None:
    trials = [trial(number, seed) for number in range(16) for seed in range(2 if number < 4 else 1)]
    world = Rows(SPACE, [*trials, trial(5, method="again")])
    found = simulate(make_proposer("random", SPACE, 0), world, trials=16)
    assert found.held_out.sum() == 4, "the same seed again is no other seed"
    assert (found.true == found.rewards).tolist() == (~found.held_out).tolist()
    with pytest.raises(ValueError, match="12 of 16 rows have fewer seeds than repeats=2"):
        simulate(make_proposer("random", SPACE, 0), world, trials=16, repeats=2)
    both = simulate(make_proposer("random", SPACE, 0), Rows(SPACE, trials[:8]), trials=4, repeats=2)
    assert not both.held_out.any()
    assert both.true.tolist() == both.rewards.tolist()


def test_tokens_without_effect_are_no_distance() -> None:
    """Who proposes another string of a row's policy is told of its own string, with its probability."""
    told: list[Scored] = []

    class Disguising:
        version = 0

        def propose(self, numbers: range) -> list[Proposal]:
            return [Proposal(disguised(number, 1), -1.0 - number, 0) for number in numbers]

        def update(self, batch: list[Scored]) -> dict[str, float]:
            told.extend(batch)
            return {}

    rows = Rows(SPACE, [trial(n, s, tokens=disguised(n, 2 * s)) for n in range(20) for s in range(2)])
    assert len(rows) == 20, "nor do they make other rows"
    found = simulate(Disguising(), rows, trials=16)  # type: ignore[arg-type]
    assert found.distance == 0
    assert found.held_out.all()
    assert found.tokens == tuple(disguised(number, 0) for number in range(16))
    assert [(one.tokens, one.log_prob) for one in told] == [(disguised(n, 1), -1.0 - n) for n in range(16)]
    others = Rows(SPACE, [trial(number, tokens=disguised(number + 100, 0)) for number in range(16)])
    far = simulate(Disguising(), others, trials=16)  # type: ignore[arg-type]
    assert far.distance > 0
    assert all(one.log_prob is None and one.tokens in far.tokens for one in told[16:])


def test_rows_must_be_alike() -> None:
    with pytest.raises(TableError, match="one rate"):
        Rows(SPACE, [trial(0), trial(1, rate=0.2)])
    with pytest.raises(TableError, match="there must be some"):
        Rows(SPACE, [])


def test_two_searches_with_one_seed_see_the_same(surrogate: Surrogate) -> None:
    world = Smooth(surrogate, 0.1)
    first, again, other = (
        simulate(make_proposer("evolution", SPACE, 0), world, trials=100, capacity=32, seed=seed) for seed in (5, 5, 6)
    )
    assert first.tokens == again.tokens
    assert first.rewards.tolist() == again.rewards.tolist() != other.rewards.tolist()
    assert first.distance == 0
    assert first.held_out.all()
    noise = first.rewards - first.true
    assert noise.std() == pytest.approx(surrogate.noise, rel=0.35)  # 100 draws: beyond it with p < 0.001
    assert first.incumbents[-1] == first.best
    assert first.incumbents[0] == first.true[0]


def test_of_equal_rewards_the_first_is_kept() -> None:
    rewards, true = np.array([0.5, 0.7, 0.6, 0.7]), np.array([0.1, 0.2, 0.3, 0.4])
    found = Simulated(((0,),) * 4, rewards, true, np.ones(4, dtype=bool), 0.0, 1)
    assert found.incumbents.tolist() == [0.1, 0.2, 0.2, 0.2]
    assert found.incumbents[-1] == found.best


def test_repeats_quiet_the_noise(surrogate: Surrogate) -> None:
    world = Smooth(surrogate, 0.1)
    one, nine = (simulate(make_proposer("random", SPACE, 0), world, trials=96, repeats=repeats) for repeats in (1, 9))
    assert one.tokens == nine.tokens
    assert np.std(nine.rewards - nine.true) == pytest.approx(np.std(one.rewards - one.true) / 3)


def test_the_best_of_a_search_confirmed(surrogate: Surrogate) -> None:
    """A search whose luck turned the order round, and that had its luckiest policy in four strings."""
    world = Smooth(surrogate, 0.1)
    true = surrogate.predict([disguised(number, 0) for number in range(6)], 0.1)
    worst, *better = np.argsort(true).tolist()
    strings = (*(disguised(worst, other) for other in range(4)), *(disguised(number, 0) for number in better))
    worth = surrogate.predict(strings, 0.1)
    search = Simulated(strings, np.arange(9.0, 0.0, -1.0), worth, np.ones(9, dtype=bool), 0.0, repeats=1)
    found = [confirm(search, world, top=top, repeats=10**8) for top in (1, 2, 10)]
    assert found == [search.best, true[better[0]], true.max()], "without noise, of one, two and all six policies"


def test_learning_beats_chance(surrogate: Surrogate) -> None:
    """256 trials, five seeds each: mean true value of the last 64."""
    world = Smooth(surrogate, 0.1)

    def last(name: str) -> list[float]:
        runs = [simulate(make_proposer(name, SPACE, seed), world, trials=256, seed=seed) for seed in range(5)]
        return [float(run.true[-64:].mean()) for run in runs]

    assert min(last("evolution")) > max(last("random"))


@pytest.mark.parametrize(
    "wrong", [{"trials": 0}, {"minibatch": 0}, {"repeats": 0}, {"capacity": 8}], ids=lambda wrong: next(iter(wrong))
)
def test_impossible_searches(surrogate: Surrogate, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        simulate(make_proposer("random", SPACE, 0), Smooth(surrogate, 0.1), **({"trials": 32} | wrong))


def test_early_stopping_buys_more_policies(rows: Rows) -> None:
    """Curves here are proportional to the end, so the judge is never wrong: stopping can only help."""
    budget = 12 * STEPS
    plain = replay_stopping(rows, budget, None, together=4)
    halved = replay_stopping(rows, budget, lambda: Halving(first=10, factor=2), together=4)
    assert (plain.started, plain.finished, plain.steps) == (15, 12, budget), "three are under way at the end"
    assert halved.started > 2 * plain.finished
    assert halved.finished < plain.finished
    assert halved.steps < budget + STEPS
    everything = replay_stopping(rows, 10**9, None)
    assert (everything.started, everything.finished, everything.steps) == (60, 60, 60 * STEPS)
    with pytest.raises(ValueError, match="no child was trained to its end within 5 steps"):
        replay_stopping(rows, 5, None)
    with pytest.raises(TableError, match="has its curve"):
        replay_stopping(Rows(SPACE, [trial(0, curve=())]), budget, None)


def test_what_early_stopping_finds_is_judged_by_other_seeds() -> None:
    """A row whose first seed was lucky: its second says what it is worth, and where there is none that is said."""
    several = [trial(number, seed, value=float((seed == 0) * number)) for number in range(8) for seed in range(2)]
    assert replay_stopping(Rows(SPACE, several), 10**9, None)[:2] == (0.0, True)
    assert replay_stopping(Rows(SPACE, several[::2]), 10**9, None)[:2] == (7.0, False)
