"""Small statistics over trials: rank correlation, bootstrap intervals, the spread between seeds. numpy alone.

Paired differences between variants of a training, with Student's intervals, are `autodropout.recipes.comparison`'s.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MOST_FLIPS = 24  # 2^24 sums are 128 MiB
ROUNDING = 1e-12  # of what is added: two sums that should be equal differ by less, also where they are about zero


class Interval(NamedTuple):
    """An estimate, and where it may well lie."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ranks(values: Sequence[float] | Floats) -> Floats:
    """1 for the smallest; equals share the mean of their ranks."""
    values = np.asarray(values, dtype=float)
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: Floats = (ends - (counts - 1) / 2)[places]
    return found


def spearman(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float:
    """Rank correlation; nan where one of the two does not vary."""
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"a correlation needs two or more pairs, got {len(first)} and {len(second)} values")
    a, b = ranks(first), ranks(second)
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale else float("nan")


def bootstrap(
    statistic: Callable[..., float],
    *columns: Sequence[float] | Floats,
    draws: int = 2_000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """A statistic of rows, and its percentile interval over rows drawn with replacement.

    Draws in which the statistic is nan, as a correlation of equals, are left out.
    """
    arrays = [np.asarray(column, dtype=float) for column in columns]
    if len({len(array) for array in arrays}) != 1 or not len(arrays[0]):
        raise ValueError(f"the columns must be of one length, got {[len(array) for array in arrays]}")
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        rows = draw.integers(len(arrays[0]), size=len(arrays[0]))
        found.append(statistic(*(array[rows] for array in arrays)))
    kept = [value for value in found if not np.isnan(value)]
    low, high = np.quantile(kept, [(1 - level) / 2, (1 + level) / 2]) if kept else (np.nan, np.nan)
    return Interval(statistic(*arrays), float(low), float(high))


def sign_flips(differences: Sequence[float] | Floats) -> float:
    """Two-sided p-value of paired differences, if neither of the two were better: then each sign might be the other.

    Exact: the share of all 2^n ways to choose signs whose sum lies as far from zero; no distribution is assumed.
    """
    values = np.asarray(differences, dtype=float)
    if not 1 <= len(values) <= MOST_FLIPS:
        raise ValueError(f"there must be 1 to {MOST_FLIPS} differences, got {len(values)}")
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums + value, sums - value))
    least = abs(values.sum()) - ROUNDING * np.abs(values).sum()
    return float((np.abs(sums) >= least).mean())


def exchanges(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float:
    """Two-sided p-value of two groups' means, if neither were better: then each value might be of the other group.

    Exact: the share of all divisions into groups of these sizes whose means lie as far apart.
    """
    if not len(first) or not len(second) or len(first) + len(second) > 20:
        raise ValueError(f"there must be values in both groups, 20 at most, got {len(first)} and {len(second)}")
    values = np.concatenate([np.asarray(first, dtype=float), np.asarray(second, dtype=float)])
    chosen = np.array(list(combinations(range(len(values)), len(first))))
    sums = values[chosen].sum(axis=1)
    apart = np.abs(sums / len(first) - (values.sum() - sums) / len(second))
    least = apart[0] - ROUNDING * np.abs(values).max()  # the first division is the one that was seen
    return float((apart >= least).mean())


class Spread(NamedTuple):
    """How far values of one group lie apart, pooled over groups."""

    deviation: float
    freedom: int  # values less groups


def seed_spread(groups: Iterable[Sequence[float]]) -> Spread:
    """The standard deviation between seeds: each group holds one policy's values. Groups of one say nothing."""
    squares, freedom = 0.0, 0
    for group in groups:
        values = np.asarray(group, dtype=float)
        if len(values) > 1:
            squares += float(((values - values.mean()) ** 2).sum())
            freedom += len(values) - 1
    if not freedom:
        raise ValueError("no policy has two seeds or more: the spread between seeds is unknown")
    return Spread(float(np.sqrt(squares / freedom)), freedom)


class Band(NamedTuple):
    """The best value so far after each trial, and where it may well have been."""

    best: Floats  # (N,)
    low: Floats
    high: Floats


def best_so_far(
    values: Sequence[float] | Floats, *, block: int, draws: int = 500, seed: int = 0, level: float = 0.9
) -> Band:
    """The running maximum of a search, and its band over searches that might as well have happened.

    A proposer that learns makes its trials in blocks, one for each update; within a block they are independent draws of
    one distribution. So a search that might have happened has each block's trials drawn again, with replacement. That
    leaves out what another course of learning would have changed: only searches with other seeds show that. Nor can
    such a search find what was not found: the best lies at the upper edge of its band.
    """
    values = np.asarray(values, dtype=float)
    if not len(values) or block < 1:
        raise ValueError(f"there must be trials and a block of at least one, got {len(values)} and {block}")
    starts = np.arange(len(values)) // block * block
    sizes = np.minimum(starts + block, len(values)) - starts
    draw = np.random.default_rng(seed)
    places = starts + (draw.random((draws, len(values))) * sizes).astype(int)  # (draws, N)
    runs = np.maximum.accumulate(values[places], axis=1)
    low, high = np.quantile(runs, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Band(np.maximum.accumulate(values), low, high)
