"""For tests of engines: tasks, children that act by their seed, processes that must be gone."""

import atexit
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

from autodropout.search.jobs import Answer, Child, Engine, Report, Task
from autodropout.spaces import ConvSpace, Policy

PATIENCE = 120.0
"""Seconds in which a machine with much else to do starts a few processes. Only a test that fails waits so long."""

POLICY = ConvSpace(groups=((8, 8),)).sample(seed=0).to_json()


def task(number: int) -> Task:
    return Task(number, POLICY, seed=100 + number)


def submit(running: Engine, *numbers: int) -> None:
    """Start one job, as soon as there is a worker for it."""
    until(lambda: running.free() > 0, "no worker is free")
    running.submit([task(number) for number in numbers])


def collect(running: Engine, count: int) -> list[Answer]:
    found: list[Answer] = []
    end = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} answers after {PATIENCE} s"
        found += running.answers(timeout=1)
    return sorted(found, key=lambda answer: answer.number)


def run_all(running: Engine, numbers: Iterable[int]) -> list[Answer]:
    """Each as a job, as a driver would: a job is submitted when there is room for it."""
    found: list[Answer] = []
    waiting = deque(numbers)
    count, end = len(waiting), time.monotonic() + 2 * PATIENCE
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} answers after {2 * PATIENCE} s"
        while waiting and running.free():
            running.submit([task(waiting.popleft())])
        found += running.answers(timeout=0.1)
    return sorted(found, key=lambda answer: answer.number)


def by_seed(actions: dict[int, Callable[[], object]]) -> Child:
    """A child, made here and hence sent by value, that acts by its seed; 1.0 where nothing is said."""

    def child(policy: Policy, seed: int, report: Report) -> object:
        return actions[seed - 100]() if seed - 100 in actions else 1.0

    return child


def exhaust_memory() -> float:
    raise MemoryError("too much")


def spoil_gpu(seconds: float) -> float:
    """Fail as on a GPU, which a process takes its time to give back when it ends."""
    sys.modules["torch"] = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))  # type: ignore[assignment]
    atexit.register(time.sleep, seconds)
    return exhaust_memory()


def hang() -> float:
    time.sleep(600)
    return 0.0


def hang_in_c() -> float:
    """For ever, and never lets go of the interpreter's lock."""
    import re

    re.match(r"(a+)+$", "a" * 60 + "b")
    return 0.0


def telling(file: Path, then: Callable[[], float]) -> Callable[[], float]:
    """An action that writes down its own pid and that of its parent first, the second of which it has on Ray."""

    def act() -> float:
        with file.open("a") as out:
            out.write(f"{os.getpid()} {os.getppid()}\n")
        return then()

    return act


def told(file: Path, lines: int = 1) -> list[list[int]]:
    """The pids in a file, once it has so many whole lines."""
    until(lambda: file.exists() and file.read_text().count("\n") >= lines, f"{file.name}: nobody wrote")
    return [[int(pid) for pid in line.split()] for line in file.read_text().splitlines()]


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def wait_until_gone(pids: list[int]) -> None:
    until(lambda: not any(map(alive, pids)), "processes outlive those they worked for")


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended, with all its threads, and waits to be collected does not."""
    state, _, *more = _stat(pid)
    return state != "Z" or int(more[THREADS]) > 1


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    parents = {int(entry.name): _stat(int(entry.name))[1] for entry in Path("/proc").glob("[0-9]*")}
    found = [pid]
    for one in found:
        found += [process for process, parent in parents.items() if parent == str(one)]
    return found[1:]


THREADS = 15  # the place of their number, after state and parent


def _stat(pid: int) -> list[str]:
    """State, parent and more of a process; as if it had ended where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["Z", "0", *["1"] * (THREADS + 1)]
