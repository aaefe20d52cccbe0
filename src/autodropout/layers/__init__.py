"""Masks at work: rules (our patterns and the peers), the drop that applies one at a rate, baselines by name."""

from autodropout.layers.baselines import BASELINES, Baseline, baseline
from autodropout.layers.drop import Drop, DropLayer, PatternRule, Rule, rescale
from autodropout.layers.dropblock import DropBlock
from autodropout.layers.rules import (
    ConvRule,
    Dropout,
    SequenceRule,
    SpatialDropout,
    StochasticDepth,
    VariationalDropout,
    WordDropout,
)

__all__ = [
    "BASELINES",
    "Baseline",
    "ConvRule",
    "Drop",
    "DropBlock",
    "DropLayer",
    "Dropout",
    "PatternRule",
    "Rule",
    "SequenceRule",
    "SpatialDropout",
    "StochasticDepth",
    "VariationalDropout",
    "WordDropout",
    "baseline",
    "rescale",
]
