"""A seat on a node of a Ray cluster, as an actor: the engine `ray` has one for each child that can run at a time.

The child does not run in the actor, but in a process on its seat, as on the engine `local`: so whatever it does to its
process is told in the same words, a process that is spoiled is replaced without a new actor, and a deadline ends all
that the child has started. The actor imports no torch.
"""

import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import wait

from autodropout.search.jobs import Answer, Task
from autodropout.search.seat import TICK_SECONDS, Question, Seat


class Host:
    """Two threads: one is in `life` for ever, the other in one of the rest. When the actor ends, so does the worker."""

    def __init__(self, child: bytes, deadline: float | None, judged: bool, path: Sequence[str], gpus: bool) -> None:
        """`path` is the driver's `sys.path`: what of it is on this node too, modules may be imported from."""
        if not gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides from an actor what is others', if it has any itself
        sys.path += [folder for folder in path if folder not in sys.path and os.path.exists(folder)]
        self._child = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the actor
        self._child.write(child)
        self._child.flush()
        self._seat = Seat(self._child.fileno(), deadline, judged)

    def where(self) -> str:
        """The node's name: answers once the actor runs."""
        return platform.node()

    def life(self) -> None:
        """Never answers: Ray tells that the actor is dead to those who wait for it."""
        threading.Event().wait()

    def run(self, job: Sequence[Task]) -> list[Answer] | Question:
        """Start a job. Its answers, or the first question: `tell` what the judge says, and hear what comes next."""
        while not self._seat.free:  # the last worker's process is still ending
            time.sleep(TICK_SECONDS)
            self._seat.check()
        self._seat.take(job)
        return self._next()

    def tell(self, stop: bool) -> list[Answer] | Question:
        self._seat.tell(stop)
        return self._next()

    def _next(self) -> list[Answer] | Question:
        while True:
            wait([] if self._seat.connection is None else [self._seat.connection], TICK_SECONDS)
            said: list[Answer] | Question | None = self._seat.check()  # also when a child never stops talking
            if said is None and self._seat.connection is not None and self._seat.connection.poll():
                said = self._seat.hear()
            if said is not None:
                return said
