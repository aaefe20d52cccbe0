"""Policies that come with the package: found by name, listed by a command, each with its provenance."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import autodropout as ad
from autodropout.cli import app
from autodropout.policies import bundled
from autodropout.spaces import Provenance


def test_every_bundled_policy_says_where_it_comes_from() -> None:
    for name in bundled():
        provenance = ad.load(name).provenance
        assert provenance is not None
        for what in ("space", "study", "trial", "score", "model", "data", "rate", "date"):
            assert getattr(provenance, what) is not None, f"{name}: {what}"


@pytest.mark.parametrize("searcher", ["controller", "controller-paper", "random"])
def test_those_of_penn_treebank_are_the_final_tables(searcher: str) -> None:
    """Tokens are those that were chosen last, rate and score those of the last table that has the policy."""
    folder, method = Path(__file__).parents[2] / "results/ptb", f"policy of {searcher}"
    honest, race = (json.loads((folder / f"{name}.json").read_text()) for name in ("honest", "race"))
    chosen = {f"policy of {one['method']}": one["tokens"] for one in race["chosen"]}
    policy = ad.load(f"ptb-{searcher}")
    assert list(ad.TransformerSpace().encode(policy)) == (honest["policies"] | chosen)[method]
    tables = (race if method in chosen else honest)["tables"]
    rows = next(rows for name, rows in tables.items() if name.startswith("validation"))
    (row,) = (row for row in rows if row["method"] == method)
    assert policy.provenance.rate == row["rate"]
    assert 80 / policy.provenance.score == pytest.approx(row["mean"], rel=1e-4), "more is better"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for the package's folder of policies."""
    monkeypatch.setattr("importlib.resources.files", lambda package: {"autodropout.policies": tmp_path}[package])
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["policies", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_lists_them(folder: Path) -> None:
    assert "there are none yet" in run()
    assert json.loads(run("--json")) == {"policies": {}}
    space = ad.TransformerSpace()
    for name, trial in (("b", 1), ("a", 2)):
        found = Provenance(study="made", trial=trial)
        space.decode(space.encode(space.sample(trial)), found).save(folder / f"{name}.json")
    (folder / "__init__.py").touch()
    assert list(bundled()) == ["a", "b"]
    said = run()
    assert said.index("a  transformer policy") < said.index("b  transformer policy")
    assert "trial: 2" in said
    assert list(json.loads(run("--json"))["policies"]) == ["a", "b"]
    assert ad.load("a") == space.decode(space.encode(space.sample(2)), Provenance(study="made", trial=2))
    with pytest.raises(ad.PolicyError, match=r"no bundled policy has this name \(a, b\)"):
        ad.load("c")
