"""A worker: what runs in the process on a seat (`seat`), of either engine.

READY -->                         once, when the child is loaded
<-- job                           and then, for each job,
(number, step, value) --> stop?   when the child reports, and there is a judge
answers -->                       one a task; as `LastWords` when the worker leaves after them
"""

import mmap
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import cloudpickle

from autodropout.search.jobs import Answer, Child, Task
from autodropout.search.records import Failure
from autodropout.search.states import FailureKind
from autodropout.search.worker import failure_of, run_job

READY = "ready"


@dataclass(frozen=True, slots=True)
class LastWords:
    """The answers of a worker that takes no other job. Told, because with CUDA a process takes seconds to end."""

    answers: list[Answer]


def main(socket: int, child: int, keeper: int, judged: bool) -> None:
    """Run jobs from the socket until it closes. `child` is a file to load it from, `keeper` the parent's pid."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the seat; what came is forgotten
    _leave_guard(keeper, close=(socket, child))
    connection = Connection(socket)
    asker = _Asker(connection)
    loaded = _load(child)
    connection.send(READY)
    while True:
        try:
            job: tuple[Task, ...] = connection.recv()
        except (EOFError, OSError):
            return
        if isinstance(loaded, Failure):
            connection.send([Answer(task.number, failure=loaded) for task in job])
            continue
        with asker:
            answers = run_job(loaded, job, asker if judged else None)
        if any(map(_leaves_doubt, answers)):
            connection.send(LastWords(answers))
            return
        connection.send(answers)


def _load(file: int) -> Child | Failure:
    """The child; what is wrong with it is the user's, and an answer."""
    try:
        with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as content:
            child: Child = cloudpickle.loads(content)
            return child
    except (Exception, SystemExit) as error:  # noqa: BLE001
        failure = failure_of(error)
        message = f"the child cannot be loaded in a worker: {failure.message}"
        return Failure(FailureKind.USER_ERROR, message, failure.traceback)


def _leaves_doubt(answer: Answer) -> bool:
    """Whether the process may be spoiled and must be replaced: after some errors on a GPU every later call fails."""
    torch = sys.modules.get("torch")
    wrong = answer.failure is not None and answer.failure.kind is not FailureKind.DIVERGED
    return wrong and torch is not None and torch.cuda.is_initialized()


class _Asker:
    """Asks the driver's judge. A child may report from threads; one that outlives its job is told to stop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._open = False

    def __enter__(self) -> None:
        self._open = True

    def __exit__(self, *_: object) -> None:
        with self._lock:  # what was asked has been answered: the next message on the socket is a job
            self._open = False

    def __call__(self, number: int, step: int, value: float) -> bool:
        with self._lock:
            if not self._open:
                return True
            self._connection.send((number, step, value))
            return bool(self._connection.recv())


def _leave_guard(keeper: int, close: tuple[int, ...]) -> None:
    """Fork a process that ends this one's group, itself included, as soon as this one or its keeper is gone.

    A process, because a child that hangs in C may never let go of the interpreter's lock, which a thread would need;
    and of nobody's, because a child may wait for all the processes it started.
    """
    worker = os.getpid()
    if (parent := os.fork()) != 0:
        os.waitpid(parent, 0)
        return
    if os.fork() != 0:
        os._exit(0)
    for file in close:
        os.close(file)  # or the seat would not see that the worker's end is closed
    _wait_for_an_end(keeper, worker)
    os.killpg(0, signal.SIGKILL)


def _wait_for_an_end(*pids: int) -> None:
    try:
        select.select([os.pidfd_open(pid) for pid in pids], [], [])
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, an old one, or a sandbox
        while all(map(_exists, pids)):
            time.sleep(0.5)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
