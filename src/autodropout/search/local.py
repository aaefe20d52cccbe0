"""The engine `local`: processes on this machine that survive each other's death.

    driver ──submit──> jobs ──┐                             ┌──> worker process: child on a job, one socket each
       ^                      v                             │         │ answers; reports, when there is a judge
       └──answers── queue <── one thread, waiting on all of them <────┘ or its death, or its deadline

Nothing is shared between two workers, so one that is killed, at whatever instant, can stop nobody else: it is replaced,
and its job is answered as a crash. Each worker leads a process group of its own: Ctrl-C is the driver's business, and
what a child has started ends with it. When the driver is gone, workers end themselves (`local_process`).
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO

import cloudpickle

from autodropout.search.jobs import Answer, Child, Judge, Task
from autodropout.search.local_process import READY
from autodropout.search.records import Failure
from autodropout.search.states import FailureKind

START_SECONDS = 300.0
"""How long a worker may take until it is ready for its first job: it imports torch."""

TICK_SECONDS = 0.25
"""How often deadlines are looked at; and deaths, which a socket does not tell while a fork of the worker holds it."""


class LocalEngine:
    """`workers` processes; each job has `deadline` seconds per trial, or for ever when None."""

    def __init__(
        self, child: Child, workers: int = 1, deadline: float | None = None, judge: Judge | None = None
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if deadline is not None and deadline <= 0:
            raise ValueError(f"the deadline must be positive seconds, got {deadline}")
        self._child = _pickled(child)
        self._seats = [_Seat(self._child.fileno(), deadline, judge) for _ in range(workers)]
        self._free = workers
        self._jobs: queue.SimpleQueue[Sequence[Task]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[Answer] | BaseException] = queue.SimpleQueue()
        self._closing = False
        self._heard, self._bell = Pipe(duplex=False)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="local engine")
        self._thread.start()

    def free(self) -> int:
        return self._free

    def submit(self, job: Sequence[Task]) -> None:
        assert job, "a job has at least one task"
        assert self._free > 0, "every worker has a job"
        self._free -= 1
        self._jobs.put(job)
        self._bell.send_bytes(b"job")

    def answers(self, timeout: float) -> list[Answer]:
        found: list[Answer] = []
        with suppress(queue.Empty):
            found += self._taken(self._answers.get(timeout=timeout))
            while True:
                found += self._taken(self._answers.get_nowait())
        return found

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._bell.send_bytes(b"close")
            self._thread.join()
            for end in (self._bell, self._heard, self._child):
                end.close()

    def _taken(self, answers: list[Answer] | BaseException) -> list[Answer]:
        if isinstance(answers, BaseException):
            raise answers
        self._free += 1
        return answers

    def _serve(self) -> None:
        """The thread: it alone touches the workers."""
        try:
            while not self._closing:
                talking = {seat.connection: seat for seat in self._seats if seat.connection is not None}
                ready = wait([self._heard, *talking], TICK_SECONDS)
                if self._heard in ready:
                    self._heard.recv_bytes()
                for connection, seat in talking.items():
                    if connection in ready:
                        self._pass_on(seat.hear())
                for seat in self._seats:
                    self._pass_on(seat.check())
                    with suppress(queue.Empty):
                        if seat.job is None:
                            seat.take(self._jobs.get_nowait())
        except BaseException as error:  # noqa: BLE001  raised again where the driver sees it
            self._answers.put(error)
        finally:
            for seat in self._seats:
                seat.end()

    def _pass_on(self, answers: list[Answer] | None) -> None:
        if answers is not None:
            self._answers.put(answers)


class _Seat:
    """A place for one worker: its process, replaced when it dies, and the job it has."""

    def __init__(self, child: int, deadline: float | None, judge: Judge | None) -> None:
        self._child, self._deadline, self._judge = child, deadline, judge
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False  # to take a job from its socket
        self._limit: float | None = None  # when the job, or the start, has taken too long
        self.connection: Connection | None = None
        self.job: Sequence[Task] | None = None

    def take(self, job: Sequence[Task]) -> None:
        """Start a job, in a new process where there is none."""
        self.job = job
        if self._process is not None and self._process.poll() is not None:
            self.end()  # it died while it had nothing to do
        if self._process is None:
            self._start()
        elif self._ready:
            self._send()

    def hear(self) -> list[Answer] | None:
        """The worker has something to say, or has closed its end."""
        assert self.connection is not None
        try:
            message = self.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return self._lost()
        if message == READY:
            self._ready, self._limit = True, None
            if self.job is not None:
                self._send()
        elif isinstance(message, tuple):
            assert self._judge is not None
            with suppress(OSError):  # it died meanwhile, as its next message will tell
                self.connection.send(self._judge(*message))
        else:
            self.job, self._limit = None, None
            return list(message)
        return None

    def check(self) -> list[Answer] | None:
        """Look after the worker: the answers it will never give, if it has died or is past its deadline."""
        if self._process is None:
            return None
        if self._process.poll() is not None and not (self.connection is not None and self.connection.poll()):
            return self._lost()
        if self._limit is not None and time.monotonic() > self._limit:
            return self._overdue()
        return None

    def end(self) -> None:
        """Kill the process and all that it started."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):  # nobody of its group is left
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self.connection is not None:
            self.connection.close()
        self._process, self.connection, self._ready, self._limit = None, None, False, None

    def _start(self) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            # Not multiprocessing.Process: it would run a script that has no `if __name__ == "__main__"` again.
            code = (
                f"import sys; sys.path[:] = {list(map(str, sys.path))}; "
                "from autodropout.search.local_process import main; "
                f"main({theirs.fileno()}, {self._child}, {os.getpid()}, {self._judge is not None})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._child),
                start_new_session=True,
            )
        self._limit = time.monotonic() + START_SECONDS

    def _send(self) -> None:
        assert self.connection is not None
        assert self.job is not None
        with suppress(OSError):  # it died: `check` will tell
            self.connection.send(tuple(self.job))
        self._limit = None if self._deadline is None else time.monotonic() + self._deadline * len(self.job)

    def _lost(self) -> list[Answer] | None:
        """The worker has died, or has lost its way so that it must."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # a socket closes a little before its process ends
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
        seconds = self._deadline * len(self.job)
        message = f"no answer within {seconds:g} seconds; the process was ended"
        return self._failed(Failure(FailureKind.TIMEOUT, message))

    def _failed(self, failure: Failure) -> list[Answer] | None:
        job, self.job = self.job, None
        self.end()
        return None if job is None else [Answer(task.number, failure=failure) for task in job]


def _pickled(child: Child) -> IO[bytes]:
    """A file without a name that workers read the child from, however large it is."""
    if not callable(child):
        raise ValueError(f"a child is a function child(policy, seed, report) -> score, got {child!r}")
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
