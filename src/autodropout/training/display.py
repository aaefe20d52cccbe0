"""The progress of a training on stderr: a live bar in a terminal, plain lines elsewhere.

step 3000/8000, 41.3 steps/s, about 2 min left, score 0.912 (best 0.915 at 2800), train_loss 0.103  ▁▄▆▇█▇
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TaskProgressColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from autodropout.training.log import Evaluation

EVERY = 60.0  # seconds between two plain lines where nothing is evaluated
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 32  # characters of a curve

Clock = Callable[[], float]


class Display(Protocol):
    """Where a training stands, for its user."""

    def update(self, step: int, history: Sequence[Evaluation]) -> None:
        """After each step; it must be cheap."""
        ...

    def evaluated(self, step: int, history: Sequence[Evaluation]) -> None:
        """After each evaluation."""
        ...


@contextmanager
def progress_display(
    step: int, steps: int, history: Sequence[Evaluation], console: Console | None = None
) -> Iterator[Display]:
    """A display on stderr, of a training that begins or goes on after `step`, for as long as the block runs."""
    console = console or Console(stderr=True)
    words = Words(step, steps)
    if step:
        console.print(f"going on after step {step} of {steps}", highlight=False)
    if not console.is_terminal:
        yield PlainDisplay(words, console)
        return
    display = LiveDisplay(words, console, step, history)
    with display.live:
        yield display


class Words:
    """A training in a line of text."""

    def __init__(self, first: int, steps: int, clock: Clock = time.monotonic) -> None:
        self.steps = steps
        self._first, self._clock, self._began = first, clock, clock()

    def __call__(self, step: int, history: Sequence[Evaluation]) -> str:
        parts = [f"step {step}/{self.steps}", *self._speed(step), *_numbers(history)]
        return ", ".join(parts) + ("  " + curve([evaluation.reward for evaluation in history])).rstrip()

    def _speed(self, step: int) -> list[str]:
        elapsed = self._clock() - self._began
        if step == self._first or elapsed <= 0.0:
            return []
        speed = (step - self._first) / elapsed
        left = [f"about {duration((self.steps - step) / speed)} left"] if step < self.steps else []
        return [f"{speed:.3g} steps/s", *left]


class PlainDisplay:
    """Lines, for a log: one at each evaluation, and one a minute."""

    def __init__(self, words: Words, console: Console, clock: Clock = time.monotonic) -> None:
        self._words, self._console, self._clock = words, console, clock
        self._next = clock() + EVERY

    def update(self, step: int, history: Sequence[Evaluation]) -> None:
        if self._clock() >= self._next:
            self.evaluated(step, history)

    def evaluated(self, step: int, history: Sequence[Evaluation]) -> None:
        self._console.print(self._words(step, history), highlight=False, markup=False, soft_wrap=True)
        self._next = self._clock() + EVERY


class LiveDisplay:
    """A bar, and the same words under it, drawn four times a second."""

    def __init__(self, words: Words, console: Console, step: int, history: Sequence[Evaluation]) -> None:
        self._words, self._step, self._history = words, step, history
        self._bar = Bar(BarColumn(bar_width=None), TaskProgressColumn(), TimeElapsedColumn(), console=console)
        self._task = self._bar.add_task("", total=words.steps, completed=step)
        self.live = Live(get_renderable=self._render, console=console, refresh_per_second=4)

    def update(self, step: int, history: Sequence[Evaluation]) -> None:
        self._step, self._history = step, history

    evaluated = update

    def _render(self) -> Group:
        self._bar.update(self._task, completed=self._step)
        return Group(self._bar, Text(self._words(self._step, self._history), style="dim"))


def duration(seconds: float) -> str:
    """A guess, in words that do not pretend to more."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def curve(values: Sequence[float], width: int = WIDTH) -> str:
    """Numbers as bars between the least and the greatest; where there are too many, the last of each stretch."""
    count = min(width, len(values))
    shown = [values[(number + 1) * len(values) // count - 1] for number in range(count)]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    span = high - low or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in shown)


def _numbers(history: Sequence[Evaluation]) -> list[str]:
    if not history:
        return []
    last, best = history[-1], max(history, key=lambda evaluation: evaluation.reward)
    score = f"score {last.reward:.4g} (best {best.reward:.4g} at {best.step})"
    return [score, *(f"{name} {value:.4g}" for name, value in last.metrics.items())]
