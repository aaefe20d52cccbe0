"""Signals while a search runs: what Ctrl-C, SIGTERM and a closed terminal mean to its driver.

They set what the driver looks at between transactions; an exception raised inside of one would take the connection with
it, and the trials that shall be given back.
"""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from autodropout.search.driver import Driver

log = logging.getLogger("autodropout")

_follows: ContextVar[tuple[str, str]] = ContextVar(
    "follows", default=("ad.search returns the study as it is and the program goes on", "raises KeyboardInterrupt")
)


@contextmanager
def followed_by(first: str, second: str) -> Iterator[None]:
    """Inside, an interrupt says that this follows the first one, and what a second one does: for a caller of
    `ad.search` behind which stands no script of its user's."""
    before = _follows.set((first, second))
    try:
        yield
    finally:
        _follows.reset(before)


@contextmanager
def interruptible(driver: Driver) -> Iterator[None]:
    """The first Ctrl-C lets the children under way finish, the second raises KeyboardInterrupt; SIGTERM, and the
    SIGHUP of a terminal that is closed, raise SystemExit. A third Ctrl-C does not wait for the driver.

    So the driver can give its trials back and end its workers, where the signal alone would end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, again)
        driver.stop()
        progress, (then, again_does) = driver.progress, _follows.get()
        log.warning(
            "Interrupted: waiting for %d %s under way; then %s, with %d of %d trials so far. Ctrl-C again %s",
            progress.running,
            "child" if progress.running == 1 else "children",
            then,
            progress.scored,
            progress.wanted,
            again_does,
        )

    def again(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        driver.end(KeyboardInterrupt())

    def terminated(number: int, frame: FrameType | None) -> None:
        driver.end(SystemExit(128 + number))  # as a shell reports it

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGINT] not in (None, signal.SIG_IGN):  # in the background Ctrl-C is for somebody else
        signal.signal(signal.SIGINT, interrupted)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if before[number] is signal.SIG_DFL:  # not under nohup, nor where the program has a handler of its own
            signal.signal(number, terminated)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
