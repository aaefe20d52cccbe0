"""What a training writes down at each evaluation: a line of JSON, and TensorBoard's files where asked.

    {"step": 1000, "time": 61.2, "reward": 0.93, "metrics": {"train_loss": 0.21, "validation_accuracy": 0.93}}

`time` is in seconds of training, over all resumes. The checkpoint holds the same evaluations: after a resume the file
is written anew from there, so that it ends where the training goes on.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autodropout.spaces.atomic import write_atomically

FILE = "log.jsonl"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One look at the model in training."""

    step: int  # steps done by then
    time: float  # seconds of training by then
    reward: float
    metrics: Mapping[str, float]

    def to_line(self) -> str:
        """One line of JSON; a metric that is not finite, which JSON cannot say, is null."""
        metrics = {name: value if math.isfinite(value) else None for name, value in self.metrics.items()}
        return json.dumps(self.to_dict() | {"metrics": metrics}, allow_nan=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        return {"step": self.step, "time": self.time, "reward": self.reward, "metrics": dict(self.metrics)}


class Log:
    """The log of a training in its folder, which goes on after `step` with the evaluations of `history`."""

    def __init__(self, folder: Path, history: Sequence[Evaluation], step: int, *, tensorboard: bool) -> None:
        self._path = folder / FILE
        write_atomically(self._path, "".join(evaluation.to_line() for evaluation in history).encode())
        self._board: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, evaluation: Evaluation) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(evaluation.to_line())
        if self._board is not None:
            for name, value in {"reward": evaluation.reward, **evaluation.metrics}.items():
                self._board.add_scalar(name, value, evaluation.step)
            self._board.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._board is not None:
            self._board.close()
