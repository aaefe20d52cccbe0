"""The commands about policies: `show` and `policies`."""

import json
import re
from pathlib import Path

import matplotlib.image
import pytest
from cli_tools import ok, refused, run

import autodropout as ad
from autodropout.spaces import Provenance


def test_show_tells_and_draws(storage: str, tmp_path: Path) -> None:
    file, picture = tmp_path / "best.json", tmp_path / "masks.png"
    ok("best", "--storage", storage, "--out", file)
    said = ok("show", file, "--out", picture)
    assert "convnet policy, 2 groups" in said
    assert str(picture) in said
    assert matplotlib.image.imread(picture).ndim == 3
    assert "made: 20" in said
    assert re.search(r"; with: .*\bpython 3\.", " ".join(said.split()))
    for raw in ("'", "{", "space:"):
        assert raw not in said, "data of Python"
    assert "No such file" in refused("show", tmp_path / "missing.json")
    said = refused("show", file, "--out", tmp_path / "masks.bmp")
    assert said == f"error: {tmp_path / 'masks.bmp'}: a picture is a .png, .svg or .pdf, not a .bmp\n"
    file.write_text("{}")
    refused_with_list = run("show", str(file))
    assert refused_with_list.exit_code == 1
    assert "Traceback" not in refused_with_list.stderr


def test_who_names_a_study_learns_how_its_best_becomes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hint = "a study's best: autodropout best 'my study' --out policy.json\n"
    for command in (("show",), ("train", "digits", "--policy"), ("transfer", "digits", "--policy")):
        said = run(*command, "my study")
        assert said.exit_code == 1
        assert re.fullmatch(rf"error: my study: no bundled policy has this name [^\n]+\n{hint}", said.stderr), command
    Path("my study").write_text("{}")  # a file, which its path would name
    assert "for a file, write ./my study" in refused("show", "my study")
    assert "autodropout best" not in run("show", "./my study").stderr
    assert "autodropout best" not in run("show", "my/study").stderr


def test_a_policy_is_drawn_at_its_own_rate(tmp_path: Path) -> None:
    def drawn(*arguments: str) -> set[str]:
        ok("show", "ptb-controller", "--out", tmp_path / "masks.svg", *arguments)
        return set(re.findall(r"at rate ([0-9.]+)", (tmp_path / "masks.svg").read_text()))

    assert drawn() == {f"{ad.load('ptb-controller').provenance.rate:g}"}
    assert drawn("--rate", "0.4") == {"0.4"}


def test_bundled_policies_are_told_in_a_few_lines() -> None:
    known = ad.load("ptb-controller").provenance
    lines = ok("policies").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("ptb-controller  "))
    assert lines[first] == "ptb-controller  transformer policy, 11 sites"
    said = "\n".join(line.strip() for line in lines[first + 1 :])
    assert said.startswith(f"study: {known.study}; trial: {known.trial}; score: {known.score:.4g}")
    unit = f"{known.score:.4g} (80 / perplexity: a validation perplexity of {80 / known.score:.2f})"
    assert unit in said.replace("\n", " ")
    assert f"  rate: {known.rate:g}" in lines[first + 2 :]
    assert "tokens, 10^" not in "\n".join(lines), "the space"
    assert max(map(len, lines)) <= 120
    assert json.loads(ok("policies", "--json"))["policies"]["ptb-controller"]["provenance"]["score"] == known.score


def test_a_strangers_policy_does_not_control_the_terminal(tmp_path: Path) -> None:
    policy = ad.TransformerSpace().sample(0)
    known = Provenance(study="mine", score=0.5, note="harmless \x1b[2J")
    policy.model_copy(update={"provenance": known}).save(tmp_path / "p.json")
    said = ok("show", tmp_path / "p.json", "--out", tmp_path / "m.png")
    assert "\x1b" not in said
    assert "  study: mine; score: 0.5\n" in said, "its unit is not known"
