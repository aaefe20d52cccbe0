"""Searches replayed on what a table knows, in seconds and on a CPU: which proposer, how many seeds, when to stop.

    rows = Rows(table.space, table.trials(steps=2_000, rate=0.1))                        # the table's own rows
    smooth = Smooth(Surrogate.fit(table.space, table.trials(steps=2_000)), rate=0.1)     # any policy at all
    found = simulate(make_proposer("evolution", table.space, seed=0), rows, trials=128, seed=0)
    found.best                                                                           # worth of what it would take

In the world of `Rows` a proposer chooses among policies that were really trained: what it proposes is replaced by the
nearest row that it has not had yet, in tokens that differ and have an effect. Nothing is made up there, but few rows
are near; `Simulated.distance` says how far off they were. A controller learns from strings that it wrote itself, with
their probabilities, so it cannot choose among rows: its update refuses them.
In the world of `Smooth` every policy has the value that a surrogate expects, and rewards the noise of the seeds as it
was measured. What is not in the surrogate, no proposer can find there.

The rewards a search sees are one seed's, or the mean over `repeats` of them. `true` values are the surrogate's in the
second world. In the first they are a policy's mean over its other seeds, those the search did not see. A row that has
no others has its reward for a true value: `held_out` is False there, and the best of many such rewards is a maximum of
noise, better than the policy is.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from autodropout.search.halving import Halving
from autodropout.search.protocols import Proposer, Scored
from autodropout.spaces import Space, canonical
from autodropout.tables.statistics import Floats
from autodropout.tables.surrogate import Surrogate, active
from autodropout.tables.trials import TableError, TableTrial

Tokens = tuple[int, ...]
Bools = npt.NDArray[np.bool_]


class Judged(NamedTuple):
    """Policies, as a world knows them."""

    rewards: Floats  # (N,), what a search is told: means over so many seeds
    true: Floats  # (N,), what they are worth
    held_out: Bools  # (N,), whether that was found without what the reward was drawn from


class World(Protocol):
    """What a simulated search needs to know of policies."""

    @property
    def space(self) -> Space:
        """What tokens are of."""
        ...

    def nearest(self, tokens: Tokens, used: set[Tokens]) -> Tokens:
        """The policy that is tried where this one is proposed."""
        ...

    def judge(self, tokens: Sequence[Tokens], repeats: int, draws: Sequence[np.random.Generator]) -> Judged:
        """What comes of policies, each trained with so many seeds and with chance of its own."""
        ...


class Rows:
    """The policies of a table, at one rate, each with the values it had: one for a seed, the first.

    A policy has the name of its first string; others that do the same are no rows of their own.
    """

    def __init__(self, space: Space, trials: Sequence[TableTrial]) -> None:
        kept = [trial for trial in trials if trial.value is not None and not trial.stopped]
        if len({(trial.training, trial.steps, trial.rate) for trial in kept}) != 1:
            raise TableError("these rows must be of one training, one length and one rate, and there must be some")
        self.space = space
        self.trials: dict[Tokens, list[TableTrial]] = {}
        names: dict[Tokens, Tokens] = {}
        for trial in kept:
            row = self.trials.setdefault(names.setdefault(canonical(space, trial.tokens), trial.tokens), [])
            if all(trial.seed != other.seed for other in row):
                row.append(trial)
        self._strings = list(self.trials)
        self._canonical = _canonical(space, self._strings)  # (R, T)
        self._place = {tokens: place for place, tokens in enumerate(self._strings)}

    def __len__(self) -> int:
        return len(self._strings)

    def nearest(self, tokens: Tokens, used: set[Tokens]) -> Tokens:
        if len(used) == len(self):
            raise ValueError(f"all {len(self)} rows are used: simulate fewer trials")
        distance = (self._canonical != _canonical(self.space, [tokens])).sum(axis=1)
        distance[[self._place[string] for string in used]] = self._canonical.shape[1] + 1
        return self._strings[int(distance.argmin())]

    def judge(self, tokens: Sequence[Tokens], repeats: int, draws: Sequence[np.random.Generator]) -> Judged:
        """Rewards are of seeds that a row has, drawn without replacement; what it is worth, of those not drawn."""
        if few := sum(len(trials) < repeats for trials in self.trials.values()):
            raise ValueError(f"{few} of {len(self)} rows have fewer seeds than repeats={repeats}: leave out those rows")
        found = []
        for string, draw in zip(tokens, draws, strict=True):
            values = draw.permutation([_value(trial) for trial in self.trials[string]])
            seen, others = values[:repeats], values[repeats:]
            found.append((seen.mean(), (others if len(others) else seen).mean(), len(others) > 0))
        rewards, true, held_out = zip(*found, strict=True)
        return Judged(np.array(rewards), np.array(true), np.array(held_out))


@dataclass(frozen=True)
class Smooth:
    """Every policy of the space, worth what a surrogate expects at a rate."""

    surrogate: Surrogate
    rate: float

    @property
    def space(self) -> Space:
        return self.surrogate.space

    def nearest(self, tokens: Tokens, used: set[Tokens]) -> Tokens:
        return tokens

    def judge(self, tokens: Sequence[Tokens], repeats: int, draws: Sequence[np.random.Generator]) -> Judged:
        true = self.surrogate.predict(tokens, self.rate)  # asked once: a forest takes as long for one policy
        noise = self.surrogate.noise / np.sqrt(repeats) * np.array([draw.standard_normal() for draw in draws])
        return Judged(true + noise, true, np.ones(len(true), dtype=bool))


@dataclass(frozen=True, slots=True)
class Simulated:
    """One search, trial by trial, in the order of its proposals."""

    tokens: tuple[Tokens, ...]
    rewards: Floats  # (N,), what it saw
    true: Floats  # (N,), what they were worth
    held_out: Bools  # (N,), False where that is nothing but the reward, for want of another seed
    distance: float  # tokens with an effect by which a trial differed from what was proposed, on average
    repeats: int  # seeds of each trial

    @property
    def best(self) -> float:
        """The true value of the policy with the best reward: what a user would go away with.

        Where `held_out` is False for that policy, it is the best reward itself, and more than a user would get.
        """
        return float(self.true[int(self.rewards.argmax())])

    @property
    def incumbents(self) -> Floats:
        """The same after each trial, (N,); of equals the first stays."""
        places = np.arange(len(self.rewards))
        leads = self.rewards > np.maximum.accumulate(np.append(-np.inf, self.rewards))[:-1]
        return self.true[np.maximum.accumulate(np.where(leads, places, 0))]


def simulate(
    proposer: Proposer,
    world: World,
    trials: int,
    *,
    capacity: int = 16,
    minibatch: int = 16,
    repeats: int = 1,
    seed: int = 0,
) -> Simulated:
    """One search of `trials` policies; a function of its arguments. As `ad.search` runs one, but for the children.

    `capacity` trials are in flight; which `minibatch` of them end next, and make an update, is chance. Two searches
    with one seed see the same noise at the same numbers, whoever proposes.
    """
    if trials < 1 or minibatch < 1 or capacity < minibatch or repeats < 1:
        raise ValueError(
            f"trials, minibatch and repeats must be positive and the capacity no less than the minibatch, got "
            f"trials={trials}, minibatch={minibatch}, repeats={repeats}, capacity={capacity}"
        )
    order = np.random.default_rng([seed, 1])
    tried: list[Tokens] = []
    found: list[Judged] = []
    far: list[int] = []
    used: set[Tokens] = set()
    flying: list[Scored] = []
    while len(tried) < trials or len(flying) >= minibatch:
        numbers = range(len(tried), min(trials, len(tried) + capacity - len(flying)))
        proposals = proposer.propose(numbers) if numbers else []
        for proposal in proposals:
            tried.append(world.nearest(proposal.tokens, used))
            used.add(tried[-1])
        if new := tried[numbers.start :]:
            found.append(world.judge(new, repeats, [np.random.default_rng([seed, 2, number]) for number in numbers]))
            apart = _distances(world.space, new, [proposal.tokens for proposal in proposals])
            far.extend(apart)
            told = found[-1].rewards.tolist()
            for number, tokens, proposal, other, reward in zip(numbers, new, proposals, apart, told, strict=True):
                # What does the same was scored as well: then a proposer sees the very string that it wrote.
                said = (tokens, None) if other else (proposal.tokens, proposal.log_prob)
                flying.append(Scored(number, *said, proposal.version, reward))
        if len(flying) < minibatch:
            break  # as in a search, the rest is not learned from
        ended = set(order.choice(len(flying), minibatch, replace=False).tolist())
        proposer.update([trial for place, trial in enumerate(flying) if place in ended])
        flying = [trial for place, trial in enumerate(flying) if place not in ended]
    rewards, true, held_out = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Simulated(tuple(tried), rewards, true, held_out, float(np.mean(far)), repeats)


def confirm(found: Simulated, world: Smooth, *, top: int = 10, repeats: int = 5, seed: int = 0) -> float:
    """True value of what is left when the best of a search, no two of which do the same, are trained with new seeds.

    That is `autodropout confirm`: of the `top` best rewards the policy with the best mean over `repeats` others.
    """
    best: dict[Tokens, int] = {}  # what a policy does: where the search had it first, of its best rewards
    for place in np.argsort(-found.rewards, kind="stable").tolist():
        best.setdefault(canonical(world.space, found.tokens[place]), place)
    places = list(best.values())[:top]
    draws = [np.random.default_rng([seed, 4, place]) for place in places]
    again = world.judge([found.tokens[place] for place in places], repeats, draws)
    return float(again.true[int(again.rewards.argmax())])


class Stopping(NamedTuple):
    """What a number of training steps bought, with early stopping or without."""

    best: float  # true value of the policy with the best reward among those trained to their end
    held_out: bool  # False: it has no other seed, so this is that reward itself, the best of many, and too good
    started: int
    finished: int
    steps: int  # trained, over all children


def replay_stopping(
    rows: Rows, budget: int, make: Callable[[], Halving] | None, *, together: int = 16, seed: int = 0
) -> Stopping:
    """Random search over rows until `budget` steps are trained; children end early where `make`'s judge says so.

    The curves are those that were recorded, of each row's first seed, so this is what early stopping would have done,
    and not a model of it. What the best row is worth, its other seeds say, where it has others. As soon as a child ends
    the next row begins; children that the budget does not let finish count for nothing.
    """
    draw = np.random.default_rng([seed, 3])
    several = list(rows.trials.values())
    waiting = [several[place][0] for place in draw.permutation(len(several))]
    if any(not trial.curve or trial.curve[-1][0] != trial.steps for trial in waiting):
        raise TableError("early stopping can be replayed only where every row has its curve, to its last step")
    judge = None if make is None else make()
    clock: list[tuple[int, int, int]] = []  # (steps since the search began, child, its next point)
    started = spent = 0
    ended: list[TableTrial] = []
    now = 0
    while spent < budget:
        while started < len(waiting) and len(clock) < together:  # whoever ended just now makes place for the next
            heapq.heappush(clock, (now + waiting[started].curve[0][0], started, 0))
            started += 1
        if not clock:
            break  # all rows are trained
        now, child, point = heapq.heappop(clock)
        trial = waiting[child]
        step, value = trial.curve[point]
        before = trial.curve[point - 1][0] if point else 0
        spent += step - before
        if judge is not None and judge(child, step, value):
            continue
        if point + 1 < len(trial.curve):
            heapq.heappush(clock, (now + trial.curve[point + 1][0] - step, child, point + 1))
        else:
            ended.append(trial)
            if judge is not None:
                judge.finished(child, trial.curve, _value(trial))
    if not ended:
        raise ValueError(f"no child was trained to its end within {budget} steps")
    best = max(ended, key=_value)
    others = [_value(trial) for trial in rows.trials[best.tokens][1:]]
    return Stopping(float(np.mean(others or [_value(best)])), bool(others), started, len(ended), spent)


def _value(trial: TableTrial) -> float:
    assert trial.value is not None, "rows have values"
    return trial.value


def _canonical(space: Space, tokens: Sequence[Tokens]) -> npt.NDArray[np.int64]:
    """(N, T): tokens without effect are all alike."""
    return np.where(active(space, tokens), np.asarray(tokens, dtype=np.int64), -1)


def _distances(space: Space, first: Sequence[Tokens], second: Sequence[Tokens]) -> list[int]:
    """Of each pair the tokens by which what they do differs."""
    found: list[int] = (_canonical(space, first) != _canonical(space, second)).sum(axis=1).tolist()
    return found
