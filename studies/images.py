"""What studies of image classifiers share: children under policies and under baselines, judged by their errors.

Everybody but the policies is a baseline of `autodropout.layers`, in a crowd with slots of its own
(`training/image_crowd.py`). A reward is the accuracy in the end, not the best of a curve, so that nobody is rewarded
for stopping early. Tables show errors in percent.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autodropout.layers import Baseline
from autodropout.training import ImageTraining
from autodropout.training.run import Regularizer
from studies import pieces
from studies.pieces import Child

SMOKE_STEPS = 500  # a smoke test trains for so many times fewer


class Piece(pieces.Piece):
    """Of image classifiers."""

    unit = "error, %"
    trainings: Mapping[str, Callable[[int], ImageTraining]]  # each takes its steps
    baselines_by_name: Mapping[str, Baseline]  # that `peers` stand for
    rates: Mapping[str, tuple[float, ...]]  # that each of them is tuned over
    policy_rates: tuple[float, ...]

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        super().__init__(args, name)
        self.run = replace(self.run, compile=self.run.where.type == "cuda")

    def training(self, name: str, steps: int) -> ImageTraining:
        training = self.trainings[name](steps)
        if not self.smoke:
            return training
        steps = max(4, steps // SMOKE_STEPS)
        return replace(training.smoke(), steps=steps, evaluate_every=max(1, steps // 2))

    def regularizer(self, child: Child) -> Regularizer:
        return self.baselines_by_name.get(child.method) or self.space.decode(child.tokens)

    def shown(self, reward: float) -> float:
        return 100 * (1 - reward)

    def rates_for(self, method: str) -> tuple[float, ...]:
        return self.rates.get(method, self.policy_rates)

    def prepare(self, training: ImageTraining, job: Sequence[Child]) -> bool:
        return training.prepare_many([self.regularizer(child) for child in job], self.run)
