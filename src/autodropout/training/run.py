"""Where and how a training runs, what comes out of it, and what it is identified by.

A training is a frozen dataclass with the whole configuration of one experiment; a `Run` says the rest: the folder, the
device, what to show. Nothing of a `Run` changes what is computed, apart from rounding, and from crops and mixtures of
images, which compiled code draws from a generator of its own.
"""

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch._inductor import config as inductor

from autodropout.layers import Baseline
from autodropout.patterns.read_back import mend_compiler
from autodropout.spaces import Policy
from autodropout.training.distributed import local_rank, parallel, world

Regularizer = Policy | Baseline | None
Report = Callable[[int, float], None]
"""`report(step, value)`, of a search; may raise to end the training: `Ended`, where that is no mistake."""
Curve = Sequence[tuple[int, float]]
"""What was reported, as (step, value) pairs."""
P = ParamSpec("P")
T = TypeVar("T")

PRECISIONS = ("float32", "bfloat16")


class Ended(Exception):
    """Raised by a report: nobody waits for the rest of this training."""


@dataclass(frozen=True, slots=True)
class Run:
    """Where and how a training runs; none of it is part of an experiment's definition."""

    folder: Path | None = None  # checkpoints, log.jsonl, TensorBoard's files; None: nothing is written
    device: torch.device | str | None = None  # None: CUDA where there is one, else the CPU
    precision: str = "float32"  # or "bfloat16", by autocast
    compile: bool = False
    deterministic: bool = False  # the same bits again on CUDA too, at some cost in speed
    test: bool = False  # judge the final model on the test set too; never in a search
    checkpoint_every: int = 1000  # steps
    tensorboard: bool = False
    show: bool = False  # progress on stderr
    report: Report | None = None

    def __post_init__(self) -> None:
        if isinstance(self.device, str):
            try:
                torch.device(self.device)
            except RuntimeError:
                raise ValueError(
                    f"device must be one of torch's, as cpu, cuda or cuda:1, got {self.device!r}"
                ) from None
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be at least 1 step, got {self.checkpoint_every}")
        if self.tensorboard and self.folder is None:
            raise ValueError("TensorBoard needs a folder to write to")
        if self.tensorboard and importlib.util.find_spec("tensorboard") is None:
            raise ModuleNotFoundError("tensorboard is not installed; pip install 'autodropout[tensorboard]'")

    @property
    def where(self) -> torch.device:
        """The device; under torchrun each process of a machine has a GPU of its own."""
        device = torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return torch.device("cuda", local_rank()) if device == torch.device("cuda") else device

    def autocast(self) -> AbstractContextManager[None]:
        """What the forward of a step, and an evaluation, run in."""
        enabled = self.precision == "bfloat16"
        return torch.autocast(self.where.type, dtype=torch.bfloat16, enabled=enabled)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Inside, torch does as `deterministic` says: an operation that cannot give the same bits again is an error."""
        if not self.deterministic:
            yield
            return
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it
        before = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
        torch.set_deterministic_debug_mode("error")
        torch.backends.cudnn.benchmark = False  # it would choose by the clock
        try:
            with inductor.patch(deterministic=True):  # so would torch's compiler, the pieces of a sum among others
                yield
        finally:
            torch.set_deterministic_debug_mode(before[0])
            torch.backends.cudnn.benchmark = before[1]

    def wrap(self, model: nn.Module, *, fixed_shapes: bool = False) -> Callable[..., Any]:
        """What a training step calls: the model, moved to the device, in DDP where there are ranks, compiled if asked.

        Attach first. The model itself stays what is evaluated, saved and optimized. Where every step has the same
        shapes, a model compiled for a GPU that it has for itself runs as CUDA graphs: what it returns is overwritten by
        the next step, which a `Loop` announces.
        """
        wrapped = parallel(model.to(self.where), self.where)
        if not self.compile:
            return wrapped
        mend_compiler()
        return torch.compile(wrapped, mode=self._mode if fixed_shapes else None)

    @property
    def whole(self) -> bool:
        """Whether all that a step computes from its batch is compiled as one; ranks compile their models alone."""
        return self.compile and world().size == 1

    def compiled(self, compute: Callable[P, T]) -> Callable[P, T]:
        """What a step computes from its batch, of fixed shapes, the bare model within; as one function if asked.

        On a GPU its forward is then one CUDA graph and its backward another, whatever happens in them; results are
        overwritten as those of `wrap`.
        """
        if not self.whole:
            return compute
        mend_compiler()
        return torch.compile(compute, mode=self._mode, dynamic=False)

    @property
    def _mode(self) -> str | None:
        captured = self.where.type == "cuda" and world().size == 1  # what ranks exchange is not
        return "reduce-overhead" if captured else None


@dataclass(frozen=True, slots=True)
class Scores:
    """What a training came to."""

    reward: float  # on validation data, higher is better: what a search maximizes
    metrics: Mapping[str, float]


def identity(training: Any, regularizer: Regularizer, rate: float, seed: int) -> dict[str, Any]:
    """An experiment as JSON data: all that its result depends on.

    `training` is a dataclass. A path in it is written as null, since it does not matter where data lie; nor does it
    matter where a policy comes from.
    """
    return {
        "training": _plain(training, "training"),
        "regularizer": _plain_regularizer(regularizer),
        "rate": rate,
        "seed": seed,
    }


def _plain_regularizer(regularizer: Regularizer) -> Any:
    if regularizer is None or isinstance(regularizer, Baseline):
        return _plain(regularizer, "regularizer")
    return regularizer.model_dump(mode="json", exclude={"provenance"})


def _plain(value: Any, place: str) -> Any:
    """JSON data; a ValueError says where there is something else."""
    if value is None or isinstance(value, Path):
        return None
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{place}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _plain({"kind": type(value).__name__, **fields}, place)
    raise ValueError(f"{place} is {value!r}, which cannot be written as JSON")
