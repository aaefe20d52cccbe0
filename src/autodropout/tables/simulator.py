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

`true` values are a policy's mean over its seeds in the first world, the surrogate's in the second. The rewards a search
sees are one seed's, or the mean over `repeats` of them.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from autodropout.search.halving import Halving
from autodropout.search.protocols import Proposer, Scored
from autodropout.spaces import Space
from autodropout.tables.statistics import Floats
from autodropout.tables.surrogate import Surrogate, active
from autodropout.tables.trials import TableError, TableTrial

Tokens = tuple[int, ...]


class World(Protocol):
    """What a simulated search needs to know of policies."""

    def nearest(self, tokens: Tokens, used: set[Tokens]) -> Tokens:
        """The policy that is tried where this one is proposed."""
        ...

    def true(self, tokens: Sequence[Tokens]) -> Floats:
        """What policies are worth, (N,)."""
        ...

    def rewards(self, tokens: Sequence[Tokens], repeats: int, draws: Sequence[np.random.Generator]) -> list[float]:
        """What a search is told of policies: means over so many seeds, each with chance of its own."""
        ...


class Rows:
    """The policies of a table, at one rate, each with the values it had."""

    def __init__(self, space: Space, trials: Sequence[TableTrial]) -> None:
        kept = [trial for trial in trials if trial.value is not None and not trial.stopped]
        if len({(trial.training, trial.steps, trial.rate) for trial in kept}) != 1:
            raise TableError("these rows must be of one training, one length and one rate, and there must be some")
        self.space = space
        self.trials: dict[Tokens, list[TableTrial]] = {}
        for trial in kept:
            self.trials.setdefault(trial.tokens, []).append(trial)
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

    def true(self, tokens: Sequence[Tokens]) -> Floats:
        return np.array([np.mean([_value(trial) for trial in self.trials[string]]) for string in tokens])

    def rewards(self, tokens: Sequence[Tokens], repeats: int, draws: Sequence[np.random.Generator]) -> list[float]:
        """Of the seeds that a row has, drawn without replacement: no row can have more seeds than it was given."""
        several = [[_value(trial) for trial in self.trials[string]] for string in tokens]
        return [
            float(np.mean(draw.choice(values, min(repeats, len(values)), replace=False)))
            for values, draw in zip(several, draws, strict=True)
        ]


@dataclass(frozen=True)
class Smooth:
    """Every policy of the space, worth what a surrogate expects at a rate."""

    surrogate: Surrogate
    rate: float

    def nearest(self, tokens: Tokens, used: set[Tokens]) -> Tokens:
        return tokens

    def true(self, tokens: Sequence[Tokens]) -> Floats:
        return self.surrogate.predict(tokens, self.rate)

    def rewards(self, tokens: Sequence[Tokens], repeats: int, draws: Sequence[np.random.Generator]) -> list[float]:
        noise = self.surrogate.noise / np.sqrt(repeats) * np.array([draw.standard_normal() for draw in draws])
        found: list[float] = (self.true(tokens) + noise).tolist()  # asked once: a forest takes as long for one policy
        return found


@dataclass(frozen=True, slots=True)
class Simulated:
    """One search, trial by trial, in the order of its proposals."""

    tokens: tuple[Tokens, ...]
    rewards: Floats  # (N,), what it saw
    true: Floats  # (N,), what they were worth
    distance: float  # tokens by which a trial differed from what was proposed, on average
    repeats: int  # seeds of each trial

    @property
    def best(self) -> float:
        """The true value of the policy with the best reward: what a user would go away with."""
        return float(self.true[int(self.rewards.argmax())])

    @property
    def incumbents(self) -> Floats:
        """The same after each trial, (N,)."""
        places = np.arange(len(self.rewards))
        leads = self.rewards == np.maximum.accumulate(self.rewards)
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
    rewards: list[float] = []
    far: list[int] = []
    used: set[Tokens] = set()
    flying: list[Scored] = []
    while len(tried) < trials or len(flying) >= minibatch:
        numbers = range(len(tried), min(trials, len(tried) + capacity - len(flying)))
        proposals = proposer.propose(numbers) if numbers else []
        for proposal in proposals:
            tried.append(world.nearest(proposal.tokens, used))
            used.add(tried[-1])
        new = tried[numbers.start :]
        draws = [np.random.default_rng([seed, 2, number]) for number in numbers]
        told = world.rewards(new, repeats, draws) if new else []
        rewards.extend(told)
        for number, tokens, proposal, reward in zip(numbers, new, proposals, told, strict=True):
            far.append(sum(a != b for a, b in zip(tokens, proposal.tokens, strict=True)))
            log_prob = proposal.log_prob if tokens == proposal.tokens else None
            flying.append(Scored(number, tokens, log_prob, proposal.version, reward))
        if len(flying) < minibatch:
            break  # as in a search, the rest is not learned from
        ended = set(order.choice(len(flying), minibatch, replace=False).tolist())
        proposer.update([trial for place, trial in enumerate(flying) if place in ended])
        flying = [trial for place, trial in enumerate(flying) if place not in ended]
    return Simulated(tuple(tried), np.array(rewards), world.true(tried), float(np.mean(far)), repeats)


class Stopping(NamedTuple):
    """What a number of training steps bought, with early stopping or without."""

    best: float  # true value of the policy with the best reward among those trained to their end
    started: int
    finished: int
    steps: int  # trained, over all children


def replay_stopping(
    rows: Rows, budget: int, make: Callable[[], Halving] | None, *, together: int = 16, seed: int = 0
) -> Stopping:
    """Random search over rows until `budget` steps are trained; children end early where `make`'s judge says so.

    The curves are those that were recorded, so this is what early stopping would have done, and not a model of it. As
    soon as a child ends the next row begins; children that the budget does not let finish count for nothing.
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
    return Stopping(float(rows.true([best.tokens])[0]), started, len(ended), spent)


def _value(trial: TableTrial) -> float:
    assert trial.value is not None, "rows have values"
    return trial.value


def _canonical(space: Space, tokens: Sequence[Tokens]) -> npt.NDArray[np.int64]:
    """(N, T): tokens without effect are all alike."""
    return np.where(active(space, tokens), np.asarray(tokens, dtype=np.int64), -1)
