"""The progress of a search: a live bar in a terminal, a plain line now and then elsewhere.

with progress_display("digits") as display:
    ad.search(space, child, 64, watch=display.update)
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from autodropout.search.driver import Progress

EVERY = 10.0  # seconds between two plain lines


class Display(Protocol):
    """Where a search stands, for its user."""

    def update(self, progress: Progress) -> None: ...


def words(progress: Progress) -> str:
    """All of it but the bar, in one line."""
    parts = [
        "no score yet" if progress.best is None else f"best {progress.best:.4g}",
        f"{progress.running} running",
        f"{progress.waiting} waiting",
        f"{progress.failed} failed",
        f"{progress.retried} retried" if progress.retried else "",
        "1 update" if progress.updates == 1 else f"{progress.updates} updates",
        f"entropy {progress.metrics['entropy']:.1f}" if "entropy" in progress.metrics else "",
    ]
    return ", ".join(filter(None, parts))


@contextmanager
def progress_display(name: str, console: Console) -> Iterator[Display]:
    """A display for as long as the block runs."""
    if not console.is_terminal:
        yield PlainDisplay(name, console)
        return
    display = LiveDisplay(name, console)
    with display.live:
        yield display


class PlainDisplay:
    """Lines, for a log: the first state, then one every ten seconds, then the last."""

    def __init__(self, name: str, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._console, self._clock = name, console, clock
        self._next: float | None = None

    def update(self, progress: Progress) -> None:
        now = self._clock()
        if self._next is None or now >= self._next or progress.scored >= progress.wanted:
            more = f"{progress.scored} trials, {progress.wanted} were asked for"
            there = more if progress.scored > progress.wanted else f"{progress.scored}/{progress.wanted} trials"
            line = f"{self._name}: {there}, {words(progress)}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
            self._next = now + EVERY


class _Remaining(ProgressColumn):
    """How long it will take at the present speed, in words that say that it is a guess."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining
        if task.finished or left is None:
            return Text("")
        return Text(f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left", style="dim")


class LiveDisplay:
    """A bar, and a line of numbers under it."""

    def __init__(self, name: str, console: Console) -> None:
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _Remaining(),
            console=console,
        )
        self._task = self._bar.add_task(name, total=None)
        self._words = "starting"
        self.live = Live(get_renderable=self._render, console=console, refresh_per_second=4)

    def update(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.scored, total=max(progress.scored, progress.wanted))
        self._words = words(progress)

    def _render(self) -> Group:
        return Group(self._bar, Text(self._words, style="dim"))
