"""A driver that is killed loses nothing it was told is done, and its successor goes on to the bit."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from ledger_tools import MINIBATCH, info, proposal, replayed, value

from autodropout.search.ledger import Ledger
from autodropout.search.states import State
from zygote import Zygote


def lines(log: Path) -> list[dict]:
    """What was acknowledged. Each line is one `write`, so none is there by half."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def check(url: str, acknowledged: list[dict]) -> None:
    """The study after kills: every acknowledged write is there, and nothing is there twice or by half."""
    with Ledger(url) as ledger, ledger.drive(info()) as study:
        study.requeue([trial.number for trial in study.trials({State.RUNNING})], limit=10**6)
        trials, updates = study.trials(), study.updates()
        assert study.counts()[State.RUNNING] == 0
        assert [trial.number for trial in trials] == list(range(len(trials)))
        for trial in trials:
            assert trial.tokens == proposal(trial.number).tokens
            assert trial.value in (None, value(trial.number))
        assert [u.number for u in updates] == list(range(len(updates)))
        assert all(len(set(u.trials)) == MINIBATCH for u in updates)
        applied = [number for u in updates for number in u.trials]
        assert len(set(applied)) == len(applied)
        assert {trial.number for trial in trials if trial.state is State.APPLIED} == set(applied)
        assert all(trials[number].update == u.number for u in updates for number in u.trials)
        checkpoint = study.checkpoint()
        assert (checkpoint.version, checkpoint.damaged) == (len(updates), ())
        assert (checkpoint.state or b"") == replayed(study)
        for line in acknowledged:
            match line["op"]:
                case "proposed":
                    assert all(number < len(trials) for number in line["numbers"])
                case "started":
                    assert all(trials[number].attempts for number in line["numbers"])
                case "finished":
                    assert trials[line["number"]].value == value(line["number"])
                case "applied":
                    assert list(updates[line["version"] - 1].trials) == line["numbers"]


def kill_at_random(url: str, log: Path, zygote: Zygote, kills: int) -> None:
    moments = random.Random(0)
    for kill in range(kills):
        said = len(lines(log))
        pid = zygote.spawn("drive", url=url, log=str(log))
        awaited = (None, "resumed", "proposed", "started")[kill % 4]  # of four, one is killed while it opens the ledger
        while awaited and awaited not in [line["op"] for line in lines(log)[said:]]:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.15))
        os.kill(pid, signal.SIGKILL)
        assert zygote.wait() == -signal.SIGKILL
    acknowledged = lines(log)
    resumes = [line for line in acknowledged if line["op"] == "resumed"]
    assert sum(bool(line["running"]) for line in resumes) > kills / 20, "hardly any kill came while a trial ran"
    check(url, acknowledged)


def test_20_kills(url: str, tmp_path: Path, zygote: Zygote) -> None:
    kill_at_random(url, tmp_path / "log", zygote, 20)


@pytest.mark.slow
def test_200_kills(url: str, tmp_path: Path, zygote: Zygote) -> None:
    kill_at_random(url, tmp_path / "log", zygote, 200)


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.slow), True], ids=["before", "after"])
def test_a_crash_at_each_commit(url: str, tmp_path: Path, zygote: Zygote, after: bool) -> None:
    """A round of the driver commits 8 times: resume, propose, start, four outcomes, one update. Each is hit in turn,
    from whatever state the crash before it left."""
    log = tmp_path / "log"
    for commit in range(1, 17):
        zygote.spawn("crash", url=url, log=str(log), commit=commit, after=after)
        assert zygote.wait() == -signal.SIGKILL
        check(url, lines(log))
