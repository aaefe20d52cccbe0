"""One contract for every proposer: what it proposes, learns and saves is a function of what it was given."""

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autodropout.controller import PROPOSERS, Evolution, RandomSearch, load_proposer, make_proposer
from autodropout.controller.evolution import POPULATION
from autodropout.search.protocols import Proposal, Proposer, Scored
from autodropout.spaces import ConvSpace, Space, TransformerSpace

SPACES: dict[str, Space] = {
    "convnet": ConvSpace(groups=((8, 8), (4, 4))),
    "transformer": TransformerSpace(sites=("attention.query", "feedforward.hidden")),
}
OTHER_SPACE = ConvSpace(groups=((8, 8), (2, 2)))
SEED = 2**70 + 3  # beyond what any generator takes as it is
EVERY = pytest.mark.parametrize("name", PROPOSERS)

Make = Callable[[], Proposer]


def scored(proposals: list[Proposal], first: int = 0) -> list[Scored]:
    """Every trial has a value of its own, which its tokens decide."""
    return [
        Scored(number, p.tokens, p.log_prob, p.version, math.sin(sum(i * t for i, t in enumerate(p.tokens, 1))))
        for number, p in enumerate(proposals, first)
    ]


def run(proposer: Proposer, batches: int, first: int = 0) -> list[list[Proposal]]:
    """Propose 16, learn from them, again and again."""
    history = []
    for batch in range(batches):
        start = first + 16 * batch
        history.append(proposer.propose(range(start, start + 16)))
        proposer.update(scored(history[-1], start))
    return history


def batches_for(name: str) -> int:
    """Enough to leave the uniform start behind: evolution's population, the samplers' first 10 trials."""
    return POPULATION // 16 + 1 if name == "evolution" else 2


@EVERY
@pytest.mark.parametrize("kind", SPACES)
def test_tokens_are_valid_and_versions_count_updates(name: str, kind: str) -> None:
    space = SPACES[kind]
    proposer = make_proposer(name, space, SEED)
    batches = batches_for(name)
    for version, proposals in enumerate(run(proposer, batches)):
        assert [proposal.version for proposal in proposals] == [version] * 16
        for proposal in proposals:
            assert space.encode(space.decode(proposal.tokens)) == proposal.tokens
            assert proposal.log_prob is None or proposal.log_prob < 0
    assert proposer.version == batches
    assert len({p.tokens for p in proposer.propose(range(900, 905))}) > 1


@EVERY
def test_a_proposal_depends_on_seed_number_and_state_alone(name: str) -> None:
    space = SPACES["convnet"]
    proposer, twin = (make_proposer(name, space, SEED) for _ in range(2))
    run(proposer, batches_for(name))
    run(twin, batches_for(name))
    together = proposer.propose(range(100, 110))
    assert [twin.propose([number])[0] for number in reversed(range(100, 110))] == together[::-1]
    assert twin.propose([105, 100, 105]) == [together[5], together[0], together[5]]
    assert twin.propose([]) == []
    assert make_proposer(name, space, SEED + 1).propose(range(100, 110)) != make_proposer(name, space, SEED).propose(
        range(100, 110)
    )


@EVERY
def test_proposing_leaves_the_state_alone(name: str) -> None:
    proposer = make_proposer(name, SPACES["convnet"], SEED)
    run(proposer, batches_for(name))
    before = proposer.save()
    proposer.propose(range(500, 507))
    assert proposer.save() == before


@EVERY
def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened(name: str) -> None:
    space = SPACES["transformer"]
    straight, stopped = (make_proposer(name, space, SEED) for _ in range(2))
    batches = batches_for(name)
    expected = run(straight, batches + 2)
    found = []
    for batch in range(batches + 2):  # stopped before the first update too, and again after each
        stopped = load_proposer(name, space, SEED, stopped.save())
        found += run(stopped, 1, first=16 * batch)
    assert found == expected
    assert stopped.save() == straight.save()


@EVERY
def test_recorded_updates_applied_again_give_the_same_state(name: str) -> None:
    """In whatever order a minibatch's trials are handed over, and whatever was proposed in between."""
    space = SPACES["convnet"]
    first, again = (make_proposer(name, space, SEED) for _ in range(2))
    for batch in range(batches_for(name)):
        trials = scored(first.propose(range(16 * batch, 16 * batch + 16)), 16 * batch)
        assert first.update(trials) == again.update(trials[::-1])
    assert first.save() == again.save()


@EVERY
@pytest.mark.parametrize("size", [1, 7])
def test_minibatches_of_any_size(name: str, size: int) -> None:
    proposer = make_proposer(name, SPACES["convnet"], SEED)
    for start in range(0, 3 * size, size):
        record = proposer.update(scored(proposer.propose(range(start, start + size)), start))
        assert all(math.isfinite(value) for value in record.values())
    assert proposer.version == 3


@EVERY
def test_another_space_another_seed_another_proposer_are_refused(name: str) -> None:
    state = make_proposer(name, SPACES["convnet"], SEED).save()
    with pytest.raises(ValueError, match="another space"):
        load_proposer(name, OTHER_SPACE, SEED, state)
    with pytest.raises(ValueError, match=f"seed {SEED}, not 1"):
        load_proposer(name, SPACES["convnet"], 1, state)
    for other in PROPOSERS:  # the two settings of the controller among them
        if other != name:
            with pytest.raises(ValueError, match=f"the saved proposer is '{name}', not '{other}'"):
                load_proposer(other, SPACES["convnet"], SEED, state)


@EVERY
def test_damaged_bytes_are_refused(name: str) -> None:
    """Every byte of the header and some of the rest: whatever changes, the load refuses."""
    space = SPACES["convnet"]
    proposer = make_proposer(name, space, SEED)
    run(proposer, 1)
    state = proposer.save()
    header = 8 + int.from_bytes(state[:8], "little")
    step = max(1, header // 150)
    places = [*range(0, header, step), *range(header, len(state), 1 + (len(state) - header) // 10), len(state) - 1]
    for place in places:
        damaged = bytearray(state)
        damaged[place] ^= 0x01
        with pytest.raises(ValueError, match=r"damaged|not a saved proposer"):
            load_proposer(name, space, SEED, bytes(damaged))
    for length in (0, 7, 8, 9, header - 1, header, len(state) - 1):
        if length < len(state):
            with pytest.raises(ValueError, match=r"damaged|not a saved proposer"):
                load_proposer(name, space, SEED, state[:length])
    for garbage in (state + b"\0", b"not a state", b"\xff" * 100, b"\x02" + b"\0" * 7 + b"[]"):
        with pytest.raises(ValueError, match=r"damaged|not a saved proposer"):
            load_proposer(name, space, SEED, garbage)


@EVERY
def test_torchs_generator_and_threads_are_left_alone(name: str) -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    proposer = make_proposer(name, SPACES["convnet"], SEED)
    run(proposer, 1)
    load_proposer(name, SPACES["convnet"], SEED, proposer.save())
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'sgd' is not a proposer; there are controller, .*random.*tpe"):
        make_proposer("sgd", SPACES["convnet"], 0)
    with pytest.raises(ValueError, match="'sgd' is not a proposer"):
        load_proposer("sgd", SPACES["convnet"], 0, b"")


def test_without_optuna_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ModuleNotFoundError, match=r"proposer 'tpe' needs Optuna: pip install 'autodropout\[optuna\]'"):
        make_proposer("tpe", SPACES["convnet"], 0)
    make_proposer("random", SPACES["convnet"], 0)


def test_random_search_is_uniform() -> None:
    """Chi-square of each position's values over 4,000 trials, summed: 148 values less 16 positions, 0.999 at 187.0."""
    space = SPACES["convnet"]
    proposals = RandomSearch(space, 0).propose(range(4000))
    statistic = 0.0
    for position, token in enumerate(space.tokens):
        expected = 4000 / len(token.values)
        for value in range(len(token.values)):
            count = sum(proposal.tokens[position] == value for proposal in proposals)
            statistic += (count - expected) ** 2 / expected
    freedom = sum(len(token.values) - 1 for token in space.tokens)
    assert freedom == 136
    assert statistic < 192.0
    assert proposals[0].log_prob == pytest.approx(-math.log(space.count))


def evolved(values: Callable[[int], float]) -> tuple[Evolution, list[Scored]]:
    evolution = Evolution(SPACES["convnet"], 0)
    proposals = evolution.propose(range(2 * POPULATION))
    trials = [Scored(n, p.tokens, None, 0, values(n)) for n, p in enumerate(proposals)]
    evolution.update(trials)
    return evolution, trials


def distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))


def test_evolution_changes_one_token_of_the_best_of_a_tournament() -> None:
    evolution, trials = evolved(lambda number: float(number))
    alive = [trial.tokens for trial in trials[POPULATION:]]
    parents = []
    for proposal in evolution.propose(range(1000, 1300)):
        distances = [distance(proposal.tokens, tokens) for tokens in alive]
        assert min(distances) == 1
        parents.append(distances.index(1))
    # the best of 16 of 64 is in the better half but for once in 65,536
    assert min(parents) >= POPULATION // 2
    assert len(set(parents)) > 5


def test_evolution_lets_the_oldest_die_not_the_worst() -> None:
    evolution, trials = evolved(lambda number: -float(number))  # the first, long dead, were the best
    dead = {trial.tokens for trial in trials[:POPULATION]}
    for proposal in evolution.propose(range(1000, 1100)):
        assert all(distance(proposal.tokens, tokens) > 1 for tokens in dead)


def test_tpe_finds_what_random_search_does_not() -> None:
    """The share of trials with the one good value of one token: TPE's, after 64 trials, against chance."""
    space = SPACES["transformer"]

    def good(tokens: tuple[int, ...]) -> float:
        return float(tokens[0] == 3) + float(tokens[4] == 5)

    tpe: Any = make_proposer("tpe", space, 0)
    for start in range(0, 64, 16):
        proposals = tpe.propose(range(start, start + 16))
        tpe.update([Scored(start + i, p.tokens, None, p.version, good(p.tokens)) for i, p in enumerate(proposals)])
    found = [good(proposal.tokens) for proposal in tpe.propose(range(100, 132))]
    assert sum(found) / len(found) > 1.0  # 0.25 by chance
