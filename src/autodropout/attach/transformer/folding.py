"""Masks on attention's probabilities that need no probabilities, so that a fused attention stays in use.

    (m * P) V        P (N, heads, T, S), V (N, heads, S, D), m with the shape of P

1. m is constant along keys, as of a pattern shared along channels: `m_t * (P V)_t`. Mask the context instead.
2. m is constant along queries, as of one run from the first token on that is shared along tokens: `P (m_s * V_s)`.
   Mask the values instead.

Same draws from the same seed, hence the same mask; the share of what is kept is the same, too.
"""

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from autodropout.layers import Rule, SequenceRule, StochasticDepth, VariationalDropout, WordDropout, rescale
from autodropout.layers.drop import Drop
from autodropout.patterns import Runs, sequence_mask


class Into(Enum):
    """What is masked in place of the probabilities."""

    CONTEXT = "context"
    VALUE = "value"


def folds(drop: Drop, query: Tensor, value: Tensor) -> Into | None:
    """Where this drop on the probabilities of these queries goes, (N, heads, T, D) and (N, key heads, S, D)."""
    if drop.live:
        return None  # its pattern is not known where the code is chosen
    rule, length = drop.rule, query.shape[-2]
    if isinstance(rule, WordDropout | StochasticDepth) or (isinstance(rule, SequenceRule) and rule.pattern.share_c):
        return Into.CONTEXT
    if query.shape[1] == value.shape[1] and _on_values(rule, length) is not None:
        return Into.VALUE
    return None


def on_value(drop: Drop, value: Tensor, length: int) -> Tensor:
    """The values of attention, masked in place of the probabilities of `length` queries."""
    rule = _on_values(drop.rule, length)
    assert rule is not None
    return drop.acting_as(rule, value)


def _on_values(rule: Rule, length: int) -> Rule | None:
    if isinstance(rule, VariationalDropout):
        return WordDropout()
    if isinstance(rule, SequenceRule):
        pattern = rule.pattern
        if pattern.share_t and not pattern.stride and pattern.size >= length:
            return _WholeTokens()
    return None


@dataclass(frozen=True)
class _WholeTokens:
    """One draw for each token, all of them covered however many there are; rescaled by the share that is kept."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        mask, kept = sequence_mask(Runs(h.shape[-2], 0, share_c=True), h.shape, rate, seed)
        return rescale(h, mask, kept)
