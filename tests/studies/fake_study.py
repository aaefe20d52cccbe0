"""A training that takes no time, for the tests of the Penn Treebank study's stages."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from autodropout.spaces import Policy
from autodropout.training.run import Run
from studies.pieces import study_options
from studies.ptb import __main__ as command
from studies.ptb import descent, study

LONGEST = 48  # steps that a smoke test has of 12,000
trained: list[int] = []
"""Of every job how many children it had."""
prepared: list[int] = []
"""Before every job for how many children there was to be room."""


@dataclass(frozen=True)
class Fake:
    """Policies that use some sites and not others score best, at a rate of 0.1, in the longest; with seeds' noise."""

    steps: int
    evaluate_every: int = 1
    batch: int = 1
    segment: int = 1
    evaluation_batch: int = 1
    evaluation_words: int | None = None
    diverges: bool = False
    lr: float = 1e-3
    lr_after_cosine: float = 1e-4
    lr_constant: float = 5e-5
    warmup: int = 0
    vocabulary: int = 3

    def text(self) -> SimpleNamespace:
        return SimpleNamespace(train=torch.tensor([0, 0, 0, 1, 1]), validation=torch.tensor([0, 1, 2]))

    def smoke(self) -> "Fake":
        return self

    def prepare_many(self, children: int, run: Run) -> bool:
        prepared.append(children)
        return len(prepared) == 1

    def score(self, policy: Policy, rate: float, seed: int) -> float:
        used = [not pattern.is_none for pattern in policy.sites.values()]
        worth = 0.05 * (sum(used[:6]) - sum(used[6:])) * (1 - abs(rate - 0.1))
        longest = 0.02 * (self.steps == LONGEST)
        return 0.7 + 0.1 * worth + longest + 0.002 * float(np.random.default_rng([seed, sum(used)]).standard_normal())

    def result_step(self, curve: Sequence[tuple[int, float]]) -> int:
        return max(curve, key=lambda reading: reading[1])[0]

    def fit_many(
        self,
        policies: Sequence[Policy],
        rates: Sequence[float],
        seeds: Sequence[int],
        run: Run,
        reports: Sequence[Callable[[int, float], None]],
        test_reports: Sequence[Callable[[int, float], None]] | None,
    ) -> list[float]:
        """The best comes in the middle; on the test text everybody is a little worse there, and best in the end."""
        trained.append(len(policies))
        scores = [self.score(*child) for child in zip(policies, rates, seeds, strict=True)]
        for report, score in zip(reports, scores, strict=True):
            report(1, score)
            report(self.steps, 0.9 * score)
        for report, score in zip(test_reports or (), scores, strict=test_reports is not None):
            report(1, 0.99 * score)
            report(self.steps, 1.5 * score)
        return [math.nan, *scores[1:]] if self.diverges else scores


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = {name: lambda steps: Fake(steps) for name in ("half", "small", "wikitext-2")}
    for module in (study, descent, command):
        monkeypatch.setattr(module, "TRAININGS", fakes)
    trained.clear()
    prepared.clear()


def run(*arguments: str) -> None:
    """As `python -m studies.ptb` does."""
    command.main(arguments)


def piece_of(name: str, *arguments: str) -> study.Piece:
    """With a journal of that name, and the study's options."""
    options = study_options(None, ["search"], ["search", *arguments], study.TRAININGS, study.DEFAULTS)
    return study.Piece(options, name)
