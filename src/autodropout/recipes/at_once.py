"""Several trainings in one crowd on one device, each judged as `fit` would judge it alone."""

import math
from collections.abc import Sequence
from contextlib import ExitStack

from autodropout.recipes.recipe import CrowdTraining
from autodropout.training.children import into
from autodropout.training.display import Display, progress_display
from autodropout.training.log import Evaluation
from autodropout.training.run import Regularizer, Report, Run, Scores


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
    curves: list[list[tuple[int, float]]] = [[] for _ in regularizers]
    test_curves: list[list[tuple[int, float]]] = [[] for _ in regularizers]
    bare = Run(
        device=run.device,
        precision=run.precision,
        compile=run.compile or run.where.type == "cuda",
        deterministic=run.deterministic,
    )
    mistakes: list[Exception] = []
    with ExitStack() as closing:
        reports = [into(curve) for curve in curves]
        if run.show:
            shown = _Shown(closing.enter_context(progress_display(0, training.steps, ())), len(curves))
            reports = [_noting(shown.after(report), mistakes) for report in reports]
        test_reports = [into(curve) for curve in test_curves] if run.test else None
        rewards = training.fit_many(regularizers, rates, seeds, bare, reports, test_reports)
    if mistakes:  # those children have ended, but they have not diverged
        raise mistakes[0]
    found: list[Scores | None] = []
    for reward, curve, test_curve in zip(rewards, curves, test_curves, strict=True):
        if math.isnan(reward):
            found.append(None)
            continue
        metrics = training.metrics("validation", reward)
        if run.test:
            metrics |= training.metrics("test", dict(test_curve)[training.result_step(curve)])
        found.append(Scores(reward, metrics))
    return found


def _noting(report: Report, mistakes: list[Exception]) -> Report:
    """The same report; what it raises, which ends its child, is kept."""

    def noted(step: int, value: float) -> None:
        try:
            report(step, value)
        except Exception as error:
            mistakes.append(error)
            raise

    return noted


class _Shown:
    """All children as one, by the mean of their rewards."""

    def __init__(self, display: Display, children: int) -> None:
        self._display, self._children = display, children
        self._values: dict[int, list[float]] = {}  # by step

    def after(self, report: Report) -> Report:
        """A child's report, which is then shown, too."""

        def reported(step: int, value: float) -> None:
            report(step, value)
            self._show(step, value)

        return reported

    def _show(self, step: int, value: float) -> None:
        if step not in self._values and self._values:  # those that diverged at the last one say nothing from now on
            self._children = len(self._values[max(self._values)])
        self._values.setdefault(step, []).append(value)
        history = [Evaluation(step, 0.0, sum(of) / len(of), {}) for step, of in self._values.items()]
        if len(self._values[step]) == self._children:
            self._display.evaluated(step, history)
        else:
            self._display.update(step, history)
