"""Whether two samples may be of one distribution."""

import statistics
from collections.abc import Sequence

LIMIT = 4.14
"""Of Student's t for two samples of eight: beyond it lies 0.1% where they are of one distribution."""


def student_t(first: Sequence[float], second: Sequence[float]) -> float:
    """The difference of two means in standard errors, without a sign."""
    error = (statistics.variance(first) / len(first) + statistics.variance(second) / len(second)) ** 0.5
    return abs(statistics.fmean(first) - statistics.fmean(second)) / max(error, 1e-12)
