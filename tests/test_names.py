"""The public names: found in every order of imports, and not paid for by those who do not use them."""

import ast
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import autodropout as ad

ROOT = Path(ad.__file__).parent
LAZY = [path for path in [ROOT / "__init__.py", *ROOT.glob("*/__init__.py")] if "lazy(\n" in path.read_text()]


def run(code: str, *arguments: str) -> str:
    """What a fresh interpreter prints."""
    line = [sys.executable, "-W", "error::ImportWarning", "-c", code, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", LAZY, ids=lambda path: path.parent.name)
def test_type_checkers_see_what_is_there(path: Path) -> None:
    """The imports under TYPE_CHECKING, the table for `lazy`, and `__all__`."""
    seen, table = set(), {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autodropout."):
            seen |= {(node.module, alias.name) for alias in node.names}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy":
            table = ast.literal_eval(node.args[1])
    package = importlib.import_module(".".join(["autodropout", *path.parent.relative_to(ROOT).parts]))
    lazy = {(home, name) for home, names in table.items() for name in names}
    eager = {(home, name) for home, name in seen - lazy if home != "autodropout.lazy"}
    assert lazy <= seen
    assert {name for _, name in lazy | eager} == set(package.__all__) <= set(dir(package))
    for home, name in lazy:
        assert getattr(package, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = package.nonsense


@pytest.mark.parametrize(
    "imports",
    [
        "import autodropout",
        "import autodropout.search.driver",
        "from autodropout.search.driver import Driver",
        "from autodropout import search; import autodropout.search",
        "import autodropout.study, autodropout.search.ledger",
        "from autodropout import *; import autodropout.search.local",
        "import autodropout as ad; ad.search; from autodropout.search import driver; driver.Driver",
    ],
)
def test_search_is_the_function_in_every_order(imports: str) -> None:
    assert run(f"{imports}\nimport autodropout as ad\nprint(ad.search.__module__, callable(ad.search))") == (
        "autodropout.study True\n"
    )


@pytest.mark.parametrize(
    "imports",
    [
        "import autodropout.attach",
        "from autodropout import attach",
        "import autodropout.attach.binding; from autodropout.attach import space",
        "from autodropout.attach.schedule import RateSchedule",
    ],
)
def test_attach_is_the_function_in_every_order(imports: str) -> None:
    code = "import autodropout as ad; from autodropout import attach; print(attach is ad.attach, ad.attach.__module__)"
    assert run(f"{imports}\n{code}") == "True autodropout.attach.binding\n"


def test_a_function_that_uses_the_package_travels() -> None:
    """As a child does: by value, with the package by reference."""
    code = (
        "import sys, cloudpickle, autodropout as ad\n"
        "def child(policy, seed): return ad.search, ad.ConvSpace, policy, seed\n"
        "sys.stdout.buffer.write(cloudpickle.dumps(child))"
    )
    sent = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=120).stdout
    policy = ad.ConvSpace(groups=((8, 8),)).sample(seed=0)
    assert pickle.loads(sent)(policy, 1) == (ad.search, ad.ConvSpace, policy, 1)
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_what_looks_at_studies_pays_for_no_torch(storage: str) -> None:
    """`--help` and the completion of commands and options do not even pay for a database."""
    code = """
import sys
from typer.testing import CliRunner
from autodropout.cli import app

def run(*arguments, **environment):
    result = CliRunner().invoke(app, arguments, prog_name="autodropout", env=environment)
    assert result.exit_code == 0, result.output
    return result.output

def complete(line):
    words = {"_AUTODROPOUT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return run(**words).split()

def unused(*packages):
    assert not set(packages) & set(sys.modules), set(packages) & set(sys.modules)

for command in ("search", "resume", "status", "best", "show", "report", "compare", "export"):
    assert command in run("--help")
    assert f"autodropout {command}" in run(command, "--help")
assert complete("autodropout sta") == ["status"]
assert "--storage" in complete("autodropout search digits --s")
assert complete("autodropout search digits --proposer ev") == ["evolution"]
unused("torch", "numpy", "matplotlib", "sqlalchemy")
storage = sys.argv[1]
assert complete(f"autodropout status --storage {storage} s") == ["small"]
assert complete("autodropout search d") == ["digits"]
assert "local" in complete("autodropout search digits --engine ")
assert "32 of 32" in run("status", "--storage", storage)
assert "convnet" in run("best", "--storage", storage)
unused("torch", "numpy", "matplotlib", "optuna", "ray")
"""
    run(code, storage)


@pytest.mark.slow
def test_a_users_script_is_type_checked(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import torch\n"
        "import autodropout as ad\n"
        "from autodropout import attach, search\n"
        "from autodropout.search.driver import Progress\n"
        "def child(policy: ad.Policy, seed: int, report: object) -> float:\n"
        "    on: ad.Attachment = ad.attach(torch.nn.Linear(1, 1), policy, rate=0.1, example=torch.ones(1))\n"
        "    return 0.5\n"
        "def watch(progress: Progress) -> None: ...\n"
        "study: ad.Study = ad.search(ad.ConvSpace(groups=((8, 8),)), child, 1, watch=watch)\n"
        "reveal_type(ad.load('policy.json'))\n"
        "reveal_type(attach)\n"
        "reveal_type(search)\n"
        "ad.nonsense\n"
    )
    line = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path), str(script)]
    said = subprocess.run(line, capture_output=True, text=True, timeout=600, cwd=ROOT.parents[1]).stdout
    notes = [line.partition("mine.py:")[2] for line in said.splitlines() if "mine.py" in line]
    assert "autodropout.spaces.policy." in notes[0], said
    assert "def (model: " in notes[1], said
    assert "def (space: " in notes[2], said
    assert 'has no attribute "nonsense"' in notes[3], said
    assert len(notes) == 4, said
