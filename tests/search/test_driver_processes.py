"""`ad.search` with real processes: workers killed at work, the driver killed, Ctrl-C once and twice, a plain script."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from driver_tools import SPACE, check_study, states, url
from engine_tools import alive, descendants, hang, until, wait_until_gone

import autodropout as ad
from autodropout.search.driver import Progress
from autodropout.search.ledger import Ledger
from autodropout.search.states import FailureKind, State
from autodropout.study import search

SCRIPT = """
import os, subprocess, sys, time
import autodropout as ad

def child(policy, seed):
    {child}
    return seed / 2**31

def tell(*pids):
    with open({pids!r}, "a") as file:
        file.write("".join(f"{{pid}} " for pid in pids))

def watch(progress):
    print(progress.running, progress.scored, flush=True)

study = ad.search(
    ad.ConvSpace(groups=((8, 8),)), child, trials={trials}, workers=2, capacity=4, minibatch=2, proposer="random",
    storage={storage!r}, engine={engine!r}, watch=watch,
)
print(study)
"""


ON_BOTH = pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.slow)])


def script(tmp_path: Path, child: str, trials: int = 6, engine: str = "local") -> subprocess.Popen[str]:
    """Starts a search as a user would write it, with no `if __name__ == "__main__"`, in a process group of its own."""
    path = tmp_path / "mine.py"
    fields = {"child": child, "trials": trials, "pids": str(tmp_path / "pids"), "engine": engine}
    path.write_text(SCRIPT.format(storage=storage_of(tmp_path), **fields))
    sources = Path(sys.modules["autodropout"].__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONWARNINGS": "error"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    )


def storage_of(tmp_path: Path) -> str:
    return url(tmp_path / "study.db")


def test_workers_killed_at_random_cost_attempts_and_nothing_else(tmp_path: Path) -> None:
    """The pids are those of workers at work, as their children report them; in flight comes back to C each time.
    Whoever removes a child's file decides: the child that it has ended, or the killer that it will be killed."""
    pids = tmp_path / "pids"
    pids.mkdir()

    def child(policy: ad.Policy, seed: int) -> float:
        mine = pids / str(os.getpid())
        mine.touch()
        time.sleep(0.3)
        try:
            mine.unlink()
        except FileNotFoundError:
            hang()  # until the kill comes
        return seed / 2**31

    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        draw = random.Random(0)
        while len(killed) < 5 and not done.wait(draw.uniform(0.1, 0.4)):
            victim = draw.choice([*pids.iterdir(), pids / "nobody"])
            with suppress(FileNotFoundError):  # there is none, or its child has just ended
                victim.unlink()
                killed.append(int(victim.name))
                os.kill(killed[-1], signal.SIGKILL)

    pending: list[tuple[int, Progress]] = []

    def watch(progress: Progress) -> None:
        pending.append((progress.running + progress.waiting, progress))

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        study = search(
            SPACE, child, 24, workers=2, capacity=6, minibatch=4, attempts=10, proposer="random",
            storage=storage_of(tmp_path), watch=watch,
        )  # fmt: skip
    finally:
        done.set()
        killer.join()
    assert len(killed) == 5
    assert all(count == min(6, 24 - progress.scored) for count, progress in pending)
    records = [trial.record for trial in study.trials]
    assert sum(trial.value is not None for trial in records) == 24
    assert sum(trial.attempts - 1 for trial in records) == 5, "each kill cost one attempt"
    assert all(trial.value == trial.seed / 2**31 for trial in records if trial.value is not None)
    check_study(storage_of(tmp_path))


@ON_BOTH
def test_a_plain_script_works_and_its_workers_end_with_it(tmp_path: Path, engine: str) -> None:
    done = script(tmp_path, "pass", engine=engine)
    out, err = done.communicate(timeout=120)
    assert (done.returncode, err) == (0, "")
    assert re.search(r"^Study\('study': 6 trials ended, best 0\.\d+\)$", out.splitlines()[-1])


def test_children_are_gone_soon_after_their_driver_is_killed(tmp_path: Path) -> None:
    """The child starts a process of its own, too."""
    pids = tmp_path / "pids"
    inner = 'inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])'
    driver = script(tmp_path, f"{inner}; tell(os.getpid(), inner.pid); time.sleep(600)")
    until(lambda: pids.exists() and len(pids.read_text().split()) == 4, "the children did not start")
    started = [int(pid) for pid in pids.read_text().split()]
    assert all(map(alive, started))
    driver.kill()
    driver.communicate()
    wait_until_gone(started)
    assert states(storage_of(tmp_path)) == {State.RUNNING: 2, State.WAITING: 2}
    driver = script(tmp_path, "pass")
    driver.communicate(timeout=120)
    assert driver.returncode == 0
    assert states(storage_of(tmp_path)) == {State.APPLIED: 6}
    with Ledger(storage_of(tmp_path)) as ledger:
        assert sorted(trial.attempts for trial in ledger.read("study").trials()) == [1, 1, 1, 1, 2, 2]


def kill_at_random(tmp_path: Path, kills: int, engine: str = "local") -> None:
    """kill -9 of the driver while real workers are starting, at work, or answering."""
    storage, draw = storage_of(tmp_path), random.Random(0)
    for kill in range(kills):
        driver = script(tmp_path, "time.sleep(0.01)", 100_000, engine)
        assert driver.stdout is not None
        before = told = scored(driver.stdout.readline())
        while kill % 3 and told == before:
            told = scored(driver.stdout.readline())  # two of three are killed at work, one while workers start
        time.sleep(draw.uniform(0, 0.5))
        others = descendants(driver.pid)
        driver.kill()
        out, _ = driver.communicate()
        until_gone_but_agents(others)
        told = max([told, *map(scored, re.findall(r"^\d+ \d+$", out, re.MULTILINE))])  # the first may be cut off
        counts = states(storage)
        assert counts[State.FINISHED] + counts[State.APPLIED] >= told, "a score that was reported is lost"
        assert counts[State.WAITING] + counts[State.RUNNING] <= 4
    counts = states(storage)
    wanted = counts[State.FINISHED] + counts[State.APPLIED] + 8
    assert wanted > 8, "no child ever finished"
    last = script(tmp_path, "pass", wanted, engine)
    last.communicate(timeout=120)
    assert last.returncode == 0
    counts = states(storage)
    assert counts[State.FINISHED] + counts[State.APPLIED] == wanted
    assert not counts[State.WAITING]
    check_study(storage)


def until_gone_but_agents(pids: list[int]) -> None:
    """All that a killed driver left has to end soon; only two agents of Ray's own take a minute, unless told."""
    until(lambda: sum(map(alive, pids)) <= 2, "processes outlive their driver")
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)


def scored(line: str) -> int:
    """From what `watch` prints."""
    return int(line.split()[1])


def test_3_kills_of_a_driver_with_workers(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("engine", "kills"), [("local", 20), ("ray", 8)])
def test_many_kills_of_a_driver_with_workers(tmp_path: Path, engine: str, kills: int) -> None:
    kill_at_random(tmp_path, kills, engine)


def at_work(tmp_path: Path, engine: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A search whose two children train until there is a file "enough", both of them at it; the workers' pids."""
    pids, enough = tmp_path / "pids", str(tmp_path / "enough")
    train = f"while not os.path.exists({enough!r}):\n        time.sleep(0.05)"
    driver = script(tmp_path, f"tell(os.getpid())\n    {train}", engine=engine)
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2, "the children did not start")
    return driver, [int(pid) for pid in pids.read_text().split()]


@ON_BOTH
def test_one_interrupt_ends_a_search_after_the_children_under_way(tmp_path: Path, engine: str) -> None:
    driver, workers = at_work(tmp_path, engine)
    assert driver.stderr is not None
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to everybody in the group
    then = "ad.search returns the study as it is and the program goes on, with 0 of 6 trials so far"
    said = f"Interrupted: waiting for 2 children under way; then {then}. Ctrl-C again raises KeyboardInterrupt\n"
    assert driver.stderr.readline().endswith(said)
    (tmp_path / "enough").touch()
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 0, err
    assert "Traceback" not in err
    assert re.search(r"^Study\('study': 2 trials ended, 2 not yet, best 0\.\d+\)$", out.splitlines()[-1])
    assert not any(map(alive, workers))
    resumed = script(tmp_path, "pass")
    resumed.communicate(timeout=120)
    assert states(storage_of(tmp_path)) == {State.APPLIED: 6}
    check_study(storage_of(tmp_path))


@ON_BOTH
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_interrupts_or_one_termination_end_it_at_once(tmp_path: Path, number: signal.Signals, engine: str) -> None:
    driver, workers = at_work(tmp_path, engine)
    assert driver.stderr is not None
    if number == signal.SIGINT:
        os.killpg(driver.pid, signal.SIGINT)
        assert "Interrupted" in driver.stderr.readline()
    os.killpg(driver.pid, number)
    _, err = driver.communicate(timeout=120)
    assert driver.returncode == (-signal.SIGINT if number == signal.SIGINT else 128 + signal.SIGTERM)
    assert number == signal.SIGTERM or err.strip().endswith("KeyboardInterrupt")
    wait_until_gone(workers)
    with Ledger(storage_of(tmp_path)) as ledger:
        trials = ledger.read("study").trials()
    assert all((trial.state, trial.attempts) == (State.WAITING, 0) for trial in trials), "no attempt was its fault"
    assert {trial.failure.kind for trial in trials if trial.failure} == {FailureKind.INTERRUPTED}
    resumed = script(tmp_path, "pass")
    resumed.communicate(timeout=120)
    assert states(storage_of(tmp_path)) == {State.APPLIED: 6}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_interrupts_at_random_moments(tmp_path: Path) -> None:
    """Whatever the driver does when the two come, the study can be resumed and nobody is left running."""
    draw = random.Random(0)
    for _ in range(20):
        driver = script(tmp_path, "time.sleep(0.01)", trials=100_000)
        assert driver.stdout is not None
        driver.stdout.readline()
        time.sleep(draw.uniform(0, 2))
        os.killpg(driver.pid, signal.SIGINT)
        time.sleep(draw.uniform(0, 0.02))
        os.killpg(driver.pid, signal.SIGINT)
        _, err = driver.communicate(timeout=60)
        assert driver.returncode in (0, -signal.SIGINT), err
        assert states(storage_of(tmp_path))[State.RUNNING] == 0, err
        check_study(storage_of(tmp_path))
