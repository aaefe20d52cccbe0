"""Uniform random search: the baseline that every other proposer has to beat (the paper's "Random Search")."""

import math
from collections.abc import Sequence
from typing import Self

from autodropout.controller.draws import indices, uniforms
from autodropout.controller.state import pack, unpack
from autodropout.search.protocols import Proposal, Scored
from autodropout.spaces import Space


class RandomSearch:
    """Every token string is as likely as any other, whatever was scored before."""

    name = "random"

    def __init__(self, space: Space, seed: int) -> None:
        self.version = 0
        self._space = space
        self._seed = seed
        self._choices = [len(token.values) for token in space.tokens]

    def propose(self, numbers: Sequence[int]) -> list[Proposal]:
        log_prob = -math.log(self._space.count)
        return [Proposal(self._tokens(number), log_prob, self.version) for number in numbers]

    def update(self, batch: Sequence[Scored]) -> dict[str, float]:
        self.version += 1
        return {"mean_value": math.fsum(trial.value for trial in batch) / len(batch)}

    def save(self) -> bytes:
        return pack(self.name, self._space, self._seed, {"version": self.version}, {})

    @classmethod
    def load(cls, space: Space, seed: int, state: bytes) -> Self:
        facts, _ = unpack(cls.name, space, seed, state)
        search = cls(space, seed)
        search.version = facts["version"]
        return search

    def _tokens(self, number: int) -> tuple[int, ...]:
        return indices(uniforms("random", self._seed, number, len(self._choices)), self._choices)
