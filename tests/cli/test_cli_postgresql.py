"""The commands on a PostgreSQL server: a whole study's life, and no password in anything that they show or leave."""

import json
import signal
import subprocess
import time
from pathlib import Path

import optuna
import pyarrow.parquet
import pytest
import tiny_recipe
from cli_tools import ok, run, started, until_scored

import autodropout as ad
import small_study
from autodropout.search.ledger import Ledger
from autodropout.search.records import StudyInfo
from autodropout.search.states import State
from ledger_server import PASSWORD, Server

SECRET = "geheim"  # survives every way of quoting
assert SECRET in PASSWORD


def kill_at_work(search: "subprocess.Popen[str]", url: str) -> None:
    """While a trial runs: between two of them there are moments when none does."""
    with Ledger(url) as ledger:
        study = ledger.read("tiny")
        while True:
            search.send_signal(signal.SIGSTOP)
            if study.counts()[State.RUNNING]:
                break
            search.send_signal(signal.SIGCONT)
            time.sleep(0.05)
    search.kill()


def test_a_study_from_its_first_trial_to_its_export(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    tiny_recipe.install(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    url, seen = server.schema(), []
    options = ("--trials", "1000", "--workers", "1", "--storage", url)

    def told(*arguments: str | Path) -> str:
        seen.append(ok(*arguments))
        return seen[-1]

    with started(tmp_path, "search", "tiny", *options, SECONDS=0.1) as search:
        until_scored(url, search)
        assert "process" in told("status", "--storage", url)
        kill_at_work(search, url)
        seen += search.communicate()
    before = json.loads(told("status", "--storage", url, "--json"))
    assert before["owner"] is None
    assert before["trials"]["running"] > 0
    assert before["wanted"] == 1000

    monkeypatch.setenv("BROKEN", "1")
    broken = run("--debug", "resume", "--storage", url)
    seen.append(broken.output)
    assert broken.exit_code == 1
    assert "no such column" in broken.stderr
    assert "to go on: autodropout resume tiny --storage 'postgresql://autodropout:***@" in broken.stderr
    monkeypatch.delenv("BROKEN")
    wanted = before["scored"] + 8
    assert json.loads(told("resume", f"{url}#tiny", "--trials", str(wanted), "--json"))["scored"] == wanted
    assert json.loads(told("status", "--storage", url, "--json"))["wanted"] == wanted

    files = [tmp_path / name for name in ("best.json", "report.html", "trials.parquet", "curves.png", "journal")]
    best, report, table, curves, journal = files
    told("best", "tiny", "--storage", url, "--out", best)
    told("report", f"{url}#tiny", "--out", report)
    told("compare", f"{url}#tiny", "--out", curves)
    told("export", "--storage", url, "--out", table, "--optuna", journal)
    sqlalchemy_url = server.schema().replace("postgresql://", "postgresql+psycopg://")
    told("export", "--storage", url, "--optuna", sqlalchemy_url)
    found = ad.Study(url, "tiny")
    assert ad.load(best) == found.best.policy
    assert pyarrow.parquet.read_table(table).num_rows == len(found.trials)
    copies = optuna.storages.RDBStorage(sqlalchemy_url)
    assert optuna.load_study(study_name="tiny", storage=copies).best_value == found.best.value
    copies.remove_session()
    copies.engine.dispose()
    assert found.reader.counts()[State.RUNNING] == 0
    assert len({update.version for update in found.reader.updates()}) == wanted // 4

    assert "***" in report.read_text()
    for file in [*files, *(tmp_path / "out").rglob("*.*")]:
        assert SECRET.encode() not in file.read_bytes(), file
    assert SECRET not in "".join([*seen, *capfd.readouterr()])


def test_errors_show_no_password_and_debug_shows_none_either(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = server.schema()
    with Ledger(url) as ledger, ledger.drive(StudyInfo("mine", small_study.SPACE, "random", 0, 1, 1, 0.0)):
        failing = [
            ["status", "--storage", url.replace("127.0.0.1", "localhost:1@127.0.0.1")],
            ["status", "--storage", server.url("postgres", password=f"{SECRET}-wrong")],
            ["status", "--storage", server.url(f"no-{SECRET[:3]}", port=1)],
            ["status", "--storage", server.url("nowhere")],
            ["status", "--storage", f"{url}&passwort={SECRET}"],
            ["status", "--storage", f"{url}&sslpassword={SECRET}&sslmode=nonsense"],
            ["best", "mine", "--storage", url],
            ["best", "other", "--storage", url],
            ["report", f"{url}#other"],
            ["resume", "mine", "--storage", url],
            ["compare", f"{url}#other", "--storage", "sqlite:///missing.db"],
            ["export", "mine", "--storage", url, "--optuna", server.url("nowhere")],
        ]
        for arguments in failing:
            for debug in ([], ["--debug"]):
                result = run(*debug, *arguments)
                assert result.exit_code == 1, result.output
                assert SECRET not in result.output, arguments
                assert ("Traceback" in result.stderr) == bool(debug)
    assert list(tmp_path.iterdir()) == []
