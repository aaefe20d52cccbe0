"""The contract of engines, over both of them: children that finish, raise, die, hang and are killed."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from engine_tools import (
    POLICY,
    alive,
    by_seed,
    collect,
    descendants,
    exhaust_memory,
    hang,
    hang_in_c,
    run_all,
    spoil_gpu,
    submit,
    telling,
    told,
    wait_until_gone,
)
from ray_tools import ray_of_this_machine

from autodropout.search.engines import ENGINES, make_engine
from autodropout.search.jobs import Child, Engine, Judge, Report, Stopped
from autodropout.search.states import FailureKind
from autodropout.spaces import Policy

Make = Callable[..., Engine]


@pytest.fixture(scope="module", params=ENGINES)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "ray":
            stack.enter_context(ray_of_this_machine())
        yield request.param


@pytest.fixture
def engine(kind: str) -> Iterator[Make]:
    """Makes engines, and closes them."""
    made = []

    def make(child: Child, workers: int = 1, deadline: float | None = None, judge: Judge | None = None) -> Engine:
        resources = {"cpus_per_child": 1, "gpus_per_child": 0}
        made.append(make_engine(kind, child, workers=workers, most=9, deadline=deadline, judge=judge, **resources))
        return made[-1]

    yield make
    for one in made:
        one.close()


def raise_it() -> float:
    raise KeyError("no such thing")


def test_every_way_to_end_is_an_answer(engine: Make) -> None:
    actions: dict[int, Callable[[], object]] = {
        0: lambda: 0.5,
        1: raise_it,
        2: exhaust_memory,
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
    running = engine(by_seed(actions), workers=2)
    answers = run_all(running, range(14))
    assert answers[0].value == 0.5
    assert answers[13].value == 1.0, "a worker that was replaced works on"
    kinds = {answer.number: answer.failure.kind.name for answer in answers if answer.failure is not None}
    assert kinds == (
        dict.fromkeys((1, 7, 8, 9, 10, 12), "USER_ERROR")
        | {2: "OUT_OF_MEMORY"}
        | dict.fromkeys((3, 4, 11), "CRASH")
        | dict.fromkeys((5, 6), "DIVERGED")
    )
    assert "in raise_it" in answers[1].failure.traceback
    assert "no such thing" in answers[1].failure.message
    assert "exited with code 3" in answers[3].failure.message
    assert "exited with code 0" in answers[11].failure.message
    assert "killed by signal 9" in answers[4].failure.message
    assert "None (NoneType)" in answers[7].failure.message
    assert "'0.9' (str)" in answers[8].failure.message


@pytest.mark.parametrize("hanging", [pytest.param(hang, marks=pytest.mark.slow), hang_in_c])
def test_a_deadline_ends_a_child_with_all_it_started_and_nobody_else(
    engine: Make, tmp_path: Path, hanging: Callable[[], float]
) -> None:
    pid = tmp_path / "pid"

    def start_and_hang() -> float:
        pid.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        return hanging()

    running = engine(by_seed({0: start_and_hang}), workers=2, deadline=6)
    submit(running, 0)
    submit(running, *range(1, 6))  # a job of five has time for five, should the machine be slow
    hung, *fine = collect(running, 6)
    assert hung.failure.kind is FailureKind.TIMEOUT
    assert "6 seconds" in hung.failure.message
    assert [answer.value for answer in fine] == [1.0] * 5
    wait_until_gone([int(pid.read_text())])
    submit(running, *range(6, 11))
    assert [answer.value for answer in collect(running, 5)] == [1.0] * 5


def test_a_deadline_ends_a_child_that_never_stops_talking(engine: Make) -> None:
    def child(policy: Policy, seed: int, report: Report) -> float:
        while True:
            report(1, 0.5)

    running = engine(child, deadline=1, judge=lambda number, step, value: False)
    submit(running, 0)
    assert collect(running, 1)[0].failure.kind is FailureKind.TIMEOUT


def test_a_death_is_seen_while_a_fork_of_the_worker_lives(engine: Make, tmp_path: Path) -> None:
    """A fork holds the worker's socket open; a data loader's processes are such."""
    pid = tmp_path / "pid"

    def fork_and_die() -> float:
        forked = os.fork()
        if forked:
            pid.write_text(str(forked))
            os._exit(3)
        return hang()

    running = engine(by_seed({0: fork_and_die}))
    submit(running, 0)
    (died,) = collect(running, 1)
    assert "exited with code 3" in died.failure.message
    wait_until_gone([int(pid.read_text())])


def test_a_worker_killed_while_it_waits_is_replaced(engine: Make, tmp_path: Path) -> None:
    running = engine(by_seed({0: telling(tmp_path / "pids", lambda: 1.0)}))
    submit(running, 0)
    assert collect(running, 1)[0].value == 1.0
    ((worker, _),) = told(tmp_path / "pids")
    os.kill(worker, signal.SIGKILL)
    wait_until_gone([worker])
    submit(running, 1)
    assert collect(running, 1)[0].value == 1.0, "and nobody's attempt was spent"


def test_a_worker_that_leaves_gets_no_other_job(engine: Make, tmp_path: Path) -> None:
    """After a failure on a GPU it does, and takes longer to end than a driver to submit the next job."""
    pids = tmp_path / "pids"
    running = engine(by_seed({0: telling(pids, lambda: spoil_gpu(3)), 1: telling(pids, lambda: 1.0)}))
    submit(running, 0)
    assert collect(running, 1)[0].failure.kind is FailureKind.OUT_OF_MEMORY
    ((worker, _),) = told(pids)
    submit(running, 1)
    assert collect(running, 1)[0].value == 1.0, "and nobody's attempt was spent"
    assert not alive(worker), "it held the GPU's memory until then"
    assert len({pid for pid, _ in told(pids, lines=2)}) == 2


def test_closing_ends_children_at_once(engine: Make, tmp_path: Path) -> None:
    running = engine(by_seed({0: telling(tmp_path / "pids", hang_in_c)}))
    submit(running, 0)
    ((worker, _),) = told(tmp_path / "pids")
    running.close()
    running.close()
    wait_until_gone([worker])


def test_reports_reach_the_judge_and_its_word_stops_a_child(engine: Make) -> None:
    def child(policy: Policy, seed: int, report: Report) -> float:
        for step in range(5):
            report(step, seed - 100 + step / 10)
        return 7.0

    heard: list[tuple[int, int, float]] = []

    def judge(number: int, step: int, value: float) -> bool:
        heard.append((number, step, value))
        return number == 1 and step == 2

    running = engine(child, judge=judge)
    submit(running, 0, 1)
    whole, stopped = collect(running, 2)
    assert (whole.value, whole.stopped, len(whole.curve)) == (7.0, False, 5)
    assert (stopped.value, stopped.stopped) == (None, True)
    assert stopped.curve == ((0, 1.0), (1, 1.1), (2, 1.2))
    assert heard == [(0, step, step / 10) for step in range(5)] + [(1, step, 1 + step / 10) for step in range(3)]


def test_an_error_in_the_judge_surfaces(engine: Make) -> None:
    def child(policy: Policy, seed: int, report: Report) -> float:
        report(1, 0.5)
        return 1.0

    def judge(number: int, step: int, value: float) -> bool:
        raise RuntimeError("the judge is ill")

    running = engine(child, judge=judge)
    submit(running, 0)
    with pytest.raises(RuntimeError, match="ill"):
        collect(running, 1)


def test_reports_from_threads_even_from_one_that_outlives_its_job(engine: Make) -> None:
    def child(policy: Policy, seed: int, report: Report) -> float:
        def talk(first: int) -> None:
            try:
                for step in range(first, first + 40):
                    report(step, 0.5)
            except Stopped:
                pass

        threads = [threading.Thread(target=talk, args=(1000 * n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads[:2]:
            thread.join()
        return seed / 100

    running = engine(child, judge=lambda number, step, value: False)
    for number in range(5):
        submit(running, number)
        (answer,) = collect(running, 1)
        assert (answer.number, answer.value) == (number, 1 + number / 100)
        assert len(answer.curve) >= 80


def test_a_child_may_train_many_at_once_and_may_ignore_reporting(engine: Make) -> None:
    class Many:
        def __call__(self, policy: Policy, seed: int) -> float:
            return 1.0

        def train_many(self, policies: list[Policy], seeds: list[int], reports: list[Report]) -> list[float]:
            return [float("nan") if seed == 101 else seed / 100 for seed in seeds]

    running = engine(Many())
    submit(running, 0, 1, 2)
    first, diverged, last = collect(running, 3)
    assert (first.value, last.value) == (1.0, 1.02)
    assert diverged.failure.kind is FailureKind.DIVERGED
    submit(running, 5)
    assert collect(running, 1)[0].value == 1.0


def test_a_child_that_cannot_be_loaded_is_a_users_error(engine: Make) -> None:
    class Unloadable:
        def __call__(self, policy: Policy, seed: int, report: Report) -> float:
            return 1.0

        def __reduce__(self) -> tuple[object, ...]:
            return (int, ("not a number",))

    running = engine(Unloadable())
    submit(running, 0)
    (answer,) = collect(running, 1)
    assert answer.failure.kind is FailureKind.USER_ERROR
    assert "cannot be loaded in a worker" in answer.failure.message


def test_workers_end_when_their_driver_is_killed(kind: str, tmp_path: Path) -> None:
    """The child of a plain script starts a process of its own and hangs in C; both are gone soon."""
    script = textwrap.dedent(f"""
        import os, re, subprocess, sys, time
        from autodropout.search.engines import make_engine
        from autodropout.search.jobs import Task

        def child(policy, seed, report):
            inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open({str(tmp_path / "pids")!r}, "w") as file:
                print(os.getpid(), inner.pid, file=file)
            re.match(r"(a+)+$", "a" * 60 + "b")

        settings = dict(workers=1, most=1, deadline=None, judge=None, cpus_per_child=1, gpus_per_child=0)
        engine = make_engine({kind!r}, child, **settings)
        while not engine.free():
            time.sleep(0.1)
        engine.submit([Task(0, {POLICY!r}, 0)])
        engine.answers(600)
    """)
    (tmp_path / "driver.py").write_text(script)
    driver = subprocess.Popen([sys.executable, str(tmp_path / "driver.py")])
    pids = told(tmp_path / "pids")[0]
    assert all(map(alive, pids))
    others = descendants(driver.pid)
    driver.kill()
    driver.wait()
    try:
        wait_until_gone(pids)
    finally:
        for other in filter(alive, others):  # Ray's agents, which take a minute to miss it
            os.kill(other, signal.SIGKILL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers .* got 0"),
        ({"deadline": -1.0}, "deadline .* got -1.0"),
        ({"deadline": float("nan")}, "got nan"),
        ({"child": 3}, "got 3"),
    ],
)
def test_mistakes(engine: Make, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine(**({"child": by_seed({})} | options))
