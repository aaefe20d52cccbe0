"""What is the local engine's own; the contract of engines is in `test_engines`."""

import os
import time

import pytest
from engine_tools import by_seed, collect, task

from autodropout.search.local import LocalEngine


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


def test_workers_inherit_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTODROPOUT_STORAGE", "postgresql://me:secret@host/studies")
    running = LocalEngine(by_seed({0: lambda: float("secret" in str(os.environ))}))
    try:
        running.submit([task(0)])
        assert collect(running, 1)[0].value == 0.0
    finally:
        running.close()
