"""A worker of the engine `local`: what runs in its process.

READY -->                         once, when everything is imported
<-- job                           and then, for each job,
(number, step, value) --> stop?   when the child reports, and there is a judge
answers -->                       one a task
"""

import mmap
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

import cloudpickle

from autodropout.search.jobs import Answer, Child, Task
from autodropout.search.records import Failure
from autodropout.search.states import FailureKind
from autodropout.search.worker import failure_of, run_job

READY = "ready"


def main(socket: int, child: int, driver: int, judged: bool) -> None:
    """Run jobs from the socket until it closes. `child` is a file to load it from, `driver` the parent's pid."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(driver,), daemon=True, name="driver watch").start()
    connection = Connection(socket)
    asker = _Asker(connection)
    connection.send(READY)
    loaded: Child | None = None
    while True:
        try:
            job: tuple[Task, ...] = connection.recv()
        except (EOFError, OSError):
            return
        if loaded is None:
            found = _load(child)
            if isinstance(found, Failure):
                connection.send([Answer(task.number, failure=found) for task in job])
                continue
            loaded = found
        with asker:
            answers = run_job(loaded, job, asker if judged else None)
        connection.send(answers)
        if any(map(_leaves_doubt, answers)):
            return


def _load(file: int) -> Child | Failure:
    """The child; what is wrong with it is the user's, and an answer."""
    try:
        with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as content:
            child: Child = cloudpickle.loads(content)
            return child
    except Exception as error:  # noqa: BLE001
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


def _end_with(driver: int) -> None:
    """When the driver is gone, this process and those it started have nobody to work for."""
    while os.getppid() == driver:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)
