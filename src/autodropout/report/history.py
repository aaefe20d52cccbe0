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


@dataclass(frozen=True, slots=True)
class History:
    """All trials of a study, by number."""

    info: StudyInfo
    states: tuple[State, ...]
    tokens: npt.NDArray[np.uint8]  # (trials, positions)
    values: Floats  # NaN: no score
    stopped: Bools
    failed: Bools  # the last attempt failed, or the child diverged
    finished: Floats  # seconds since 1970; NaN: not yet

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


def read_history(study: Reader) -> History:
    """The present state of a study; a driver may go on writing meanwhile."""
    names = ["state", "tokens", "value", "stopped", "failure", "finished"]
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
        finished=np.array([np.nan if time is None else time.timestamp() for time in columns["finished"]]),
    )
