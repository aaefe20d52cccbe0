"""The loop around the steps of a training: it restores, saves, logs, shows, and stops in good order.

    with Loop(run, steps, {"model": model, "optimizer": optimizer, "schedule": schedule}, config) as loop:
        for step in loop:
            ...                                         # one optimizer step
            loop.add(train_loss=loss.detach())
            if loop.due(every=1000) and loop.evaluated(accuracy(model, validation)):
                best.keep()

Killed at any instant and started again with the same arguments, a training ends with the weights and the log, to the
bit, of one that was never interrupted, on the same device: a checkpoint holds all that the later steps depend on,
torch's generators included, and is written between two steps. (On a GPU this takes `Run(deterministic=True)`, as any
repetition does.)
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from autodropout.training.checkpoint import Checkpoints
from autodropout.training.display import Display, progress_display
from autodropout.training.distributed import host_group, mixed, total, world
from autodropout.training.interrupts import Interrupts, raise_for
from autodropout.training.log import Evaluation, Log
from autodropout.training.resume import (
    State,
    Stateful,
    from_rank_0,
    gathered,
    generators,
    load_states,
    refuse_another,
    set_generators,
    states,
)
from autodropout.training.run import Run

log = logging.getLogger("autodropout")


class Loop:
    """Iterates over the indices of the steps that are left to do.

    Args:
        run: where and how.
        steps: of the whole training.
        state: all that a step changes, by name; loaded here, in place, where `run.folder` has a checkpoint. Equal on
            all ranks. torch's own generators need not be named.
        config: JSON data that identifies the experiment; the checkpoint of another is refused.
        per_rank: state that differs between the ranks.

    Raises:
        CheckpointError: the folder has checkpoints, and they are damaged or those of another experiment.
        BlockingIOError: another process is training in the folder.
    """

    def __init__(
        self, run: Run, steps: int, state: State, config: Mapping[str, Any], per_rank: State | None = None
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        if run.report is not None and world().size > 1:
            raise ValueError(f"a training that reports to a search is one process, here are {world().size} ranks")
        self.run, self.steps, self.step = run, steps, 0
        self.history: list[Evaluation] = []
        self._state, self._per_rank = state, per_rank or {}
        self._config = json.loads(json.dumps({"steps": steps, **config}, allow_nan=False))
        self._sums: dict[str, Tensor] = {}  # since the last evaluation; each rank has its own
        self._counts: dict[str, int] = {}
        self._before, self._began = 0.0, time.monotonic()  # seconds of training before this process; when it began
        self._generators: Mapping[str, Any] | None = None
        self._group = host_group()
        self._interrupts = Interrupts(self._group)
        self._log: Log | None = None
        self._display: Display | None = None
        self._open = ExitStack()
        self._inside = False
        self._checkpoints: Checkpoints | None = None
        if run.folder is not None and world().writes:
            self._checkpoints = self._open.enter_context(Checkpoints(run.folder))
        try:
            self._restore()
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._open.close()
            raise
        return self

    def _begin(self) -> None:
        run, enter = self.run, self._open.enter_context
        if run.folder is not None and world().writes:
            self._log = enter(Log(run.folder, self.history, self.step, tensorboard=run.tensorboard))
        if run.show and world().writes:
            self._display = enter(progress_display(self.step, self.steps, self.history))
        if run.folder is not None:  # without one nothing could be saved, hence there is no reason to go on
            enter(self._interrupts)
        enter(run.settings())
        self._inside, self._began = True, time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._before, self._inside = self._seconds(), False
        self._open.__exit__(kind, error, traceback)

    def __iter__(self) -> Iterator[int]:
        """The index of the step to do now, again and again."""
        if not self._inside:
            with self:
                yield from self
            return
        if self.run.report is not None:  # a search has a new curve for a new attempt
            for evaluation in self.history:
                self.run.report(evaluation.step, evaluation.reward)
        if self._generators is not None:  # not before: what was drawn until now shall not matter
            set_generators(self._generators, self.run.where)
            self._generators = None
        while self.step < self.steps:
            self.step += 1
            if self.run.compile and self.run.where.type == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            yield self.step - 1
            self._after_step()

    def due(self, every: int) -> bool:
        """Whether the step under way is a multiple of `every`, or the last."""
        return self.step % every == 0 or self.step == self.steps

    def add(self, **values: Tensor) -> None:
        """Losses and the like, 0-d: their mean since the last evaluation is logged with the next.

        They are added up on their device, so that nothing waits for it.
        """
        for name, value in values.items():
            value = value.detach().float()
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
            self._counts[name] = self._counts.get(name, 0) + 1

    def evaluated(self, reward: float, **metrics: float) -> bool:
        """Note what the model came to after the step under way; returns whether it is the best so far.

        On several ranks all call it, with the same numbers.

        Raises:
            FloatingPointError: the reward or a mean is not finite: the training has diverged.
        """
        means = self._take_means()
        for name, value in {**means, "reward": reward}.items():
            if not math.isfinite(value):
                raise FloatingPointError(f"{name} is {value} at step {self.step}")
        before = self.best
        evaluation = Evaluation(self.step, self._seconds(), float(reward), means | metrics)
        self.history.append(evaluation)
        if self._log is not None:
            self._log.write(evaluation)
        if self._display is not None:
            self._display.evaluated(self.step, self.history)
        if self.run.report is not None:
            self.run.report(self.step, evaluation.reward)
        return before is None or evaluation.reward > before.reward

    @property
    def last(self) -> Evaluation | None:
        """The last evaluation."""
        return self.history[-1] if self.history else None

    @property
    def best(self) -> Evaluation | None:
        """The first evaluation with the highest reward."""
        return max(self.history, key=lambda evaluation: evaluation.reward, default=None)

    @property
    def steps_per_s(self) -> float:
        """Over the whole training so far, evaluations included."""
        return self.step / seconds if (seconds := self._seconds()) else 0.0

    def _seconds(self) -> float:
        return self._before + (time.monotonic() - self._began if self._inside else 0.0)

    def _take_means(self) -> dict[str, float]:
        if not self._sums:
            return {}
        sums = total(torch.stack([value.to(self.run.where) for value in self._sums.values()])).tolist()
        counts = [self._counts[name] * world().size for name in self._sums]
        means = {name: value / count for name, value, count in zip(self._sums, sums, counts, strict=True)}
        self._sums, self._counts = {}, {}
        return means

    def _after_step(self) -> None:
        signal = self._interrupts.after_step() if self.run.folder is not None else 0
        if signal or self.step % self.run.checkpoint_every == 0 or self.step == self.steps:
            self._save()
        if self._display is not None:
            self._display.update(self.step, self.history)
        if signal:
            if world().writes:
                log.warning("stopped after step %d of %d; the same call goes on from there", self.step, self.steps)
            raise_for(signal)

    def _save(self) -> None:
        if self.run.folder is None:
            return
        own = {
            "generators": generators(self.run.where),
            "sums": self._sums,
            "counts": self._counts,
            "state": states(self._per_rank),
        }
        ranks = gathered(own, self._group)
        if self._checkpoints is not None:
            saved = {
                "config": self._config,
                "step": self.step,
                "seconds": self._seconds(),
                "history": [evaluation.to_dict() for evaluation in self.history],
                "state": states(self._state),
                "ranks": ranks,
            }
            self._checkpoints.save(self.step, saved)

    def _restore(self) -> None:
        saved = from_rank_0(self._read, self._group)
        if saved is None:
            return
        self.step, self._before = saved["step"], saved["seconds"]
        self.history = [Evaluation(**fields) for fields in saved["history"]]
        load_states(self._state, saved["state"])
        ranks, where = saved["ranks"], self.run.where
        before = {rank["generators"]["device"] for rank in ranks}
        if len(ranks) == world().size and before == {where.type}:
            own = ranks[world().rank]
            load_states(self._per_rank, own["state"])
            self._sums = {name: value.to(where) for name, value in own["sums"].items()}
            self._counts = own["counts"]
            self._generators = own["generators"]
        else:
            log.warning(
                "the checkpoint is of %d ranks on %s, this training has %d on %s: it goes on with other random numbers",
                *(len(ranks), "/".join(sorted(before)), world().size, where.type),
            )
            torch.manual_seed(mixed(torch.initial_seed(), self.step, world().rank))

    def _read(self) -> Any:
        """On rank 0, what the newest checkpoint holds."""
        saved = self._checkpoints.newest() if self._checkpoints is not None else None
        if saved is not None:
            refuse_another(saved["config"], self._config, self.run.folder)
        return saved


__all__ = ["Evaluation", "Loop", "State", "Stateful"]
