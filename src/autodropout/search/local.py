"""The engine `local`: processes on this machine that survive each other's death.

    driver ──submit──> jobs ──┐                             ┌──> worker process: child on a job, one socket each
       ^                      v                             │         │ answers; reports, when there is a judge
       └──answers── queue <── one thread, waiting on all of them <────┘ or its death, or its deadline

Nothing is shared between two workers, so one that is killed, at whatever instant, can stop nobody else: it is replaced,
and its job is answered as a crash. Each worker leads a process group of its own: Ctrl-C is the driver's business, and
what a child has started ends with it. When the driver is gone, workers end themselves (`worker_process`).
"""

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from multiprocessing.connection import Pipe, wait

from autodropout.search.gpus import visible_gpus
from autodropout.search.jobs import Answer, Child, Judge, Task
from autodropout.search.seat import TICK_SECONDS, Question, Seat, check_deadline, child_file, heard


class LocalEngine:
    """`workers` processes; each job has `deadline` seconds per trial, or for ever when None.

    Where there are several workers and several GPUs, the GPUs are dealt to the workers in turn.
    """

    def __init__(
        self, child: Child, workers: int = 1, deadline: float | None = None, judge: Judge | None = None
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        check_deadline(deadline)
        self._child, self._judge = child_file(child), judge
        gpus = visible_gpus() if workers > 1 else ()
        self._seats = [
            Seat(self._child.fileno(), deadline, judge is not None, gpus[seat % len(gpus)] if len(gpus) > 1 else None)
            for seat in range(workers)
        ]
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
        jobs = heard(self._answers, timeout)
        self._free += len(jobs)
        return list(chain.from_iterable(jobs))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._bell.send_bytes(b"close")
            self._thread.join()
            for end in (self._bell, self._heard, self._child):
                end.close()

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
                        self._pass_on(seat, seat.hear())
                for seat in self._seats:
                    self._pass_on(seat, seat.check())
                    with suppress(queue.Empty):
                        if seat.free:
                            seat.take(self._jobs.get_nowait())
        except BaseException as error:  # noqa: BLE001  raised again where the driver sees it
            self._answers.put(error)
        finally:
            for seat in self._seats:
                seat.end()

    def _pass_on(self, seat: Seat, said: list[Answer] | Question | None) -> None:
        if isinstance(said, tuple):
            assert self._judge is not None
            seat.tell(self._judge(*said))
        elif said is not None:
            self._answers.put(said)
