"""A progress bar on stderr for what takes long, where stderr is a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bar(what: str, total: int | None, done: int = 0, *, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with how much has been done since the last call.

    Args:
        what: is under way.
        total: how much there is to do, where that is known.
        done: how much was done before.
        in_bytes: count in bytes rather than in pieces.
    """
    console = Console(stderr=True)
    counted = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), counted, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total, completed=done)
        yield lambda more: progress.advance(task, more)
