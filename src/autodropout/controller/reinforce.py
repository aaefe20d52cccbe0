"""REINFORCE for trials that come back late: settings, importance weights, one update.

The paper, "Controller Model and Search Algorithms": minibatches of M finished trials, each sampled by the controller
as it was C/M updates ago or more,

    gradient = mean of (value - baseline) * P(tokens; now) / P(tokens; at sampling) * grad log P(tokens; now)

with a moving-average baseline and an entropy term, by Adam. `PAPER` is exactly that, `FAST` is ours.

What the paper leaves open, and what both settings do:
1. The baseline starts at the first minibatch's mean; afterwards a minibatch is judged by the baseline of those before.
2. The entropy of a string is the sum of its tokens' entropies, given the tokens before each.
3. The ratio of probabilities is clipped where it would explode, and so are values.

How `FAST` departs from the paper, for studies of a few hundred trials (`benchmarks/landscape.py` compares the two, and
forms of weights at several learning rates; with 4,096 trials and none late, the paper's finds better policies):
1. Advantages are divided by their running deviation, and the norm of the gradient is bounded, so that a step depends
   neither on the unit of the reward nor on one lucky trial. The baseline forgets faster.
2. A larger learning rate: 512 trials make 32 updates.
3. The best trials so far are imitated beside the policy gradient (Abolafia et al., "Neural Program Synthesis with
   Priority Queue Training", 2018).
4. Another form of importance weight, see `Weighting`: there the paper's made late trials worse than no weights at all.
"""

import math
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

from autodropout.controller.transformer import ControllerNetwork

GREATEST_VALUE = 1e15
"""Beyond it values count as this: the optimizer squares gradients, in float32."""

ROUNDING = 1e-12
"""Values that differ by less, relative to themselves, are the same: what is left of them is the rounding of a mean."""


class Weighting(Enum):
    """How a trial of an older controller counts; r is the ratio of its probabilities, now to then."""

    RATIO = "ratio"  # r, the paper's: right on average, and at 24 tokens and some lag almost all weight on a few trials
    GEOMETRIC = "geometric"  # r^(1/T): the mean ratio of one token
    TAPERED = "tapered"  # 1 for a good trial, min(r, 1) for a bad one: what has become rare is not pushed down further
    NONE = "none"  # 1


@dataclass(frozen=True, slots=True)
class Settings:
    """How a controller learns. The defaults are the paper's numbers."""

    learning_rate: float = 3.5e-4
    baseline_momentum: float = 0.95
    entropy: float = 1e-5
    weighting: Weighting = Weighting.RATIO
    greatest_weight: float = 5.0
    scaled_advantages: bool = False
    greatest_norm: float | None = None
    imitated: int = 0  # how many of the best trials are imitated
    imitation: float = 0.0  # and how strongly


PAPER = Settings()
FAST = Settings(
    learning_rate=3e-3,
    baseline_momentum=0.5,
    entropy=0.01,
    weighting=Weighting.TAPERED,
    scaled_advantages=True,
    greatest_norm=1.0,
    imitated=32,
    imitation=1.0,
)


@dataclass(frozen=True, slots=True)
class Weights:
    """Importance weights of a minibatch; and of the ratios, whatever is made of them, how far they can be trusted."""

    weights: Tensor  # (M,)
    clip_share: float  # how many of the ratios exceed the greatest weight
    effective_size: float  # (sum r)^2 / sum r^2: M when all are equal, 1 when one is all


def importance_weights(log_ratios: Tensor, advantages: Tensor, positions: int, settings: Settings) -> Weights:
    """The weights of trials with log P(now) - log P(at sampling) = `log_ratios`, (M,) float64."""
    match settings.weighting:
        case Weighting.RATIO:
            exponents = log_ratios
        case Weighting.GEOMETRIC:
            exponents = log_ratios / positions
        case Weighting.TAPERED:
            exponents = torch.where(advantages > 0, 0.0, log_ratios.clamp(max=0.0))
        case Weighting.NONE:
            exponents = torch.zeros_like(log_ratios)
    limit = math.log(settings.greatest_weight)
    relative = (log_ratios - log_ratios.max()).exp()  # the greatest is 1: no overflow, however far apart they are
    return Weights(
        weights=exponents.clamp(max=limit).exp(),
        clip_share=(log_ratios > limit).double().mean().item(),
        effective_size=(relative.sum() ** 2 / relative.square().sum()).item(),
    )


def objective(log_probs: Tensor, entropies: Tensor, advantages: Tensor, weights: Tensor, entropy: float) -> Tensor:
    """What an update ascends: its gradient is the paper's, and the entropy's. All (M,) but the last."""
    return (weights * advantages * log_probs).mean() + entropy * entropies.mean()


def token_entropies(log_probs: Tensor) -> Tensor:
    """(N, T, values) -> (N,): each string's entropies, summed over its tokens."""
    return -(log_probs.exp() * log_probs).sum((-1, -2))


class Baseline:
    """Moving averages of the values, and of their squared distance from it."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.mean: float | None = None
        self.square: float | None = None

    def advantages(self, values: Tensor, scaled: bool) -> Tensor:
        """Values less the baseline, (M,), over their running deviation if asked, this minibatch included in that."""
        values = values.clamp(-GREATEST_VALUE, GREATEST_VALUE)
        batch_mean = values.mean().item()
        mean = batch_mean if self.mean is None else self.mean
        advantages = values - mean
        batch_square = advantages.square().mean().item()
        self.mean = self._moved(mean, batch_mean)
        self.square = self._moved(batch_square if self.square is None else self.square, batch_square)
        if not scaled:
            return advantages
        deviation = math.sqrt(self.square)
        if deviation <= ROUNDING * values.abs().max().item():
            return torch.zeros_like(advantages)
        return advantages / deviation

    def _moved(self, average: float, value: float) -> float:
        return self.momentum * average + (1 - self.momentum) * value


class Imitation:
    """The best distinct token strings so far, best first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.best: list[tuple[tuple[int, ...], float]] = []

    def add(self, tokens: tuple[int, ...], value: float) -> None:
        known = dict(self.best)
        known[tokens] = max(value, known.get(tokens, -math.inf))
        self.best = sorted(known.items(), key=lambda seen: (-seen[1], seen[0]))[: self.size]  # ties: one order, always


class Learner:
    """A network, its optimizer, its baseline and what it imitates."""

    def __init__(self, network: ControllerNetwork, settings: Settings) -> None:
        self.network = network
        self.settings = settings
        self.baseline = Baseline(settings.baseline_momentum)
        self.imitation = Imitation(settings.imitated)
        self.adam = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, betas=(0.9, 0.999), fused=True)

    def step(self, tokens: Tensor, sampled_log_prob: Tensor, values: Tensor) -> dict[str, float]:
        """One update by M trials: (M, T) int64, (M,) float64, (M,) float64."""
        settings = self.settings
        advantages = self.baseline.advantages(values, settings.scaled_advantages)
        best = self._best_with(tokens, values)  # (at most `imitated`, T)
        by_value = self.network(torch.cat((tokens, best)))  # one pass for both
        log_probs, best_log_probs = self.network.log_prob(by_value, torch.cat((tokens, best))).split(
            (len(tokens), len(best))
        )
        entropies = token_entropies(by_value[: len(tokens)])
        log_ratios = log_probs.detach().double() - sampled_log_prob
        weights = importance_weights(log_ratios, advantages, tokens.shape[1], settings)
        loss = -objective(log_probs, entropies, advantages.float(), weights.weights.float(), settings.entropy)
        if len(best):
            loss = loss - settings.imitation * best_log_probs.mean()
        self.adam.zero_grad()
        loss.backward()
        limit = math.inf if settings.greatest_norm is None else settings.greatest_norm
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        self.adam.step()
        assert self.baseline.mean is not None
        return {
            "loss": loss.item(),
            "entropy": entropies.mean().item(),
            "baseline": self.baseline.mean,
            "clip_share": weights.clip_share,
            "effective_size": weights.effective_size,
            "gradient_norm": norm.item(),
        }

    def _best_with(self, tokens: Tensor, values: Tensor) -> Tensor:
        """The strings to imitate, these trials considered too."""
        if self.settings.imitated:
            for string, value in zip(tokens.tolist(), values.tolist(), strict=True):
                self.imitation.add(tuple(string), value)
        best = [string for string, _ in self.imitation.best]
        return torch.tensor(best, dtype=tokens.dtype, device="cpu").view(-1, tokens.shape[1])
