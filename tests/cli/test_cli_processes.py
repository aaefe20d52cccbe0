"""The commands as processes: exit codes, and every way to end a search but its own. Each can be resumed."""

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_recipe
from cli_tools import command, environment, ok, run, scored, started, until_scored
from sqlalchemy import Engine, event

from autodropout.search import ledger as ledger_module
from autodropout.search.database import write_engine
from autodropout.search.errors import NoSuchStudy
from autodropout.search.ledger import Ledger
from autodropout.search.records import Trial
from autodropout.search.states import FailureKind, State
from autodropout.search.url import Address


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


def trials(url: str) -> list[Trial]:
    try:
        with Ledger(url) as ledger:
            return ledger.read("tiny").trials()
    except NoSuchStudy:
        return []


def until(condition: Callable[[], object], process: subprocess.Popen) -> None:
    while not condition():
        assert process.poll() is None, "it ended too soon"
        time.sleep(0.1)


def until_said(words: str, process: "subprocess.Popen[str]") -> str:
    """All of stderr, up to the line with these words."""
    assert process.stderr is not None
    said = ""
    while words not in said:
        line = process.stderr.readline()
        assert line, f"it ended too soon: {said}"
        said += line
    return said


def starting(url: str, process: subprocess.Popen) -> bool:
    """Both trials have been given away, and both workers' processes exist."""
    running = [trial for trial in trials(url) if trial.state is State.RUNNING]
    return len(running) == 2 and len(children_of(process.pid)) == 2


def children_of(pid: int) -> list[int]:
    """The processes whose parent it is."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found


def check_ended(url: str, workers: list[int]) -> None:
    """Nobody is left at work, no trial is half done, none was blamed for its driver's end, and the study is free."""
    end = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < end, "a worker outlived its driver"
        time.sleep(0.05)
    left = trials(url)
    assert not [trial for trial in left if trial.state is State.RUNNING]
    assert all(trial.attempts == 0 for trial in left if trial.state is State.WAITING)
    assert {trial.failure.kind for trial in left if trial.failure} <= {FailureKind.INTERRUPTED}
    with Ledger(url) as ledger:
        assert ledger.read("tiny").owner() is None


@pytest.mark.parametrize("presses", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_ctrl_c_while_workers_are_still_starting(tmp_path: Path, url: str, presses: int) -> None:
    arguments = ["search", "tiny", "--trials", "1000", "--storage", url]
    loaded = tmp_path / "loaded"
    with started(tmp_path, *arguments, LOADED=loaded) as process:
        try:
            until(lambda: starting(url, process), process)
            workers = children_of(process.pid)
            os.killpg(process.pid, signal.SIGINT)
            said = until_said("Interrupted", process)  # two signals that come at once are one
            if presses == 1:
                loaded.touch()
            else:
                os.killpg(process.pid, signal.SIGINT)
            stdout, stderr = process.communicate(timeout=120)
        finally:
            process.kill()
    stderr = said + stderr
    assert process.returncode == 130, stderr
    then = "the results are written as they are, with 0 of 1000 trials so far"
    assert f"Interrupted: waiting for 2 children under way; then {then}. Ctrl-C again ends it at once\n" in stderr
    assert f"to go on: autodropout resume tiny --storage {url}" in stderr
    assert "Traceback" not in stderr
    assert ("out/tiny/report.html" in stdout) == (presses == 1)
    assert ("interrupted at once" in stderr) == (presses == 2)
    assert len(workers) == 2
    check_ended(url, workers)
    assert scored(url) == (2 if presses == 1 else 0)


def test_termination_at_work(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(tmp_path, "search", "tiny", "--trials", "1000", "--storage", url, SECONDS=0.5) as process:
        try:
            until_scored(url, process)
            workers = children_of(process.pid)
            process.terminate()
            stdout, stderr = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, stdout) == (128 + signal.SIGTERM, "")
    assert f"terminated; to go on: autodropout resume tiny --storage {url}" in stderr
    assert "Traceback" not in stderr
    check_ended(url, workers)
    tiny_recipe.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    wanted = scored(url) + 4
    told = json.loads(ok("resume", "--trials", str(wanted), "--workers", "1", "--storage", url, "--json"))
    assert told["scored"] == wanted


def test_a_terminal_that_is_closed(tmp_path: Path, url: str) -> None:
    ours, theirs = pty.openpty()

    def at_a_terminal() -> None:
        os.login_tty(theirs)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup these tests would bequeath that it is ignored

    process = subprocess.Popen(
        command("search", "tiny", "--trials", "1000", "--storage", url),
        cwd=tmp_path,
        env=environment(SECONDS=0.5, TERM="xterm"),
        preexec_fn=at_a_terminal,
    )
    os.close(theirs)
    shown = b""

    def at_work() -> bool:
        nonlocal shown
        while select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 4096)
        return b"2 running" in shown and scored(url) > 0

    try:
        until(at_work, process)
        workers = children_of(process.pid)
        os.close(ours)  # the kernel sends SIGHUP, and nothing can be shown any more
        assert process.wait(timeout=120) != 0
    finally:
        process.kill()
        process.wait()
    check_ended(url, workers)


def test_a_full_disk(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger may grow to 400 KB, then the first checkpoint does not fit."""
    tiny_recipe.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)

    def small_engine(address: Address) -> Engine:
        engine = write_engine(address)
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count=100"))
        return engine

    with monkeypatch.context() as patch:
        patch.setattr(ledger_module, "write_engine", small_engine)
        result = run("search", "tiny", "--workers", "1", "--storage", url)
    assert result.exit_code == 1
    *_, error, advice = result.stderr.splitlines()
    assert error.endswith("database or disk is full. Nothing of this write was kept; what was written before is intact")
    assert advice == f"to go on: autodropout resume tiny --storage {url}"
    assert scored(url) == 4
    check_ended(url, [])
    assert json.loads(ok("resume", "--storage", url, "--json"))["updates"] == 2


@pytest.mark.slow
def test_a_real_full_disk(tmp_path: Path) -> None:
    """A file system of 3 MB, in a namespace of its own; then it is made larger."""
    disk = tmp_path / "disk"
    disk.mkdir()
    namespace = ["unshare", "-Urm"]
    mount = f"mount -t tmpfs -o size=3m none {disk}"
    if not shutil.which("unshare") or subprocess.run([*namespace, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    tiny = shlex.join(command())
    script = f"""
        {mount} && cd {disk} || exit
        {tiny} search tiny --workers 1; echo "ended with $?"
        {tiny} status; echo "ended with $?"
        {tiny} best --out best.json; echo "ended with $?"
        mount -o remount,size=64m {disk} && {tiny} resume
    """
    done = subprocess.run(
        [*namespace, "sh", "-c", script], env=environment(), capture_output=True, text=True, timeout=120, check=True
    )
    assert re.findall(r"^ended with (.)$", done.stdout, re.M) == ["1", "0", "1"]
    assert "database or disk is full" in done.stderr
    assert "best.json: No space left on device" in done.stderr
    assert "ended     4 of 8" in done.stdout
    assert "out/tiny/report.html" in done.stdout
    assert "Traceback" not in done.stderr


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
