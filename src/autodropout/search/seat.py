"""A seat for one worker: its process, started when a job comes, replaced when it dies, ended at its deadline.

Both engines put workers on seats: `local` in the driver itself, `ray` in an actor on a node of a cluster. What runs in
the process, and what is said between the two, is in `worker_process`.
"""

import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import IO

import cloudpickle

from autodropout.search.jobs import Answer, Child, Task
from autodropout.search.records import Failure
from autodropout.search.states import FailureKind
from autodropout.search.worker import takes
from autodropout.search.worker_process import READY, LastWords

START_SECONDS = 300.0
"""How long a worker may take until it is ready for its first job: it loads the child, and torch with it."""

END_SECONDS = 10.0
"""How long a worker that leaves, or has closed its socket, may take to end before it is killed."""

TICK_SECONDS = 0.25
"""How often deadlines are looked at; and deaths, which a socket does not tell while a fork of the worker holds it."""

SECRETS = ("AUTODROPOUT_STORAGE", "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")
"""Variables that workers do not inherit: they hold a ledger's password, or say where one is."""

STREAMS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""So many streams of a worker run at the same time on a GPU, where CUDA's own 8 would let children of a crowd wait."""

Question = tuple[int, int, float]
"""(trial, step, value): a child reports, and waits to hear whether to stop."""


class Seat:
    """A place for one worker. `child` is a file to load it from; each job has `deadline` seconds per trial; of several
    GPUs the worker sees `gpu` alone, if that is given.

    Not thread-safe. Wait for `connection`, then `hear`; and `check` every `TICK_SECONDS`. None of these waits for a
    process to end, because whoever calls them may have other seats: a process that is ending has no `connection`, and
    the seat is not `free`, until `check` has seen it gone.
    """

    def __init__(self, child: int, deadline: float | None, judged: bool, gpu: str | None = None) -> None:
        self._child, self._deadline, self._judged, self._gpu = child, deadline, judged, gpu
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False  # to take a job from its socket
        self._limit: float | None = None  # when the job, or the start, has taken too long
        self.connection: Connection | None = None
        self.job: Sequence[Task] | None = None

    @property
    def free(self) -> bool:
        """Whether it can take a job: it has none, nor a process that is ending and may still hold a GPU's memory."""
        return self.job is None and (self._process is None or self.connection is not None)

    def take(self, job: Sequence[Task]) -> None:
        """Start a job, in a new process where there is none."""
        assert self.free
        self.job = job
        if self._process is not None and self._process.poll() is not None:
            self._kill()  # it died while it had nothing to do
        if self._process is None:
            self._start()
        elif self._ready:
            self._send()

    def hear(self) -> list[Answer] | Question | None:
        """The worker has something to say, or has closed its end: the answers to the job, or a question to `tell`."""
        assert self.connection is not None
        try:
            message = self.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            self._part(END_SECONDS)  # a socket closes a little before its process ends, and how it ended is to be told
            return None
        if message == READY:
            self._ready, self._limit = True, None
            if self.job is not None:
                self._send()
            return None
        if isinstance(message, tuple):
            number, step, value = message
            return (number, step, value)
        self.job, self._limit = None, None
        if isinstance(message, LastWords):
            self._part(END_SECONDS)
            return message.answers
        return list(message)

    def tell(self, stop: bool) -> None:
        """The answer to a question."""
        assert self.connection is not None
        with suppress(OSError):  # it died meanwhile, as `hear` or `check` will tell
            self.connection.send(stop)

    def check(self) -> list[Answer] | None:
        """Look after the worker: the answers it will never give, if it has died or is past its deadline."""
        if self._process is None:
            return None
        gone, late = self._process.poll() is not None, self._limit is not None and time.monotonic() > self._limit
        if self.connection is None:  # it is ending
            return self._lost() if gone or late else None
        if gone and not self.connection.poll():
            return self._lost()
        if not late:
            return None
        if self.connection.poll():  # it has spoken, and we come late to hear it
            said = self.hear()
            if not isinstance(said, tuple):
                return said
        return self._overdue()

    def end(self) -> None:
        """Kill the process and all that it started, and wait until it is gone."""
        if (process := self._process) is not None:
            self._kill()
            process.wait()
        self._process = None

    def _start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            # Not multiprocessing.Process: it would run a script that has no `if __name__ == "__main__"` again.
            code = (
                f"import sys; sys.path[:] = {list(map(str, sys.path))}; "
                "from autodropout.search.worker_process import main; "
                f"main({theirs.fileno()}, {self._child}, {os.getpid()}, {self._judged})"
            )
            # A Ctrl-C that comes before the new process has left our session waits for it, until it ignores it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), self._child),
                    start_new_session=True,
                    env=self._environment(),
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.connection, self._limit = ours, time.monotonic() + START_SECONDS

    def _environment(self) -> dict[str, str]:
        inherited = STREAMS | {name: value for name, value in os.environ.items() if name not in SECRETS}
        return inherited if self._gpu is None else inherited | {"CUDA_VISIBLE_DEVICES": self._gpu}

    def _send(self) -> None:
        assert self.connection is not None
        assert self.job is not None
        with suppress(OSError):  # it died: `check` will tell
            self.connection.send(tuple(self.job))
        self._limit = None if self._deadline is None else time.monotonic() + self._deadline * len(self.job)

    def _lost(self) -> list[Answer] | None:
        """The worker has died, or has lost its way so that it must."""
        assert self._process is not None
        code = self._process.poll()
        how = "closed its socket" if code is None else f"exited with code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        return self._failed(Failure(FailureKind.CRASH, f"the worker's process {how}"))

    def _overdue(self) -> list[Answer] | None:
        if not self._ready:
            return self._failed(Failure(FailureKind.CRASH, f"the worker did not start within {START_SECONDS:g} s"))
        assert self._deadline is not None
        assert self.job is not None
        return self._failed(overdue(self._deadline * len(self.job)))

    def _failed(self, failure: Failure) -> list[Answer] | None:
        job, self.job = self.job, None
        self._kill()
        return None if job is None else failed(job, failure)

    def _kill(self) -> None:
        """Kill the process and all that it started, as `end` does, without waiting for it."""
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):  # nobody of its group is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._part(None)
        if self._process.poll() is not None:
            self._process = None

    def _part(self, seconds: float | None) -> None:
        """Talk no more to a process that is ending, and has so many seconds for it; None: it was killed."""
        if self.connection is not None:
            self.connection.close()
        self.connection, self._ready = None, False
        self._limit = None if seconds is None else time.monotonic() + seconds


def failed(job: Sequence[Task], failure: Failure) -> list[Answer]:
    """The answers to a job that came to nothing."""
    return [Answer(task.number, failure=failure) for task in job]


def heard(answers: "queue.SimpleQueue[list[Answer] | BaseException]", timeout: float) -> list[list[Answer]]:
    """The answers to each job that an engine's thread has passed on; raises what has ended that thread, after them."""
    found: list[list[Answer]] = []
    with suppress(queue.Empty):
        said = answers.get(timeout=timeout)
        while True:
            if isinstance(said, BaseException):
                if not found:
                    raise said
                answers.put(said)  # for the next call: what came before is to be recorded
                return found
            found.append(said)
            said = answers.get_nowait()
    return found


def overdue(seconds: float) -> Failure:
    return Failure(FailureKind.TIMEOUT, f"no answer within {seconds:g} seconds; the process was ended")


def check_deadline(deadline: float | None) -> None:
    if deadline is not None and not (isinstance(deadline, int | float) and 0 < deadline < math.inf):
        raise ValueError(f"the deadline must be positive seconds, got {deadline!r}")


def child_file(child: Child) -> IO[bytes]:
    """A file without a name that workers load the child from, however large it is."""
    if not callable(child):
        raise ValueError(f"a child is a function child(policy, seed, report) -> score, got {child!r}")
    takes(child)  # raises where it cannot be called as one
    file = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the engine
    try:
        cloudpickle.dump(child, file)
    except Exception as error:  # whatever the parts of a user's object raise
        file.close()
        raise ValueError(
            f"the child {child!r} cannot be sent to worker processes: {error}. "
            "Create what cannot be pickled (locks, open files, connections) inside of it"
        ) from error
    file.flush()
    return file
