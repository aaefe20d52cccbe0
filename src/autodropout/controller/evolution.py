"""Regularized evolution (Real et al., "Regularized Evolution for Image Classifier Architecture Search", 2019).

The population is the youngest `POPULATION` scored trials, whatever their values: the oldest dies, not the worst. Each
proposal picks `TOURNAMENT` of them at random, takes the best and changes one token. Until the population is full,
proposals are uniform. Asynchronous by nature: a proposal needs the population of now, and nobody waits.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Self

from autodropout.controller.draws import indices, uniforms
from autodropout.controller.history import Seen, from_tensors, to_tensors
from autodropout.controller.state import pack, unpack
from autodropout.search.protocols import Proposal, Scored
from autodropout.spaces import Space

POPULATION = 64
TOURNAMENT = 16


class Evolution:
    """One mutation of the best of a few, drawn from those who came last."""

    name = "evolution"

    def __init__(self, space: Space, seed: int) -> None:
        self.version = 0
        self._space = space
        self._seed = seed
        self._choices = [len(token.values) for token in space.tokens]
        self._open = [position for position, count in enumerate(self._choices) if count > 1]  # can be mutated
        self._population: deque[Seen] = deque(maxlen=POPULATION)

    def propose(self, numbers: Sequence[int]) -> list[Proposal]:
        return [Proposal(self._tokens(number), None, self.version) for number in numbers]

    def update(self, batch: Sequence[Scored]) -> dict[str, float]:
        self._population.extend((trial.tokens, trial.value) for trial in sorted(batch, key=lambda trial: trial.number))
        self.version += 1
        values = [value for _, value in self._population]
        return {
            "mean_value": math.fsum(trial.value for trial in batch) / len(batch),
            "population": float(len(values)),
            "population_mean": math.fsum(values) / len(values),
            "population_best": max(values),
        }

    def save(self) -> bytes:
        tensors = to_tensors(self._population, len(self._choices))
        return pack(self.name, self._space, self._seed, {"version": self.version}, tensors)

    @classmethod
    def load(cls, space: Space, seed: int, state: bytes) -> Self:
        facts, tensors = unpack(cls.name, space, seed, state)
        evolution = cls(space, seed)
        evolution.version = facts["version"]
        evolution._population.extend(from_tensors(tensors))
        return evolution

    def _tokens(self, number: int) -> tuple[int, ...]:
        if len(self._population) < POPULATION:
            return indices(uniforms("evolution start", self._seed, number, len(self._choices)), self._choices)
        *entrants, where, what = uniforms("evolution", self._seed, number, TOURNAMENT + 2)
        chosen = (self._population[int(draw * POPULATION)] for draw in entrants)
        parent, _ = max(chosen, key=lambda seen: seen[1])
        return self._mutated(parent, where, what)

    def _mutated(self, tokens: tuple[int, ...], where: float, what: float) -> tuple[int, ...]:
        """The string with one token changed to another value, each position and each value as likely as any other."""
        if not self._open:
            return tokens
        position = self._open[int(where * len(self._open))]
        step = 1 + int(what * (self._choices[position] - 1))
        changed = (tokens[position] + step) % self._choices[position]
        return (*tokens[:position], changed, *tokens[position + 1 :])
