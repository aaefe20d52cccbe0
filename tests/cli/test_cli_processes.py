"""The commands as processes: exit codes, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_tools import command, environment, scored, started, until_scored

from autodropout.search.ledger import Ledger
from autodropout.search.states import State


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_a_search_that_can_be_resumed(tmp_path: Path, presses: int) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    arguments = ["search", "tiny", "--trials", "1000", "--workers", "1", "--storage", url]
    seconds = 0.5 if presses == 1 else 3.0  # the second press comes while children are under way
    with started(tmp_path, *arguments, SECONDS=seconds) as process:
        try:
            until_scored(url, process)
            for _ in range(presses):
                os.killpg(process.pid, signal.SIGINT)
                time.sleep(0.1)
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, stderr
    assert f"autodropout resume tiny --storage {url}" in stderr
    assert "Traceback" not in stderr
    assert ("out/tiny/report.html" in stdout) == (presses == 1)
    assert ("at once; to go on" in stderr) == (presses == 2)
    with Ledger(url) as ledger:
        reader = ledger.read("tiny")
        assert reader.owner() is None
        if presses == 1:
            assert reader.counts()[State.RUNNING] == 0
    before = scored(url)
    resumed = subprocess.run(
        command("resume", "--trials", str(before + 4), "--storage", url, "--json"),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(resumed.stdout)["scored"] == before + 4


def test_the_package_is_a_command(tmp_path: Path) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        line = [sys.executable, "-m", "autodropout", *arguments]
        return subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)

    failed = run("status")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "error: sqlite:///autodropout.db: there is no file autodropout.db\n"
    misunderstood = run("status", "--nonsense")
    assert misunderstood.returncode == 2
    assert "Usage: autodropout status" in misunderstood.stderr
