"""A training of images that takes no time, for the tests of studies of images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autodropout.layers import Baseline
from autodropout.spaces import ConvPolicy
from autodropout.training.run import Run

jobs: list[list[object]] = []
"""Of every job what its children were trained under."""


@dataclass(frozen=True)
class Fake:
    """Dropout at a low rate is worth most, then policies that leave the last group alone."""

    steps: int
    evaluate_every: int = 1

    def smoke(self) -> "Fake":
        return self

    def prepare_many(self, regularizers: Sequence[object], run: Run) -> bool:
        return not jobs

    def score(self, regularizer: Baseline | ConvPolicy, rate: float, seed: int) -> float:
        noise = 0.001 * float(np.random.default_rng([seed, round(100 * rate)]).standard_normal())
        if isinstance(regularizer, Baseline):
            return 0.7 + (0.05 if regularizer.name == "dropout" else 0.01) * (rate <= 0.1) + noise
        used = [not group.pattern.is_none for group in regularizer.groups]
        return 0.7 + 0.02 * (used[0] - used[-1]) * (rate > 0) + noise

    def fit_many(
        self,
        regularizers: Sequence[Baseline | ConvPolicy],
        rates: Sequence[float],
        seeds: Sequence[int],
        run: Run,
        reports: Sequence[Callable[[int, float], None]],
        test_reports: Sequence[Callable[[int, float], None]] | None,
    ) -> list[float]:
        jobs.append(list(regularizers))
        scores = [self.score(*child) for child in zip(regularizers, rates, seeds, strict=True)]
        for report, score in zip(reports, scores, strict=True):
            report(1, 0.99 * score)
            report(self.steps, score)
        for report, score in zip(test_reports or (), scores, strict=test_reports is not None):
            report(self.steps, score - 0.1)
        return scores

    def result_step(self, curve: Sequence[tuple[int, float]]) -> int:
        return curve[-1][0]
