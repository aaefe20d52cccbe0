"""What is the local engine's own, and its seats'; the contract of engines is in `test_engines`."""

import os
import queue
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_tools import PATIENCE, by_seed, collect, hang, run_all, spoil_gpu, submit, task, until

from autodropout.search import seat as seats
from autodropout.search.jobs import Answer
from autodropout.search.local import LocalEngine
from autodropout.search.seat import Seat, child_file, heard
from autodropout.search.states import FailureKind


def test_a_worker_killed_while_it_starts_costs_its_job_and_is_replaced() -> None:
    running = LocalEngine(by_seed({}))
    try:
        running.submit([task(0)])
        end = time.monotonic() + 60
        while (process := running._seats[0]._process) is None:
            assert time.monotonic() < end
        process.kill()
        assert "killed by signal 9" in collect(running, 1)[0].failure.message
        running.submit([task(1)])
        assert collect(running, 1)[0].value == 1.0
    finally:
        running.close()


PRESSED = """
import os, signal, threading
from engine_tools import by_seed, collect, submit
from autodropout.search.local import LocalEngine

signal.signal(signal.SIGINT, lambda number, frame: None)
over = threading.Event()

def press():
    while not over.wait(1e-4):
        os.killpg(0, signal.SIGINT)

presser = threading.Thread(target=press)
presser.start()
blocked = lambda: float(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
for number in range(8):
    running = LocalEngine(by_seed({number: blocked}))
    submit(running, number)
    print(*collect(running, 1))
    running.close()
over.set()
presser.join()
"""


def test_ctrl_c_while_a_worker_starts_is_not_the_workers() -> None:
    """Pressed all the time, so that it falls between the process's beginning and its own session, too."""
    script = f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n{PRESSED}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, start_new_session=True, timeout=240, check=True
    )
    answers = done.stdout.splitlines()
    assert len(answers) == 8
    assert all("value=0.0" in answer for answer in answers), done.stdout + done.stderr


def test_an_answer_that_lies_there_is_taken_however_late_we_look() -> None:
    """The deadline is the child's, not that of whoever waits for it on a busy machine."""
    deadline = 5.0
    with child_file(by_seed({})) as child:
        seat = Seat(child.fileno(), deadline, judged=False)
        try:
            seat.take([task(0)])
            until(seat.connection.poll, "it is not ready")
            assert seat.hear() is None
            until(seat.connection.poll, "no answer")
            time.sleep(deadline)
            assert [answer.value for answer in seat.check()] == [1.0]
        finally:
            seat.end()


def cut_off(said: Path | None = None) -> float:
    """Close the worker's socket, and whatever else is open, and linger."""
    os.closerange(3, 256)
    if said is not None:
        said.touch()
    return hang()


def test_nobody_waits_for_a_worker_that_lingers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "END_SECONDS", 2 * PATIENCE)
    said = tmp_path / "said"

    def after_it() -> float:
        until(said.exists, "the other never lingered")
        time.sleep(1)  # the engine has seen it
        return 0.5

    running = LocalEngine(by_seed({0: lambda: cut_off(said), 1: after_it}), workers=2)
    try:
        submit(running, 0)
        submit(running, 1)
        assert [(answer.number, answer.value) for answer in collect(running, 1)] == [(1, 0.5)]
        submit(running, 2)
        assert collect(running, 1)[0].number == 2
    finally:
        running.close()


def test_a_worker_that_lingers_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it has lost its way or has said that it leaves."""
    monkeypatch.setattr(seats, "END_SECONDS", 1.0)
    running = LocalEngine(by_seed({0: cut_off, 1: lambda: spoil_gpu(2 * PATIENCE)}))
    try:
        lost, spoiled, fine = run_all(running, range(3))
        assert "closed its socket" in lost.failure.message
        assert spoiled.failure.kind is FailureKind.OUT_OF_MEMORY
        assert fine.value == 1.0
    finally:
        running.close()


def test_all_workers_are_free_at_once() -> None:
    running = LocalEngine(by_seed({}), workers=3)
    try:
        for left in (3, 2, 1):
            assert running.free() == left
            running.submit([task(left)])
        assert running.free() == 0
        collect(running, 3)
        assert running.free() == 3
    finally:
        running.close()


def test_workers_inherit_no_ledger_and_no_password_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTODROPOUT_STORAGE", "postgresql://me:secret@host/studies")
    for name in ("PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE"):
        monkeypatch.setenv(name, "secret")
    running = LocalEngine(by_seed({0: lambda: float("secret" in str(os.environ))}))
    try:
        running.submit([task(0)])
        assert collect(running, 1)[0].value == 0.0
    finally:
        running.close()


def test_what_came_in_before_an_engine_broke_is_handed_over_first() -> None:
    answers: queue.SimpleQueue[list[Answer] | BaseException] = queue.SimpleQueue()
    for said in ([Answer(0, 1.0)], [Answer(1, 0.5)], OSError("too many open files")):
        answers.put(said)
    assert heard(answers, 1.0) == [[Answer(0, 1.0)], [Answer(1, 0.5)]]
    with pytest.raises(OSError, match="too many open files"):
        heard(answers, 1.0)
