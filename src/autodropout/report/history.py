"""A study's trials as arrays: what curves, tables and the report are computed from. One read, whatever the size."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autodropout.search.reading import Reader
from autodropout.search.records import StudyInfo
from autodropout.search.states import State

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

RATE_SECONDS = 600.0
"""How far back the present rate looks."""


@dataclass(frozen=True, slots=True)
class History:
    """All trials of a study, by number."""

    info: StudyInfo
    states: tuple[State, ...]
    tokens: npt.NDArray[np.uint8]  # (trials, positions)
    values: Floats  # NaN: no score
    stopped: Bools
    failed: Bools  # the last attempt failed, or the child diverged
    started: Floats  # seconds since 1970; NaN: not yet
    finished: Floats

    def __len__(self) -> int:
        return len(self.states)

    def count(self, *states: State) -> int:
        return sum(state in states for state in self.states)

    @property
    def scored(self) -> Ints:
        """The numbers of scored trials, in the order in which they finished."""
        numbers = np.flatnonzero(~np.isnan(self.values))
        return numbers[np.lexsort((numbers, self.finished[numbers]))]

    @property
    def own(self) -> Bools:
        """Which trials have a score of their own: neither stopped early nor diverged."""
        own: Bools = ~np.isnan(self.values) & ~self.stopped & ~self.failed
        return own

    def best_so_far(self) -> Floats:
        """After each scored trial, the best score by then; NaN as long as there is none."""
        order = self.scored
        best: Floats = np.maximum.accumulate(np.where(self.own[order], self.values[order], -np.inf))
        return np.where(np.isneginf(best), np.nan, best)

    def per_minute(self) -> float | None:
        """Scored trials a minute, over the last ten minutes in which there were any; None before the first."""
        order = self.scored
        if not len(order):
            return None
        last = self.finished[order[-1]]
        first = max(last - RATE_SECONDS, float(np.nanmin(self.started[order], initial=last)))
        recent = np.count_nonzero(self.finished[order] >= first)
        return None if last <= first else 60.0 * recent / (last - first)


def read_history(study: Reader) -> History:
    """The present state of a study; a driver may go on writing meanwhile."""
    names = ["state", "tokens", "value", "stopped", "failure", "started", "finished"]
    columns = study.columns(names)
    positions = len(study.info.space.tokens)
    tokens = np.frombuffer(b"".join(map(bytes, columns["tokens"])), dtype=np.uint8).reshape(-1, positions)
    values = np.array([np.nan if value is None else value for value in columns["value"]], dtype=np.float64)
    return History(
        info=study.info,
        states=tuple(columns["state"]),
        tokens=tokens,
        values=values,
        stopped=np.array(columns["stopped"], dtype=np.bool_),
        failed=np.array([failure is not None for failure in columns["failure"]], dtype=np.bool_),
        started=_seconds(columns["started"]),
        finished=_seconds(columns["finished"]),
    )


def _seconds(times: list[object]) -> Floats:
    return np.array([np.nan if time is None else time.timestamp() for time in times], dtype=np.float64)  # type: ignore[attr-defined]
