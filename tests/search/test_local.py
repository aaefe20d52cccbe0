"""The local engine: real processes that finish, raise, die, hang and are killed."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from autodropout.search.jobs import Answer, Child, Judge, Report, Stopped, Task
from autodropout.search.local import LocalEngine
from autodropout.search.states import FailureKind
from autodropout.search.worker import run_job
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
        11: lambda: os._exit(0),
        12: lambda: sys.exit(0),
    }
    with engine(by_seed(actions), workers=2) as running:  # type: ignore[arg-type]
        found = []
        waiting = [task(number) for number in range(14)]
        while len(found) < 14:
            while waiting and running.free():
                running.submit([waiting.pop(0)])
            found += running.answers(timeout=1)
    answers = {answer.number: answer for answer in found}
    assert answers[0].value == 0.5
    assert answers[13].value == 1.0, "a worker that was replaced works on"
    kinds = {number: answers[number].failure.kind for number in range(1, 13)}
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
        11: FailureKind.CRASH,
        12: FailureKind.USER_ERROR,
    }
    assert "in raise_it" in answers[1].failure.traceback
    assert "no such thing" in answers[1].failure.message
    assert "exited with code 3" in answers[3].failure.message
    assert "exited with code 0" in answers[11].failure.message
    assert "killed by signal 9" in answers[4].failure.message
    assert "None (NoneType)" in answers[7].failure.message
    assert "'0.9' (str)" in answers[8].failure.message


def test_a_deadline_ends_a_child_that_hangs_with_all_it_started_and_nobody_else(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def start_and_hang() -> float:
        pid.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        return hang()

    with engine(by_seed({0: start_and_hang}), workers=2, deadline=2) as running:
        running.submit([task(0)])
        running.submit([task(1)])
        hung, fine = collect(running, 2)
        assert hung.failure.kind is FailureKind.TIMEOUT
        assert "2 seconds" in hung.failure.message
        assert fine.value == 1.0
        wait_until_gone([int(pid.read_text())])
        running.submit([task(2)])
        assert collect(running, 1)[0].value == 1.0


def test_a_death_is_seen_while_a_fork_of_the_worker_lives(tmp_path: Path) -> None:
    """A fork holds the worker's socket open; a data loader's processes are such."""
    pid = tmp_path / "pid"

    def fork_and_die() -> float:
        forked = os.fork()
        if forked:
            pid.write_text(str(forked))
            os._exit(3)
        return hang()

    with engine(by_seed({0: fork_and_die})) as running:
        running.submit([task(0)])
        (died,) = collect(running, 1)
        assert "exited with code 3" in died.failure.message
        wait_until_gone([int(pid.read_text())])


def test_a_worker_killed_while_it_starts_or_waits_is_replaced() -> None:
    with engine(by_seed({})) as running:
        running.submit([task(0)])
        kill_worker(running)
        assert "killed by signal 9" in collect(running, 1)[0].failure.message
        running.submit([task(1)])
        assert collect(running, 1)[0].value == 1.0
        kill_worker(running)
        running.submit([task(2)])
        assert collect(running, 1)[0].value == 1.0


def kill_worker(running: LocalEngine) -> None:
    end = time.monotonic() + 60
    while (process := running._seats[0]._process) is None:
        assert time.monotonic() < end
    process.kill()
    process.wait()


def test_closing_ends_children_at_once() -> None:
    running = LocalEngine(by_seed({0: hang}))
    running.submit([task(0)])
    time.sleep(0.5)
    process = running._seats[0]._process
    running.close()
    running.close()
    assert process.returncode == -signal.SIGKILL


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


def test_an_error_in_the_judge_surfaces() -> None:
    def child(policy: Policy, seed: int, report: Report) -> float:
        report(1, 0.5)
        return 1.0

    def judge(number: int, step: int, value: float) -> bool:
        raise RuntimeError("the judge is ill")

    with engine(child, judge=judge) as running:
        running.submit([task(0)])
        with pytest.raises(RuntimeError, match="ill"):
            collect(running, 1)


def test_reports_from_threads_even_from_one_that_outlives_its_job() -> None:
    def child(policy: Policy, seed: int, report: Report) -> float:
        def talk(first: int) -> None:
            try:
                for step in range(first, first + 200):
                    report(step, 0.5)
            except Stopped:
                pass

        threads = [threading.Thread(target=talk, args=(1000 * n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads[:2]:
            thread.join()
        return seed / 100

    with engine(child, judge=lambda number, step, value: False) as running:
        for number in range(10):
            running.submit([task(number)])
            (answer,) = collect(running, 1)
            assert (answer.number, answer.value) == (number, 1 + number / 100)
            assert len(answer.curve) >= 400


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


def test_one_child_of_many_that_diverges_takes_nobody_with_it() -> None:
    def together(catches: bool) -> Child:
        class Many:
            def __call__(self, policy: Policy, seed: int) -> float:
                return 1.0

            def train_many(self, policies: list[Policy], seeds: list[int], reports: list[Report]) -> list[float]:
                for seed, report in zip(seeds, reports, strict=True):
                    try:
                        report(1, float("inf") if seed == 101 else 0.5)
                    except FloatingPointError:
                        if not catches:
                            raise
                return [0.5] * len(seeds)

        return Many()

    careful = run_job(together(catches=True), [task(0), task(1), task(2)], None)
    assert [answer.value for answer in careful] == [0.5, None, 0.5]
    assert careful[1].failure.kind is FailureKind.DIVERGED
    careless = run_job(together(catches=False), [task(0), task(1), task(2)], None)
    assert [answer.failure.kind.name for answer in careless] == ["USER_ERROR", "DIVERGED", "USER_ERROR"]
    assert "train_many must catch what a report raises" in careless[0].failure.message


def test_a_child_that_swallows_what_report_raises_is_still_stopped() -> None:
    def child(policy: Policy, seed: int, report: Report) -> float:
        for step in range(5):
            try:
                report(step, 0.5)
            except (Stopped, FloatingPointError):
                continue
        return 0.9

    (stopped,) = run_job(child, [task(0)], lambda number, step, value: step == 2)
    assert (stopped.stopped, stopped.value, stopped.curve[-1]) == (True, None, (2, 0.5))


@pytest.mark.parametrize(
    ("step", "value", "message"),
    [(1.5, 0.5, "integer step, got 1.5"), (1, "good", "could not convert"), (1, None, "NoneType")],
)
def test_what_cannot_be_reported(step: object, value: object, message: str) -> None:
    (answer,) = run_job(lambda policy, seed, report: report(step, value), [task(0)], None)
    assert answer.failure.kind is FailureKind.USER_ERROR
    assert message in answer.failure.message


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    def child(policy: Policy, seed: int, report: Report) -> object:
        report(np.int64(3), np.float32(0.5))
        report(torch.tensor(4), torch.tensor(0.25))
        return torch.tensor([0.75])

    (answer,) = run_job(child, [task(0)], None)
    assert (answer.value, answer.curve) == (0.75, ((3, 0.5), (4, 0.25)))
    (many,) = run_job(lambda policy, seed: torch.ones(2), [task(0)], None)
    assert "not a score" in many.failure.message


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
    wait_until_gone(pids)


def wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + 10
    while any(map(alive, pids)):
        assert time.monotonic() < end, "processes outlive those they worked for"
        time.sleep(0.05)


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
