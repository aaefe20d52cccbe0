"""What is trained in the study of Penn Treebank: its options' defaults, its children, and what shared stages are told.

The trainings themselves are in `trainings.py`, which stages there are in `__main__.py`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from autodropout.spaces import Policy
from autodropout.training.language import REWARD, LanguageTraining
from studies import candidates, pieces, proxy
from studies.pieces import Child
from studies.ptb.trainings import KINDS, SPACE, TRAININGS, families

SMOKE_STEPS = 250  # a smoke test trains for so many times fewer
DEFAULTS = pieces.Defaults(
    study="ptb",
    together=48,
    smoke_together=12,
    training="half",
    steps=3_000,
    rate=0.05,
    longer_training="small",
    longer_steps=6_000,
    longer_rate=0.05,
    methods=["random", "controller-paper", "controller", "tpe"],
    longer_methods=["random", "controller-paper", "controller"],
    trials=512,
    final_steps=[6_000, 12_000],
    none_steps=[3_000, 4_000],
    tuning_seeds=2,
    final_seeds=20,
)
CANDIDATES = ("small:4000", "small:6000", "half:4000", "narrow:8000", "tiny:8000", "tiny:16000")
CLASSICAL = (
    *(("dropout", 0.1), ("dropout", 0.2), ("variational_dropout", 0.1), ("word_dropout", 0.1)),
    *(("dropout, all sites", 0.05), ("dropout, all sites", 0.1), ("variational_dropout, all sites", 0.05)),
)
RATES = (0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3)  # at many sites
USUAL_RATES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)  # at the few where classical methods are usual


def random_policies(piece: "Piece") -> int:
    """How many are compared, so that jobs of 48 are full."""
    return 4 if piece.smoke else 34


class Piece(pieces.Piece):
    """Of language models."""

    command, subject, unit = "python -m studies.ptb {}", "Penn Treebank", "perplexity"
    space, peers = SPACE, families()

    def training(self, name: str, steps: int) -> LanguageTraining:
        training = TRAININGS[name](steps)
        if not self.smoke:
            return training
        steps = max(4, steps // SMOKE_STEPS)
        small = replace(training.smoke(), batch=2, segment=8, steps=steps, evaluate_every=max(1, steps // 2))
        return replace(small, evaluation_batch=2, evaluation_words=100, warmup=0)

    def asked(self, steps: int) -> int:
        """What to ask `training` for, to have so many steps: a smoke test's are fewer."""
        return steps * SMOKE_STEPS if self.smoke else steps

    def regularizer(self, child: Child) -> Policy:
        return SPACE.decode(child.tokens)

    def shown(self, reward: float) -> float:
        return perplexity(reward)

    def rates_for(self, method: str) -> tuple[float, ...]:
        return USUAL_RATES if method in KINDS else RATES

    def prepare(self, training: LanguageTraining, job: Sequence[Child]) -> bool:
        return training.prepare_many(self.together, self.run)


def perplexity(reward: float) -> float:
    return REWARD / reward if reward else float("inf")


def perplexities(rewards: Sequence[float]) -> list[float | None]:
    """As JSON has them: None for a child that diverged."""
    return [perplexity(reward) if reward else None for reward in rewards]


def look_first(piece: Piece, args: argparse.Namespace) -> None:
    candidates.study(piece, args, CANDIDATES, CLASSICAL, TRAININGS)


def compare_proxies(piece: Piece, args: argparse.Namespace) -> None:
    proxy.study(piece, args, random_policies(piece))
