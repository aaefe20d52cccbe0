"""Early stopping by asynchronous successive halving (Li et al. 2020): stop children whose curve is hopeless.

Rungs lie at `first`, `first * factor`, `first * factor**2`, ... steps. A child that comes to a rung is compared with
all that were there before it, and goes on if it is among the best `1/factor` of them; equals go on together.

What a stopped child scores, so that the controller is not misled: the value of its last report plus the median gain
that finished children made from that rung to their end, but no more than the median final score. Its last report alone
would punish it for having been stopped; no score at all would hide from the controller what it should avoid. Hence
nobody is stopped before `factor` children have finished, and a stopped child is never a study's best.
"""

import threading
from bisect import bisect_left, bisect_right, insort

from autodropout.search.records import Curve


class Halving:
    """The judge of a study with early stopping. Thread-safe: engines ask from their threads."""

    def __init__(self, first: int, factor: int = 3) -> None:
        if first < 1:
            raise ValueError(f"the first rung must be at step 1 or later, got {first}")
        if factor < 2:
            raise ValueError(f"the factor must be at least 2, got {factor}")
        self.first = first
        self.factor = factor
        self._lock = threading.Lock()
        self._rungs: list[list[float]] = []  # for each rung the values seen there, sorted
        self._reached: dict[int, dict[int, float]] = {}  # running trials: their values at the rungs so far
        self._gains: list[list[float]] = []  # for each rung, final score minus the value there, sorted
        self._finals: list[float] = []  # sorted

    def __call__(self, number: int, step: int, value: float) -> bool:
        """Whether the trial should stop, having reported `value` at `step`."""
        with self._lock:
            rung = self._rung(step)
            if rung is None or rung <= max(self._reached.get(number, ()), default=-1):
                return False
            self._reached.setdefault(number, {})[rung] = value
            seen = self._at(self._rungs, rung)
            better = len(seen) - bisect_right(seen, value)
            insort(seen, value)
            return len(self._finals) >= self.factor and better >= max(1, len(seen) // self.factor)

    def finished(self, number: int, curve: Curve, value: float) -> None:
        """A child trained to its end: its gains from each rung are what stopped ones are credited with."""
        with self._lock:
            self._reached.pop(number, None)
            insort(self._finals, value)
            for rung, there in self._values(curve).items():
                insort(self._at(self._gains, rung), value - there)

    def lost(self, number: int) -> None:
        """A child died. What it reported is forgotten, as it is when a study is resumed: when it is tried again it is
        judged at each rung as if for the first time."""
        with self._lock:
            for rung, value in self._reached.pop(number, {}).items():
                seen = self._rungs[rung]
                del seen[bisect_left(seen, value)]

    def resumed(self, curve: Curve, value: float | None) -> None:
        """A trial of an earlier run of the study; `value` is None when it was stopped, or diverged."""
        with self._lock:
            for rung, there in self._values(curve).items():
                insort(self._at(self._rungs, rung), there)
        if value is not None:
            self.finished(-1, curve, value)

    def reward(self, number: int, curve: Curve) -> float:
        """What a stopped child scores."""
        with self._lock:
            self._reached.pop(number, None)
            step, value = curve[-1]
            rung = self._rung(step)
            gains = [] if rung is None else self._at(self._gains, rung)
            gain = _median(gains) if gains else 0.0
            return min(value + gain, _median(self._finals))

    def _rung(self, step: int) -> int | None:
        """The highest rung at or below a step."""
        if step < self.first:
            return None
        rung, limit = 0, self.first
        while limit * self.factor <= step:
            rung, limit = rung + 1, limit * self.factor
        return rung

    def _values(self, curve: Curve) -> dict[int, float]:
        """A curve's first value at or after each rung it came to."""
        found: dict[int, float] = {}
        for step, value in curve:
            rung = self._rung(step)
            if rung is not None:
                found.setdefault(rung, value)
        return found

    @staticmethod
    def _at(lists: list[list[float]], rung: int) -> list[float]:
        while len(lists) <= rung:
            lists.append([])
        return lists[rung]


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
