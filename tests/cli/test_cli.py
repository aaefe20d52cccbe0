"""The commands, called as a shell would call them: what they print, what they leave, how they end."""

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import matplotlib.image
import optuna
import pyarrow.parquet
import pytest
import tiny_recipe
from cli_tools import ok, refused, run

import autodropout as ad
import small_study
from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposal
from autodropout.search.records import Failure, StudyInfo
from autodropout.search.states import FailureKind
from autodropout.spaces import parse


def test_every_command_helps() -> None:
    """With a line in the list that is not cut off, and examples whose options there are."""
    said = ok("--help")
    listed = re.findall(r"^  ([a-z][a-z-]*)  +(\S.*)$", said.partition("Commands:")[2], re.M)
    assert {"search", "resume", "status", "best", "show", "report", "compare", "export"} <= {name for name, _ in listed}
    for command, line in listed:
        assert not line.endswith("..."), command
        helped = ok(command, "--help")
        assert f"Usage: autodropout {command}" in helped
        examples = re.findall(rf"^ +(?:\S+ )?autodropout {command}(?: (.*))?$", helped, re.M)
        assert not examples or f"\n  Example{'s' if len(examples) > 1 else ''}:\n" in helped, command
        for example in examples:
            for option in re.findall(r"--[a-z0-9-]+", example):
                assert re.search(rf"^  {option}\b", helped, re.M), f"{command}: there is no {option}"
    assert run().exit_code == 2
    assert ok("--version") == f"autodropout {ad.__version__}\n"


def test_status(storage: str) -> None:
    said = ok("status", "small", "--storage", storage)
    with Ledger(storage) as ledger:
        best = ledger.read("small").best()
    assert best is not None
    assert re.search(rf"^best +{best.value:.6g}, by trial {best.number}$", said, re.M)
    assert re.search(r"^ended +32 of 32$", said, re.M)
    assert re.search(r"^running +no, it has all its trials$", said, re.M)
    assert re.search(r"^trials +32 learned from$", said, re.M)
    facts = json.loads(ok("status", "--storage", storage, "--json"))  # the only study
    assert facts["trials"]["applied"] == facts["scored"] == 32
    assert facts["best"] == {"trial": best.number, "value": best.value, "drops_nothing": False}
    assert facts["diverged"] == facts["stopped_early"] == 0
    assert facts["updates"] == 2
    assert facts["owner"] is None
    assert facts["per_minute"] > 0


@pytest.mark.parametrize(
    ("fates", "status", "compared"),
    [
        (["diverged"] * 3, "3 of 8 (0 scored, 3 diverged)", "no score in 3 trials (0 scored, 3 diverged)"),
        (["scored", "diverged"], "2 of 8 (1 scored, 1 diverged)", "best 0.5 in 2 trials (1 scored, 1 diverged)"),
        (
            ["scored", "scored", "stopped", "failed", "diverged", "diverged"],
            "5 of 8 (2 scored, 1 stopped early, 2 diverged)",
            "best 0.5 in 5 trials (2 scored, 1 stopped early, 2 diverged)",
        ),
    ],
)
def test_trials_that_diverged_are_not_said_to_be_scored(
    tmp_path: Path, fates: list[str], status: str, compared: str
) -> None:
    url, broken = f"sqlite:///{tmp_path / 'study.db'}", Failure(FailureKind.DIVERGED, "the child's score is nan")
    info = StudyInfo("mine", small_study.SPACE, "random", 0, 9, 1, 0.0, attributes={"trials": 8})
    count = len(fates)
    with Ledger(url) as ledger, ledger.drive(info) as owned:
        owned.propose([Proposal(small_study.SPACE.encode(small_study.SPACE.sample(i)), -1.0, 0) for i in range(count)])
        owned.start(range(count))
        for number, fate in enumerate(fates):
            match fate:
                case "scored":
                    owned.finish(number, 0.5)
                case "stopped":
                    owned.stop(number, 0.6)
                case "diverged":
                    owned.finish(number, 0.7, failure=broken)
                case "failed":
                    owned.fail(number, broken)
        for learned in False, True:
            if learned:
                valued = [number for number, fate in enumerate(fates) if fate != "failed"]
                for version, number in enumerate(valued, start=1):
                    owned.apply([number], version, {}, b"state")
            said = ok("status", "--storage", url)
            assert re.search(rf"^ended +{re.escape(status)}$", said, re.M), said
            assert " scored and" not in said
            facts = json.loads(ok("status", "--storage", url, "--json"))
            assert (facts["diverged"], facts["stopped_early"]) == (fates.count("diverged"), fates.count("stopped"))
            assert facts["scored"] == count - fates.count("failed")
            assert f"mine: {compared} by random\n" in ok(
                "compare", "mine", "--storage", url, "--out", tmp_path / "c.png"
            )


def test_who_drives_a_study_is_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    with Ledger(url) as ledger, ledger.drive(StudyInfo("mine", small_study.SPACE, "random", 0, 1, 1, 0.0)):
        facts = json.loads(ok("status", "--storage", url, "--json"))
        assert re.search(r"^driven by +process \d+ on ", ok("status", "--storage", url), re.M)
    assert re.search(r"^running +no \(the same call of ad\.search goes on\)$", ok("status", "--storage", url), re.M)
    assert facts["owner"]["pid"] > 0
    assert facts["best"] is None
    assert facts["per_minute"] is None


def test_a_search_that_was_cut_short_says_how_to_go_on(tiny: str) -> None:
    from autodropout.cli import plan

    info = StudyInfo("my own", small_study.SPACE, "random", 0, 1, 1, 0.0)
    begun = asdict(plan.Plan.of_recipe(tiny_recipe.TINY, "my own"))
    for url, where in ((tiny, f" --storage {tiny}"), ("sqlite:///autodropout.db", "")):
        with Ledger(url) as ledger:
            ledger.drive(replace(info, attributes=begun)).close()
        said = ok("status", f"{url}#my own")
        assert re.search(rf"^running +no \(autodropout resume 'my own'{where} goes on\)$", said, re.M), said
        assert "driven by" not in said


def test_trials_of_a_driver_that_was_killed_are_not_said_to_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    with Ledger(url) as ledger, ledger.drive(StudyInfo("mine", small_study.SPACE, "random", 0, 3, 1, 0.0)) as owned:
        owned.propose([Proposal(small_study.SPACE.encode(small_study.SPACE.sample(i)), -1.0, 0) for i in range(3)])
        owned.start([0, 1])
        assert "1 waiting, 2 running\n" in ok("status", "--storage", url)
    said = ok("status", "--storage", url)
    assert "1 waiting, 2 cut short when the driver ended (run again when the study is resumed)\n" in said
    assert json.loads(ok("status", "--storage", url, "--json"))["trials"]["running"] == 2


def test_best_is_a_policy_that_can_be_loaded(storage: str, tmp_path: Path) -> None:
    best = ad.Study(storage, "small").best
    printed = parse(ok("best", "small", "--storage", storage))
    assert printed == best.policy
    assert ok("best", "small", "--storage", storage, "--out", tmp_path / "best.json") == ""
    assert ad.load(tmp_path / "best.json") == best.policy
    told = json.loads(ok("best", "--storage", storage, "--json"))
    assert (told["trial"], told["value"], told["study"]) == (best.number, best.value, "small")
    assert parse(json.dumps(told["policy"])) == best.policy


def test_report_and_compare_write_files(storage: str, tmp_path: Path) -> None:
    assert ok("report", "small", "--storage", storage, "--out", tmp_path / "r.html") == f"{tmp_path / 'r.html'}\n"
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    curves = tmp_path / "curves.png"
    shutil.copy(storage.removeprefix("sqlite:///"), tmp_path / "copy.db")
    other = f"sqlite:///{tmp_path / 'copy.db'}"
    said = ok("compare", "small", f"{other}#small", "--storage", storage, "--out", curves)
    assert f"small in {other}: best" in said
    twice = ("compare", "small", f"{storage}#small", "--storage", storage, "--out", curves)
    assert refused(*twice) == f"error: study 'small' in {storage} is named twice: each has one curve\n"
    assert matplotlib.image.imread(curves).shape[1] > 500
    told = json.loads(ok("compare", "small", "--storage", storage, "--out", curves, "--json"))
    assert [study["study"] for study in told["studies"]] == ["small"]


def test_export(storage: str, tmp_path: Path) -> None:
    table, journal = tmp_path / "trials.parquet", tmp_path / "optuna.journal"
    ok("export", "--storage", storage, "--out", table, "--optuna", journal, "--optuna-name", "copy")
    assert pyarrow.parquet.read_table(table).num_rows == 32
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    copy = optuna.load_study(study_name="copy", storage=optuna.storages.JournalStorage(backend))
    assert copy.best_value == ad.Study(storage, "small").best.value
    assert "already" in refused("export", "--storage", storage, "--optuna", journal, "--optuna-name", "copy")
    assert "--out trials.parquet" in refused("export", "--storage", storage, code=2)


def test_no_file_is_called_what_it_is_not(storage: str, tmp_path: Path) -> None:
    for command, name, said in (
        ("export", "t.csv", "t.csv: a table is a .parquet, not a .csv"),
        ("export", "t.XLSX", "t.XLSX: a table is a .parquet, not a .xlsx"),
        ("report", "r.pdf", "r.pdf: a report is an .html, not a .pdf"),
    ):
        ask = (command, "--storage", storage, "--out", tmp_path / name)
        if command == "export":
            ask = (*ask, "--optuna", tmp_path / "optuna.csv")  # a journal's name is its user's
        assert refused(*ask) == f"error: {tmp_path / said}\n"
    assert not list(tmp_path.iterdir()), "the Optuna journal is not begun either"
    ok("export", "--storage", storage, "--out", tmp_path / "T.PARQUET", "--optuna", tmp_path / "optuna.csv")
    ok("report", "--storage", storage, "--out", tmp_path / "r.htm")
    ok("report", "--storage", storage, "--out", tmp_path / "plain")
    assert {path.name for path in tmp_path.iterdir()} >= {"T.PARQUET", "optuna.csv", "r.htm", "plain"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["search", "nonsense"], "tiny"),
        (["search", "tiny", "--proposer", "nonsense"], "evolution"),
        (["search", "tiny", "--engine", "nonsense"], "local"),
        (["search", "tiny", "--trials", "0"], "--trials"),
        (["search"], "RECIPE"),
        (["nonsense"], "nonsense"),
        (["status", "--nonsense"], "--nonsense"),
    ],
)
def test_what_cannot_be_understood(tiny: str, arguments: list[str], said: str) -> None:
    assert said in refused(*arguments, code=2)
    assert not Path("autodropout.db").exists()


def test_what_is_not_there(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no file autodropout.db" in refused("status")
    assert "'other'" in refused("best", "other", "--storage", storage)
    assert "'small'" in refused("report", "other", "--storage", storage)
    assert "sqlite:///" in refused("status", "--storage", "study.db")
    assert "'mysql'" in refused("status", "--storage", "mysql://host/database")
    assert "nowhere" in refused("report", "--storage", storage, "--out", tmp_path / "nowhere" / "report.html")
    assert "nowhere" in refused("compare", "small", "--storage", storage, "--out", tmp_path / "nowhere" / "curves.png")
    assert list(tmp_path.iterdir()) == []


def test_several_studies_need_a_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    for name in ("one", "two"):
        with Ledger(url) as ledger:
            ledger.drive(StudyInfo(name, small_study.SPACE, "random", 0, 1, 1, 0.0)).close()
    assert "one, two" in refused("status", "--storage", url)
    assert json.loads(ok("status", f"{url}#two", "--json"))["study"] == "two"
    assert "no scored trial" in refused("best", f"{url}#two")


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--storage", "postgresql://me:hush-hush@127.0.0.1:1/study"],  # nobody listens
        ["status", "--storage", "postgresql://me:hush-hush@host:port/study"],
        ["status", "--storage", "postgresql://me:hush@hush@host/study"],
        ["status", "postgresql://me:hush-hush@127.0.0.1:1/study#mine"],
        ["status", "postgresql://127.0.0.1:1/study?password=hush-hush"],
        ["status", "one", "postgresql://me:hush-hush@host/study"],
        ["postgresql://me:hush-hush@host/study"],
        ["search", "postgresql://me:hush-hush@host/study"],
    ],
)
def test_passwords_are_never_shown(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert "hush" not in result.output
    assert "Traceback" not in result.output


def test_optunas_password_is_not_shown(storage: str) -> None:
    url = "postgresql+psycopg://me:hush-hush@127.0.0.1:1/study"
    assert "hush" not in refused("export", "--storage", storage, "--optuna", url)


def test_debug_shows_where(storage: str) -> None:
    result = run("--debug", "best", "other", "--storage", storage)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_the_storage_can_come_from_the_environment(storage: str) -> None:
    result = run("status", "--json", env={"AUTODROPOUT_STORAGE": storage})
    assert json.loads(result.stdout)["study"] == "small"


def test_the_shell_completes(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(line: str, **environment: str) -> list[str]:
        typed = {"_AUTODROPOUT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return run(env=typed | environment).stdout.split()

    assert completed("autodropout rep") == ["report"]
    assert "evolution" in completed("autodropout search digits --proposer ")
    assert "--storage" in completed("autodropout status --")
    assert completed(f"autodropout status --storage {storage} ") == ["small"]
    assert completed("autodropout status --storage sqlite:///missing.db ") == []
    assert completed("autodropout resume s", AUTODROPOUT_STORAGE=storage) == ["small"]
    monkeypatch.chdir(tmp_path)
    assert completed("autodropout best ") == []
    shutil.copy(storage.removeprefix("sqlite:///"), "autodropout.db")  # where studies are unless said otherwise
    assert completed("autodropout best ") == ["small"]
