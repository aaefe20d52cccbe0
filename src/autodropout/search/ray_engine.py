"""The engine `ray`: children on the nodes of a cluster, which may come and go.

    driver ──submit──> jobs ──┐                 Ray  ┌──> actor on a node ──socket──> worker process: child on a job
       ^                      v                      │      │ answers; questions, when there is a judge
       └──answers── queue <── one thread, for all <──┘ <────┘ or its death

An actor is a seat (`ray_host`), with the resources of one child. There are as many as fit into the cluster, or as were
asked for; the engine looks again every second. `free` counts those that run and have no job: what Ray has still to
place takes none. An actor that dies, with its node or alone, is replaced, and its job is answered as a crash.

Ray retries nothing: a second attempt is the driver's to decide and in the ledger. When the driver is gone, Ray ends its
actors, and with them the workers end themselves (`worker_process`). When the cluster's head is gone, or Ray's process
on the driver's node, Ray ends the driver: the study can be resumed, as after any other kill.
"""

import logging
import os
import queue
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError

from autodropout.search.jobs import Answer, Child, Judge, Task
from autodropout.search.ray_host import Host
from autodropout.search.ray_start import Connection
from autodropout.search.records import Failure
from autodropout.search.seat import START_SECONDS, check_deadline, child_file, failed, heard, overdue
from autodropout.search.states import FailureKind

LOOK_SECONDS = 1.0
"""How often the engine looks at the cluster."""

GRACE_SECONDS = 30.0
"""How much later than an actor the engine ends a job that is overdue, should the actor itself be frozen."""

LONGEST_PAUSE = 60.0
"""Seconds before another actor is tried where actors die at once, at most."""

CLOSE_SECONDS = 5.0
"""How long closing waits to hear that all actors are gone. They go in any case, should Ray itself be dying."""

SILENCE_SECONDS = 30.0
"""After so long without a single worker the engine says what it waits for."""

log = logging.getLogger("autodropout")


@dataclass(eq=False, slots=True)
class _Post:
    """One actor and the job it has."""

    actor: Any
    life: Any  # the reference that Ray answers when the actor is dead
    node: str | None = None  # where it runs, once it does
    job: Sequence[Task] | None = None
    limit: float | None = None  # when the job has taken too long

    @property
    def idle(self) -> bool:
        return self.node is not None and self.job is None


class RayEngine:
    """`workers` actors, or as many as fit (None); each job has `deadline` seconds per trial, or for ever when None.

    Args:
        child: the user's training.
        workers: how many actors Ray is asked for. Those that do not fit wait, which is what an autoscaler looks at.
            None: as many as fit into the nodes that are there.
        deadline: seconds for each trial of a job.
        judge: early stopping, if wanted.
        cpus_per_child: how many of a node's CPUs a child takes; Ray sets OMP_NUM_THREADS by it, unless that is set.
        gpus_per_child: how many GPUs it takes, and sees, with 0 none; a share below 1 lets several have one together.
        most: no more actors than this: more would have nothing to do.
        address: of a cluster; None: that in RAY_ADDRESS, or Ray is started for this machine alone.
    """

    def __init__(
        self,
        child: Child,
        workers: int | None = None,
        deadline: float | None = None,
        judge: Judge | None = None,
        *,
        cpus_per_child: float = 1.0,
        gpus_per_child: float = 0.0,
        most: int | None = None,
        address: str | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        check_deadline(deadline)
        check_resources(cpus_per_child, gpus_per_child)
        with child_file(child) as file:
            file.seek(0)
            pickled = file.read()
        self._workers, self._most, self._deadline, self._judge = workers, most, deadline, judge
        self._cpus, self._gpus = cpus_per_child, gpus_per_child
        self._hosts: Any = ray.remote(Host).options(
            num_cpus=self._cpus,
            num_gpus=self._gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,  # `life`, and a job
            scheduling_strategy="SPREAD",
        )
        self._cluster = Connection(address, room=len(pickled))
        try:
            if self._cluster.started and not self._cluster.places(self._cpus, self._gpus):
                raise ValueError(f"this machine has no {self._needs()}, which a child shall have")
            if not self._gpus and self._cluster.has_gpus():
                log.warning("The Ray cluster has GPUs, and children see none of them: say gpus_per_child, or --gpus")
            self._child = ray.put(pickled)
        except BaseException:
            self._cluster.close()
            raise
        self._posts: list[_Post] = []
        self._jobs: deque[Sequence[Task]] = deque()
        self._lock = threading.Lock()  # around what `free` counts
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # for the thread to run
        self._answers: queue.SimpleQueue[list[Answer] | BaseException] = queue.SimpleQueue()
        self._served = False  # an actor has come up once
        self._deaths = 0  # of actors that never came up, in a row
        self._hire_at = self._look_at = 0.0
        self._silent_since = time.monotonic()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, daemon=True, name="ray engine")
        self._thread.start()

    def free(self) -> int:
        with self._lock:
            return max(0, sum(post.idle for post in self._posts) - len(self._jobs))

    def submit(self, job: Sequence[Task]) -> None:
        assert job, "a job has at least one task"
        with self._lock:
            self._jobs.append(job)
        self._events.put(_nothing)

    def answers(self, timeout: float) -> list[Answer]:
        return list(chain.from_iterable(heard(self._answers, timeout)))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._events.put(_nothing)
            self._thread.join()
            self._cluster.close()

    def _serve(self) -> None:
        """The thread: it alone touches the actors."""
        try:
            while not self._closing:
                with suppress(queue.Empty):
                    self._events.get(timeout=LOOK_SECONDS / 4)()
                now = time.monotonic()
                if now >= self._look_at:
                    self._look_at = now + LOOK_SECONDS
                    self._follow_cluster(now)
                    self._end_overdue(now)
                self._hand_out()
        except BaseException as error:  # noqa: BLE001  raised again where the driver sees it
            self._answers.put(error)
        finally:
            lives = [post.life for post in self._posts]
            for post in list(self._posts):
                self._dismiss(post)
            if lives:
                ray.wait(lives, num_returns=len(lives), timeout=CLOSE_SECONDS)

    def _follow_cluster(self, now: float) -> None:
        """Have as many actors as there should be."""
        wanted = self._workers
        if wanted is None:
            wanted = self._cluster.places(self._cpus, self._gpus)
        if self._most is not None:
            wanted = min(wanted, self._most)
        while len(self._posts) < wanted and now >= self._hire_at:
            self._hire()
        for post in [post for post in self._posts if post.node is None][: max(0, len(self._posts) - wanted)]:
            self._dismiss(post)
        if any(post.node is not None for post in self._posts):
            self._silent_since = now
        elif now - self._silent_since > SILENCE_SECONDS:
            self._silent_since = now
            log.warning("No worker yet: the search waits for a node of the Ray cluster with %s to spare", self._needs())

    def _hire(self) -> None:
        path = [folder or os.getcwd() for folder in sys.path]
        actor = self._hosts.remote(
            self._child, self._deadline, judged=self._judge is not None, path=path, gpus=self._gpus > 0
        )
        post = _Post(actor, actor.life.remote())
        with self._lock:
            self._posts.append(post)
        self._listen(post, post.life)
        self._listen(post, actor.where.remote())

    def _dismiss(self, post: _Post) -> None:
        with self._lock:
            self._posts.remove(post)
        ray.kill(post.actor)

    def _listen(self, post: _Post, reference: Any) -> None:
        """Have the thread hear what comes of a call."""
        reference.future().add_done_callback(lambda done: self._events.put(partial(self._hear, post, done)))

    def _hear(self, post: _Post, done: Any) -> None:
        if post not in self._posts:
            return  # what it says does not matter any more
        error = done.exception()
        if error is not None:
            self._lose(post, error)
            return
        said = done.result()
        if isinstance(said, str):  # of `where`; all else is of a job
            with self._lock:
                post.node = said
            self._served, self._deaths = True, 0
        elif isinstance(said, tuple):
            assert self._judge is not None
            self._listen(post, post.actor.tell.remote(self._judge(*said)))
        else:
            with self._lock:
                post.job, post.limit = None, None
            self._answers.put(said)

    def _lose(self, post: _Post, error: BaseException) -> None:
        """The actor has died, or cannot be reached so that it must."""
        self._dismiss(post)
        if post.job is not None:
            self._answers.put(failed(post.job, _failure(error, post.node)))
        elif post.node is None:
            if isinstance(error, RayActorError) and error.actor_init_failed and not self._served:
                raise RuntimeError(f"no worker can start on the Ray cluster: {error}") from error
            self._deaths += 1
            self._hire_at = time.monotonic() + min(2.0**self._deaths, LONGEST_PAUSE)

    def _end_overdue(self, now: float) -> None:
        """Actors end overdue jobs themselves; this is for one that is frozen, or on a machine that is."""
        for post in [post for post in self._posts if post.limit is not None and now > post.limit]:
            assert post.job is not None
            assert self._deadline is not None
            self._dismiss(post)
            self._answers.put(failed(post.job, overdue(self._deadline * len(post.job))))

    def _hand_out(self) -> None:
        """Give waiting jobs to actors that have none."""
        for post in self._posts:
            if not self._jobs:
                return
            if post.idle:
                with self._lock:
                    post.job = self._jobs.popleft()
                if self._deadline is not None:
                    seconds = START_SECONDS + self._deadline * len(post.job) + GRACE_SECONDS
                    post.limit = time.monotonic() + seconds
                self._listen(post, post.actor.run.remote(tuple(post.job)))

    def _needs(self) -> str:
        return f"{self._cpus:g} CPUs" + (f" and {self._gpus:g} GPUs" if self._gpus else "")


def check_resources(cpus: float, gpus: float) -> None:
    """Ray takes shares of a GPU, or whole ones."""
    if not 0 < cpus < float("inf"):
        raise ValueError(f"cpus_per_child must be positive, got {cpus}")
    if not 0 <= gpus < float("inf") or (gpus > 1 and gpus != int(gpus)):
        raise ValueError(f"gpus_per_child must be a whole number, or a share below 1, got {gpus}")


def _failure(error: BaseException, node: str | None) -> Failure:
    """What Ray says of an actor's end, as a ledger keeps it."""
    kind = FailureKind.OUT_OF_MEMORY if isinstance(error, OutOfMemoryError) else FailureKind.CRASH
    said = " ".join(line for line in str(error).splitlines() if not line.startswith("\t"))  # those are numbers
    return Failure(kind, f"the worker on {node} was lost: {textwrap.shorten(said, 300)}")


def _nothing() -> None:
    """An event that only wakes the thread."""
