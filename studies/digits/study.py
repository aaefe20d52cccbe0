"""What is trained in the study of the default problem: a small ConvNet on 400 digits on noise, the recipe `digits`.

No GPU is needed: each child is trained alone, on a CPU core of its own. The problem was chosen because regularization
pays in it, random policies do well, and a child takes seconds. So its numbers say what a search does where there is
something to find; what is to be found elsewhere they do not say.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from typing import Any

import torch

from autodropout.layers import baseline
from autodropout.recipes.digits import digits
from autodropout.training import ImageTraining
from autodropout.training.run import Regularizer, Report, Run
from studies import images, pieces, proxy

BASELINES = {
    "dropout": baseline("dropout"),
    "dropblock": baseline("dropblock", block=3),  # 7 cells are more than the smallest maps have
    "spatial_dropout": baseline("spatial_dropout"),
    "stochastic_depth": baseline("stochastic_depth"),
}
RATES = {
    "dropout": (0.2, 0.3, 0.4, 0.5),
    "dropblock": (0.05, 0.1, 0.2, 0.3),
    "spatial_dropout": (0.05, 0.1, 0.2, 0.3),
    "stochastic_depth": (0.05, 0.1, 0.2, 0.3),
}
POLICY_RATES = (0.2, 0.4, 0.6, 0.8)
SEARCH_RATES = (0.2, 0.4, 0.6)
RECIPE = digits()
STEPS = RECIPE.proxy.steps
DEFAULTS = pieces.Defaults(
    study="digits",
    together=32,
    smoke_together=8,
    training="wrn-10-1",
    steps=STEPS,
    rate=RECIPE.rate,
    longer_training="wrn-10-1",
    longer_steps=2 * STEPS,
    longer_rate=RECIPE.rate,
    methods=["random", "controller"],
    longer_methods=["random", "controller"],
    trials=RECIPE.trials,
    final_steps=[STEPS],
    none_steps=[],
    tuning_seeds=3,
    final_seeds=20,
)


def training(steps: int) -> ImageTraining:
    """The recipe's, of another length."""
    return replace(RECIPE.proxy, steps=steps, evaluate_every=-(-steps // 2))


TRAININGS: dict[str, Callable[[int], ImageTraining]] = {"wrn-10-1": training}
SPACE = RECIPE.space()


class Piece(images.Piece):
    """Of this study."""

    command, subject = "python -m studies.digits {}", "400 digits on noise"
    space, peers = SPACE, dict.fromkeys(BASELINES, (0,) * len(SPACE.tokens))
    trainings, baselines_by_name, rates, policy_rates = TRAININGS, BASELINES, RATES, POLICY_RATES

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        super().__init__(args, name)
        self.run = Run(device="cpu")

    def prepare(self, training: ImageTraining, job: Sequence[pieces.Child]) -> bool:
        return False

    def fit_many(
        self,
        training: ImageTraining,
        regularizers: Sequence[Regularizer],
        rates: Sequence[float],
        seeds: Sequence[int],
        reports: Sequence[Report],
        test_reports: Sequence[Report] | None,
    ) -> list[float]:
        """Each alone, on a core of its own: for networks as small as these a second thread is of no use."""
        run = replace(self.run, test=test_reports is not None)
        children = zip(regularizers, rates, seeds, strict=True)
        jobs = [_cores().submit(fit, training, *child, run) for child in children]
        rewards = []
        for number, (reward, curve, tested) in enumerate(job.result() for job in jobs):
            for step, value in curve:
                reports[number](step, value)
            if test_reports is not None and tested is not None:
                test_reports[number](training.steps, tested)
            rewards.append(reward)
        return rewards


def fit(training: ImageTraining, regularizer: Regularizer, rate: float, seed: int, run: Run) -> Any:
    """The reward, which is nan where it diverged; the curve; and the test accuracy if it was asked for."""
    curve: list[tuple[int, float]] = []
    try:
        scores = training.fit(regularizer, rate, seed, replace(run, report=lambda *reading: curve.append(reading)))
    except FloatingPointError:
        return float("nan"), curve, None
    return scores.reward, curve, scores.metrics.get("test_accuracy")


@cache
def _cores() -> ProcessPoolExecutor:
    """As many processes as there are cores, kept until the end: starting one takes as long as a child."""
    return ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), torch.set_num_threads, (1,))


def compare_proxies(piece: Piece, args: argparse.Namespace) -> None:
    proxy.study(piece, args, 4 if args.smoke else 32, SEARCH_RATES)
