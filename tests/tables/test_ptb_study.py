"""The scripts of the Penn Treebank study, from proxy to table, with a training that takes no time."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import autodropout as ad
import ptb_finalists
import ptb_honest
import ptb_proxy
import ptb_search
import ptb_study
import ptb_table
from autodropout.spaces import TRANSFORMER_SITES, Policy
from autodropout.tables import Journal
from autodropout.training.run import Run

trained: list[int] = []
"""Of every job how many children it had."""


@dataclass(frozen=True)
class Fake:
    """Policies that use some sites and not others score best, at a rate of 0.1; with noise of the seed."""

    steps: int
    evaluate_every: int = 1
    batch: int = 1
    evaluation_batch: int = 1
    evaluation_words: int | None = None
    diverges: bool = False

    def smoke(self) -> "Fake":
        return self

    def score(self, policy: Policy, rate: float, seed: int) -> float:
        used = [not pattern.is_none for pattern in policy.sites.values()]
        worth = 0.05 * (sum(used[:6]) - sum(used[6:])) * (1 - abs(rate - 0.1))
        return 0.7 + 0.1 * worth + 0.002 * float(np.random.default_rng([seed, sum(used)]).standard_normal())

    def fit_many(
        self,
        policies: Sequence[Policy],
        rates: Sequence[float],
        seeds: Sequence[int],
        run: Run,
        reports: Sequence[Callable[[int, float], None]],
        test_reports: Sequence[Callable[[int, float], None]] | None,
    ) -> list[float]:
        """The best comes in the middle; on the test text everybody is a little worse there, and best in the end."""
        trained.append(len(policies))
        scores = [self.score(*child) for child in zip(policies, rates, seeds, strict=True)]
        for report, score in zip(reports, scores, strict=True):
            report(1, score)
            report(self.steps, 0.9 * score)
        for report, score in zip(test_reports or (), scores, strict=test_reports is not None):
            report(1, 0.99 * score)
            report(self.steps, 1.5 * score)
        return [math.nan, *scores[1:]] if self.diverges else scores


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptb_study, "TRAININGS", {"small": lambda steps: Fake(steps)})
    trained.clear()


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    script.main()


def test_from_proxy_to_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--smoke", "--folder", str(tmp_path)]
    for script in (ptb_proxy, ptb_search, ptb_finalists, ptb_honest):
        run(script, monkeypatch, *folder)
    jobs = len(trained)
    for script in (ptb_proxy, ptb_search, ptb_finalists, ptb_honest):
        run(script, monkeypatch, *folder)
    assert len(trained) == jobs, "all of it is in the journals"
    (row, *_) = json.loads((tmp_path / "proxy-small.json").read_text())["rows"]
    assert row["best_peer"].startswith(("dropout", "variational_dropout", "word_dropout"))
    search = json.loads((tmp_path / "search-0.json").read_text())["rows"]
    assert [row["method"] for row in search] == ["random", "controller-paper", "controller"]
    assert all(row["trials"] == 32 for row in search)
    assert (tmp_path / "search-0.png").stat().st_size > 5_000
    honest = json.loads((tmp_path / "honest.json").read_text())
    for rows in honest["tables"].values():
        assert {row["method"] for row in rows} == {
            *("none", "dropout", "policy of random", "policy of controller", "policy of controller-paper")
        }
    found = {row["method"]: row for row in honest["tables"]["test_perplexity, from none"]}
    assert found["none"]["difference"] == 0
    assert found["policy of random"]["difference"] < found["dropout"]["difference"], "fewer perplexities are better"
    target = tmp_path / "made.parquet"
    run(ptb_table, monkeypatch, "--folder", str(tmp_path), "--to", str(target))
    table = ad.table(target)
    assert len(table) == sum(len(Journal(path).entries) for path in tmp_path.glob("*.jsonl"))
    assert len(table.test(steps=40)) == 5 * 2
    assert "minutes" in capsys.readouterr().out


def piece(tmp_path: Path, together: int = 3, minutes: float = 1.0) -> ptb_study.Piece:
    parser = ptb_study.study_options("", "any")
    args = parser.parse_args(["--smoke", "--folder", str(tmp_path), "--minutes", str(minutes)])
    args.together = together
    return ptb_study.Piece(args, "any")


def children(count: int, rates: Sequence[float] = (0.1,)) -> list[ptb_study.Child]:
    return [
        ptb_study.Child("random", number, ptb_study.NONE, rate, seed=7) for rate in rates for number in range(count)
    ]


def test_jobs_are_full(tmp_path: Path) -> None:
    found = piece(tmp_path).train("p", "small", 4_000, children(4, (0.1, 0.2)))
    assert trained == [3, 3, 2], "children of different rates are trained together"
    assert [(entry.trial.rate, entry.trial.number) for entry in found] == [(r, n) for r in (0.1, 0.2) for n in range(4)]
    assert found[0].trial.curve[0] == (1, found[0].trial.value)
    assert all(entry.test is None for entry in found)
    again = piece(tmp_path).train("p", "small", 4_000, children(5, (0.1, 0.2)))
    assert trained[3:] == [2], "what is in the journal is not trained again"
    assert again[:4] == found[:4]
    for trial, test in piece(tmp_path).train("final", "small", 4_000, children(4), test=True):
        assert test == pytest.approx(0.99 * trial.value), "by the weights that were best on validation data"


def test_a_piece_ends_before_its_time_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is not begun where the last one says that it would not fit."""
    first = piece(tmp_path)
    clock = iter(range(0, 10_000, 30))  # so a job takes 30 seconds, and one 4 times longer would take 120
    times = SimpleNamespace(monotonic=time.monotonic, perf_counter=lambda: next(clock))
    monkeypatch.setattr(ptb_study, "time", times)
    first.train("p", "small", 4_000, children(9)[:3])
    with pytest.raises(SystemExit) as ended:
        first.train("p", "small", 16_000, children(9))
    assert ended.value.code == ptb_study.PAUSED
    assert len(Journal(tmp_path / "any.jsonl").entries) == 3
    assert len(piece(tmp_path, minutes=10).train("p", "small", 16_000, children(9))) == 9


def test_a_child_that_diverged_is_kept_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptb_study, "TRAININGS", {"small": lambda steps: Fake(steps, diverges=True)})
    first, second = piece(tmp_path).train("p", "small", 4_000, children(2))
    assert (first.trial.value, first.trial.failure) == (None, "diverged")
    assert second.trial.failure is None
    assert ptb_study.values([first, second]) == [0.0, second.trial.value]


@pytest.mark.parametrize("method", ["controller", "random"])
def test_a_search_goes_on_as_if_it_had_not_been_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def tokens(folder: str) -> list[tuple[int, ...]]:
        found = Journal(tmp_path / folder / "search.jsonl").entries
        return [entry.trial.tokens for entry in sorted(found, key=lambda entry: entry.trial.number)]

    def go(folder: str, trials: int) -> None:
        run(ptb_search, monkeypatch, "--folder", str(tmp_path / folder), "--methods", method, "--trials", str(trials))

    go("cut", 32)
    go("cut", 64)
    go("whole", 64)
    assert tokens("cut") == tokens("whole")
    assert len(set(tokens("whole"))) == 64


def test_the_classical_methods_are_policies() -> None:
    found = ptb_study.families()
    assert len(set(found.values())) == len(found) == 6
    everywhere = ptb_study.SPACE.decode(found["variational_dropout, all sites"])
    assert tuple(everywhere.sites) == TRANSFORMER_SITES
    assert {str(pattern) for pattern in everywhere.sites.values()} == {"size=70 stride=0 share_t"}
    usual = ptb_study.SPACE.decode(found["word_dropout"])
    used = tuple(site for site, pattern in usual.sites.items() if not pattern.is_none)
    assert used == ad.baseline("word_dropout").transformer


def test_finalists_differ_in_what_they_do() -> None:
    """Tokens of a place without a pattern do not make another policy."""
    child = children(1)[0]
    same = tuple(1 if place % 4 == 3 else token for place, token in enumerate(child.tokens))
    other = (1, *child.tokens[1:])
    entries = [
        ptb_study.Entry(
            ptb_study.TableTrial(
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
    assert [entry.trial.number for entry in ptb_finalists.distinct(entries, 10)] == [1, 2]


def test_the_scripts_need_no_database() -> None:
    """A machine with a GPU may have torch and little else."""
    code = (
        "import sys\n"
        "for name in ('sqlalchemy', 'pyarrow', 'sklearn', 'optuna', 'ray', 'typer'): sys.modules[name] = None\n"
        "import ptb_proxy, ptb_search, ptb_finalists, ptb_honest\n"
    )
    folder = Path(ptb_study.__file__).parent
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=folder)
