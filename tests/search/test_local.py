"""The local engine: real processes that finish, raise, die, hang and are killed."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autodropout.search.jobs import Answer, Child, Judge, Report, Task
from autodropout.search.local import LocalEngine
from autodropout.search.states import FailureKind
from autodropout.spaces import ConvSpace, Policy

SPACE = ConvSpace(groups=((8, 8),))
POLICY = SPACE.sample(seed=0).to_json()


def task(number: int) -> Task:
    return Task(number, POLICY, seed=100 + number)


@contextmanager
def engine(
    child: Child, workers: int = 1, deadline: float | None = None, judge: Judge | None = None
) -> Iterator[LocalEngine]:
    made = LocalEngine(child, workers, deadline, judge)
    try:
        yield made
    finally:
        made.close()


def collect(running: LocalEngine, count: int, seconds: float = 60) -> list[Answer]:
    found: list[Answer] = []
    end = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} answers after {seconds} s"
        found += running.answers(timeout=1)
    return sorted(found, key=lambda answer: answer.number)


def by_seed(actions: dict[int, Callable[[], float]]) -> Child:
    """A child, defined here and hence sent by value, that acts by its seed; 1.0 where nothing is said."""

    def child(policy: Policy, seed: int, report: Report) -> float:
        return actions[seed - 100]() if seed - 100 in actions else 1.0

    return child


def raise_it() -> float:
    raise KeyError("no such thing")


def exhaust() -> float:
    raise MemoryError("too much")


def hang() -> float:
    time.sleep(600)
    return 0.0


def test_every_way_to_end_is_an_answer() -> None:
    actions: dict[int, Callable[[], object]] = {
        0: lambda: 0.5,
        1: raise_it,
        2: exhaust,
        3: lambda: os._exit(3),
        4: lambda: os.kill(os.getpid(), signal.SIGKILL),
        5: lambda: float("nan"),
        6: lambda: float("inf"),
        7: lambda: None,
        8: lambda: "0.9",
        9: lambda: True,
        10: lambda: 1 / 0,
    }
    with engine(by_seed(actions), workers=2) as running:  # type: ignore[arg-type]
        found = []
        waiting = [task(number) for number in range(12)]
        while len(found) < 12:
            while waiting and running.free():
                running.submit([waiting.pop(0)])
            found += running.answers(timeout=1)
    answers = {answer.number: answer for answer in found}
    assert answers[0].value == 0.5
    assert answers[11].value == 1.0, "a worker that was replaced works on"
    kinds = {number: answers[number].failure.kind for number in range(1, 11)}
    assert kinds == {
        1: FailureKind.USER_ERROR,
        2: FailureKind.OUT_OF_MEMORY,
        3: FailureKind.CRASH,
        4: FailureKind.CRASH,
        5: FailureKind.DIVERGED,
        6: FailureKind.DIVERGED,
        7: FailureKind.USER_ERROR,
        8: FailureKind.USER_ERROR,
        9: FailureKind.USER_ERROR,
        10: FailureKind.USER_ERROR,
    }
    assert "in raise_it" in answers[1].failure.traceback
    assert "no such thing" in answers[1].failure.message
    assert "exited with code 3" in answers[3].failure.message
    assert "killed by signal 9" in answers[4].failure.message
    assert "None (NoneType)" in answers[7].failure.message
    assert "'0.9' (str)" in answers[8].failure.message


def test_a_deadline_ends_a_child_that_hangs_and_nobody_else() -> None:
    with engine(by_seed({0: hang}), workers=2, deadline=15) as running:
        running.submit([task(0)])
        running.submit([task(1)])
        hung, fine = collect(running, 2)
        assert hung.failure.kind is FailureKind.TIMEOUT
        assert "15 seconds" in hung.failure.message
        assert fine.value == 1.0
        running.submit([task(2)])
        assert collect(running, 1)[0].value == 1.0


def test_reports_reach_the_judge_and_its_word_stops_a_child() -> None:
    def child(policy: Policy, seed: int, report: Report) -> float:
        for step in range(5):
            report(step, seed - 100 + step / 10)
        return 7.0

    heard: list[tuple[int, int, float]] = []

    def judge(number: int, step: int, value: float) -> bool:
        heard.append((number, step, value))
        return number == 1 and step == 2

    with engine(child, judge=judge) as running:
        running.submit([task(0), task(1)])
        whole, stopped = collect(running, 2)
    assert (whole.value, whole.stopped, len(whole.curve)) == (7.0, False, 5)
    assert (stopped.value, stopped.stopped) == (None, True)
    assert stopped.curve == ((0, 1.0), (1, 1.1), (2, 1.2))
    assert heard == [(0, step, step / 10) for step in range(5)] + [(1, step, 1 + step / 10) for step in range(3)]


def test_a_child_may_train_many_at_once_and_may_ignore_reporting() -> None:
    class Many:
        def __call__(self, policy: Policy, seed: int) -> float:
            return 1.0

        def train_many(self, policies: list[Policy], seeds: list[int], reports: list[Report]) -> list[float]:
            return [float("nan") if seed == 101 else seed / 100 for seed in seeds]

    with engine(Many()) as running:
        running.submit([task(0), task(1), task(2)])
        first, diverged, last = collect(running, 3)
        assert (first.value, last.value) == (1.0, 1.02)
        assert diverged.failure.kind is FailureKind.DIVERGED
        running.submit([task(5)])
        assert collect(running, 1)[0].value == 1.0


def test_a_child_that_cannot_be_loaded_is_a_users_error() -> None:
    class Unloadable:
        def __call__(self, policy: Policy, seed: int, report: Report) -> float:
            return 1.0

        def __reduce__(self) -> tuple[object, ...]:
            return (int, ("not a number",))

    with engine(Unloadable()) as running:
        running.submit([task(0)])
        (answer,) = collect(running, 1)
    assert answer.failure.kind is FailureKind.USER_ERROR
    assert "cannot be loaded in a worker" in answer.failure.message


def test_workers_end_when_their_driver_is_killed(tmp_path: Path) -> None:
    """The child starts a process of its own; both are gone within 10 seconds of the driver's kill -9."""
    script = textwrap.dedent(f"""
        import os, subprocess, sys, time
        from autodropout.search.jobs import Task
        from autodropout.search.local import LocalEngine

        def child(policy, seed, report):
            inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{inner.pid}}")
            time.sleep(600)

        if __name__ == "__main__":
            engine = LocalEngine(child)
            engine.submit([Task(0, {POLICY!r}, 0)])
            engine.answers(600)
    """)
    (tmp_path / "driver.py").write_text(script)
    driver = subprocess.Popen([sys.executable, str(tmp_path / "driver.py")])
    end = time.monotonic() + 60
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
        assert time.monotonic() < end
        time.sleep(0.1)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(map(alive, pids))
    driver.kill()
    driver.wait()
    end = time.monotonic() + 10
    while any(map(alive, pids)):
        assert time.monotonic() < end, "processes outlive their driver"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("options", "message"), [({"workers": 0}, "workers .* got 0"), ({"deadline": -1.0}, "deadline .* got -1.0")]
)
def test_mistakes(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalEngine(by_seed({}), **options)
