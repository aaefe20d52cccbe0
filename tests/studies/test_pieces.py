"""What the Penn Treebank study is made of: full jobs, pieces that end in time, searches that are resumed."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_study import Fake, install, piece_of, prepared, run, trained

import autodropout as ad
import studies
from autodropout.spaces import TRANSFORMER_SITES
from autodropout.tables import Entry, Journal, TableTrial
from studies import finalists, pieces
from studies.ptb import descent, study, trainings


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def piece(tmp_path: Path, together: int = 3, minutes: float = 1.0) -> study.Piece:
    return piece_of("any", "--smoke", "--folder", str(tmp_path), "--minutes", str(minutes), "--together", str(together))


def children(count: int, rates: Sequence[float] = (0.1,)) -> list[pieces.Child]:
    return [pieces.Child("random", number, trainings.NONE, rate, seed=7) for rate in rates for number in range(count)]


def test_jobs_are_full(tmp_path: Path) -> None:
    found = piece(tmp_path).train("p", "small", 4_000, children(4, (0.1, 0.2)))
    assert trained == [3, 3, 2], "children of different rates are trained together"
    assert prepared == [3, 3, 3], "there is room for a full job, also before one that is not"
    assert [(entry.trial.rate, entry.trial.number) for entry in found] == [(r, n) for r in (0.1, 0.2) for n in range(4)]
    assert found[0].trial.curve[0] == (1, found[0].trial.value)
    assert all(entry.test is None for entry in found)
    again = piece(tmp_path).train("p", "small", 4_000, children(5, (0.1, 0.2)))
    assert trained[3:] == [2], "what is in the journal is not trained again"
    assert again[:4] == found[:4]
    with pytest.raises(SystemExit, match="has another policy under"):
        piece(tmp_path).train("p", "small", 4_000, [children(1)[0]._replace(tokens=trainings.families()["dropout"])])
    for trial, test in piece(tmp_path).train("final", "small", 4_000, children(4), test=True):
        assert test == pytest.approx(0.99 * trial.value), "by the weights that were best on validation data"


def test_a_piece_ends_before_its_time_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is not begun where the last one says that it would not fit."""
    first = piece(tmp_path)
    clock = iter(range(0, 10_000, 30))  # so a job takes 30 seconds, and one 4 times longer would take 120
    times = SimpleNamespace(monotonic=time.monotonic, perf_counter=lambda: next(clock))
    monkeypatch.setattr(pieces, "time", times)
    first.train("p", "small", 4_000, children(9)[:3])
    with pytest.raises(SystemExit) as ended:
        first.train("p", "small", 16_000, children(9))
    assert ended.value.code == pieces.PAUSED
    assert len(Journal(tmp_path / "any.jsonl").entries) == 3
    assert len(piece(tmp_path, minutes=10).train("p", "small", 16_000, children(9))) == 9
    with pytest.raises(SystemExit):  # another journal knows what a job takes, too
        piece_of("other", "--folder", str(tmp_path), "--minutes", "0.3").train("p", "small", 16_000, children(1))


def test_a_child_that_diverged_is_kept_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "TRAININGS", {"small": lambda steps: Fake(steps, diverges=True)})
    first, second = piece(tmp_path).train("p", "small", 4_000, children(2))
    assert (first.trial.value, first.trial.failure) == (None, "diverged")
    assert second.trial.failure is None
    assert pieces.rewards_of([first, second]) == [0.0, second.trial.value]


@pytest.mark.parametrize("method", ["controller", "random"])
def test_a_search_goes_on_as_if_it_had_not_been_cut(tmp_path: Path, method: str) -> None:
    def tokens(folder: str) -> list[tuple[int, ...]]:
        found = Journal(tmp_path / folder / "search.jsonl").entries
        return [entry.trial.tokens for entry in sorted(found, key=lambda entry: entry.trial.number)]

    def go(folder: str, trials: int) -> None:
        run("search", "--folder", str(tmp_path / folder), "--methods", method, "--trials", str(trials))

    go("cut", 32)
    go("cut", 64)
    go("whole", 64)
    assert tokens("cut") == tokens("whole")
    assert len(set(tokens("whole"))) == 64


def test_the_classical_methods_are_policies() -> None:
    found = trainings.families()
    assert len(set(found.values())) == len(found) == 6
    everywhere = trainings.SPACE.decode(found["variational_dropout, all sites"])
    assert tuple(everywhere.sites) == TRANSFORMER_SITES
    assert {str(pattern) for pattern in everywhere.sites.values()} == {"size=70 stride=0 share_t"}
    usual = trainings.SPACE.decode(found["word_dropout"])
    used = tuple(site for site, pattern in usual.sites.items() if not pattern.is_none)
    assert used == ad.baseline("word_dropout").transformer


def test_finalists_differ_in_what_they_do() -> None:
    """Tokens of a place without a pattern do not make another policy."""
    child = children(1)[0]
    same = tuple(1 if place % 4 == 3 else token for place, token in enumerate(child.tokens))
    other = (1, *child.tokens[1:])
    entries = [
        Entry(
            TableTrial(
                phase="p",
                method="random",
                number=number,
                tokens=tokens,
                rate=0.1,
                seed=0,
                training="small",
                steps=1,
                value=value,
            )
        )
        for number, (tokens, value) in enumerate([(child.tokens, 0.5), (same, 0.7), (other, 0.6)])
    ]
    assert [entry.trial.number for entry in finalists.distinct(trainings.SPACE, entries, 10)] == [1, 2]


def test_learning_rates(tmp_path: Path) -> None:
    run("descent", "--smoke", "--folder", str(tmp_path))
    record = json.loads((tmp_path / "descent.json").read_text())
    assert [(row["lr"], row["warmup"]) for row in record["rows"]] == [(1e-3, 0), (1e-3, 200)]
    assert record["by_frequency"] == pytest.approx((4 / 8 * 3 / 8 * 1 / 8) ** (-1 / 3))
    half = descent.descending("small", 5e-4, 200, 1000)
    assert (half.lr, half.lr_after_cosine, half.lr_constant, half.warmup) == pytest.approx((5e-4, 5e-5, 2.5e-5, 200))


def test_who_has_learned(tmp_path: Path) -> None:
    """Whoever is below half of what frequencies give; one that diverged is not, nor one that only counts words."""
    some = piece(tmp_path)
    children = [*some.nothing(2), *some.baselines(1, [0.1])[:1], *some.policies(3, 0.1, 0)]
    row = descent.judge(children, [200.0, 690.0, 150.0, None, 340.0, 345.0], 684.0)
    assert row == {
        "learned": 3,
        "children": 6,
        "none": [200.0, 690.0],
        "classical": [150.0],
        "random": [340.0, 345.0, math.inf],
    }


def test_the_stages_need_no_database() -> None:
    """A machine with a GPU may have torch and little else."""
    code = (
        "import sys\n"
        "for name in ('sqlalchemy', 'pyarrow', 'sklearn', 'matplotlib', 'optuna', 'ray', 'typer'):\n"
        "    sys.modules[name] = None\n"
        "import studies.ptb.__main__, studies.cifar.__main__\n"
    )
    folder = Path(studies.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=folder)
