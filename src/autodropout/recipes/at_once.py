"""Several trainings in one crowd on one device, each judged as `fit` would judge it alone."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from autodropout.recipes.recipe import CrowdTraining
from autodropout.training.display import Display, progress_display
from autodropout.training.log import Evaluation
from autodropout.training.run import Regularizer, Run, Scores


def fit_at_once(
    training: CrowdTraining,
    regularizers: Sequence[Regularizer],
    rates: Sequence[float],
    seeds: Sequence[int],
    run: Run,
) -> list[Scores | None]:
    """Their scores; None for one that diverged. On a GPU it is compiled: step by step the host could not keep up.

    Nothing is written: of `run` only where and how to compute counts, whether to test, and whether to show progress.
    """
    heard = [_Heard() for _ in regularizers]
    tested = [_Heard() for _ in regularizers]
    on_gpu = run.where.type == "cuda"
    bare = Run(
        device=run.device,
        precision=run.precision,
        compile=run.compile or on_gpu,
        deterministic=run.deterministic,
    )
    with ExitStack() as closing:
        reports = [child.report for child in heard]
        if run.show:
            shown = _Shown(closing.enter_context(progress_display(0, training.steps, ())), len(heard))
            reports = [partial(shown.report, child) for child in heard]
        test_reports = [child.report for child in tested] if run.test else None
        rewards = training.fit_many(regularizers, rates, seeds, bare, reports, test_reports)
    found: list[Scores | None] = []
    for reward, curve, test_curve in zip(rewards, heard, tested, strict=True):
        if reward != reward:
            found.append(None)
            continue
        metrics = training.metrics("validation", reward)
        if run.test:
            metrics |= training.metrics("test", dict(test_curve.curve)[training.result_step(curve.curve)])
        found.append(Scores(reward, metrics))
    return found


class _Heard:
    """What one child reports."""

    def __init__(self) -> None:
        self.curve: list[tuple[int, float]] = []

    def report(self, step: int, value: float) -> None:
        self.curve.append((step, value))


class _Shown:
    """All children as one, by the mean of their rewards."""

    def __init__(self, display: Display, children: int) -> None:
        self._display, self._children = display, children
        self._values: dict[int, list[float]] = {}  # by step

    def report(self, child: _Heard, step: int, value: float) -> None:
        child.report(step, value)
        if step not in self._values and self._values:  # those that diverged at the last one say nothing from now on
            self._children = len(self._values[max(self._values)])
        self._values.setdefault(step, []).append(value)
        history = [Evaluation(step, 0.0, sum(of) / len(of), {}) for step, of in self._values.items()]
        if len(self._values[step]) == self._children:
            self._display.evaluated(step, history)
        else:
            self._display.update(step, history)
