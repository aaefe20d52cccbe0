"""The commands, called as a shell would call them: inside this process, or in one of their own."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import tiny_recipe
from typer.testing import CliRunner, Result

from autodropout.cli import app
from autodropout.search.errors import NoSuchStudy
from autodropout.search.ledger import Ledger
from autodropout.search.states import SCORED


def run(*arguments: str | Path, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="autodropout", env=env)


def ok(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*arguments: str | Path, code: int = 1) -> str:
    """What a command that must fail says: a line on stderr, nothing on stdout."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    if code == 1:
        assert re.fullmatch(r"error: [^\n]+\n", result.stderr), result.stderr
    return result.stderr


def environment(**settings: object) -> dict[str, str]:
    """With the settings of `tiny_recipe`."""
    paths = [str(Path(tiny_recipe.SCRIPT).parents[1]), *filter(None, sys.path)]
    given = {name: str(value) for name, value in settings.items()}
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | given


def command(*arguments: str) -> list[str]:
    """With the recipe `tiny`."""
    return [sys.executable, tiny_recipe.SCRIPT, *arguments]


def started(folder: Path, *arguments: str, **settings: object) -> "subprocess.Popen[str]":
    """In a session of its own, so that a signal to its group is what a terminal's Ctrl-C would be."""
    return subprocess.Popen(
        command(*arguments),
        cwd=folder,
        env=environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def scored(url: str) -> int:
    try:
        with Ledger(url) as ledger:
            counts = ledger.read("tiny").counts()
    except NoSuchStudy:
        return 0  # it has not been begun
    return sum(counts[state] for state in SCORED)


def until_scored(url: str, process: "subprocess.Popen[str]", beyond: int = 0) -> None:
    while scored(url) <= beyond:
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
