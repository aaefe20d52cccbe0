"""kill -9 of a whole search, at random moments and at every commit: nothing is lost, nothing is done twice."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from driver_tools import check_study, states, url
from driver_zygote import SETTING

from autodropout.search.ledger import Ledger
from autodropout.search.states import FailureKind, State
from zygote import Zygote


def acknowledged(log: Path) -> dict[int, float | None]:
    """The answers that were recorded, by trial; the last line may be cut off by a kill."""
    found = {}
    for line in log.read_text().splitlines():
        found |= dict(json.loads(line)["scored"])
    return found


def check_acknowledged(storage: str, log: Path) -> int:
    """Every recorded answer is in the ledger as it was given; how many there are."""
    told = acknowledged(log) if log.exists() else {}
    with Ledger(storage) as ledger:
        trials = ledger.read("study").trials()
    for number, value in told.items():
        if value is None or value != value:  # it diverged: it has the floor, and the reason
            assert (trials[number].value, trials[number].failure.kind) == (0.0, FailureKind.DIVERGED)
        else:
            assert trials[number].value == value
    return len(told)


def complete(storage: str, log: Path, searches: Zygote) -> None:
    """Let a last driver finish the study, undisturbed; then look at all of it."""
    counts = states(storage)
    wanted = counts[State.FINISHED] + counts[State.APPLIED] + 2 * SETTING["capacity"]
    searches.spawn("search", url=storage, log=str(log), trials=wanted)
    assert searches.wait() == 0
    counts = states(storage)
    assert counts[State.FINISHED] + counts[State.APPLIED] == wanted
    assert set(counts) <= {State.FINISHED, State.APPLIED, State.FAILED}, "complete: nobody waits, nobody runs"
    check_study(storage)
    check_acknowledged(storage, log)


def kill_at_random(tmp_path: Path, searches: Zygote, kills: int) -> None:
    storage, log, moments = url(tmp_path / "study.db"), tmp_path / "log", random.Random(0)
    running = 0
    for kill in range(kills):
        said = log.stat().st_size if log.exists() else 0
        pid = searches.spawn("search", url=storage, log=str(log))
        while kill % 4 and not (log.exists() and log.stat().st_size > said):
            time.sleep(0.001)  # three of four are killed at work, one while it opens the study
        time.sleep(moments.uniform(0.0, 0.6))
        os.kill(pid, signal.SIGKILL)
        assert searches.wait() == -signal.SIGKILL
        if log.exists() and log.stat().st_size:  # or there may be no study yet
            check_acknowledged(storage, log)
            running += states(storage)[State.RUNNING] > 0
    assert running > kills / 4, "hardly any kill came while children ran"
    assert check_acknowledged(storage, log) >= kills * 3 // 4
    complete(storage, log, searches)


def test_12_kills(tmp_path: Path, searches: Zygote) -> None:
    kill_at_random(tmp_path, searches, 12)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_200_kills(tmp_path: Path, searches: Zygote) -> None:
    kill_at_random(tmp_path, searches, 200)


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.slow), True], ids=["before", "after"])
def test_a_crash_at_each_commit(tmp_path: Path, searches: Zygote, after: bool) -> None:
    """The first commits of a driver are: the resumed trials, new proposals, starts, outcomes, an update, and so on.
    Each is hit in turn, from whatever state the crash before it left."""
    storage, log = url(tmp_path / "study.db"), tmp_path / "log"
    for commit in range(1, 15):
        searches.spawn("crash_at", url=storage, log=str(log), commit=commit, after=after)
        assert searches.wait() == -signal.SIGKILL
        check_acknowledged(storage, log)
    with Ledger(storage) as ledger:
        assert ledger.read("study").info.minibatch == SETTING["minibatch"]
        assert len(ledger.read("study").updates()) > 3
    complete(storage, log, searches)
