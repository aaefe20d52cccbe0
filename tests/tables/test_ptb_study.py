"""The scripts of the Penn Treebank study, from proxy to table, with a training that takes no time."""

import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import autodropout as ad
import ptb_all
import ptb_candidates
import ptb_descent
import ptb_finalists
import ptb_honest
import ptb_orders
import ptb_policies
import ptb_proxy
import ptb_report
import ptb_search
import ptb_sites
import ptb_study
import ptb_table
import ptb_trainings
import ptb_transfer
from autodropout.spaces import TRANSFORMER_SITES, Policy
from autodropout.tables import Journal
from autodropout.training.run import Run

LONGEST = 48  # steps that a smoke test has of 12,000
trained: list[int] = []
"""Of every job how many children it had."""
prepared: list[int] = []
"""Before every job for how many children there was to be room."""


@dataclass(frozen=True)
class Fake:
    """Policies that use some sites and not others score best, at a rate of 0.1, in the longest; with seeds' noise."""

    steps: int
    evaluate_every: int = 1
    batch: int = 1
    segment: int = 1
    evaluation_batch: int = 1
    evaluation_words: int | None = None
    diverges: bool = False
    lr: float = 1e-3
    lr_after_cosine: float = 1e-4
    lr_constant: float = 5e-5
    warmup: int = 0
    vocabulary: int = 3

    def text(self) -> SimpleNamespace:
        return SimpleNamespace(train=torch.tensor([0, 0, 0, 1, 1]), validation=torch.tensor([0, 1, 2]))

    def smoke(self) -> "Fake":
        return self

    def prepare_many(self, children: int, run: Run) -> bool:
        prepared.append(children)
        return len(prepared) == 1

    def score(self, policy: Policy, rate: float, seed: int) -> float:
        used = [not pattern.is_none for pattern in policy.sites.values()]
        worth = 0.05 * (sum(used[:6]) - sum(used[6:])) * (1 - abs(rate - 0.1))
        longest = 0.02 * (self.steps == LONGEST)
        return 0.7 + 0.1 * worth + longest + 0.002 * float(np.random.default_rng([seed, sum(used)]).standard_normal())

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
    fakes = {name: lambda steps: Fake(steps) for name in ("half", "small", "wikitext-2")}
    for script in (ptb_study, ptb_descent, ptb_candidates):
        monkeypatch.setattr(script, "TRAININGS", fakes)
    trained.clear()
    prepared.clear()


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
    run(ptb_all, monkeypatch, "proxy", "search", "finalists", "honest", *folder)
    assert len(trained) == jobs, "all of it is in the journals"
    record = json.loads((tmp_path / "proxy-half-3000-0.05-for-6000.json").read_text())
    assert record["rows"][-1]["best_peer"].startswith(("dropout", "variational_dropout", "word_dropout"))
    assert record["longer"]["steps"] == 2 * record["rows"][-1]["steps"]
    assert all("best_peer" not in row for row in record["rows"][:-1]), "only at full length"
    assert [note["what"] for note in record["trained"]] == ["from here on half"]
    search = json.loads((tmp_path / "search-0.json").read_text())["rows"]
    assert [row["method"] for row in search] == ["random", "controller-paper", "controller"]
    assert all(row["trials"] == len(row["curve"]["best"]) == 32 for row in search)
    assert search[0]["reached"][0] <= 32, "random search is as good as itself"
    for low, best, high in zip(*(search[0]["curve"][name] for name in ("low", "best", "high")), strict=True):
        assert low - 0.01 <= best <= high + 0.01
    honest = json.loads((tmp_path / "honest.json").read_text())
    policies, shorter = {"policy of random", "policy of controller", "policy of controller-paper"}, "none, 12 steps"
    assert honest["lengths"] == dict.fromkeys(honest["lengths"], LONGEST) | {"none": 24, shorter: 12}, "tuned, too"
    for rows in honest["tables"].values():
        methods = {row["method"] for row in rows}
        assert {"none", *policies, shorter} < methods
        kinds = {method.partition(",")[0] for method in methods - policies}
        assert kinds == {"none", "dropout", "variational_dropout", "word_dropout"}
        assert len(methods) == 8, "of each classical method at its usual sites and at all, one"
    found = {row["method"]: row for row in honest["tables"]["test_perplexity, from none"]}
    assert found["none"]["difference"] == 0
    best = found[honest["best_classical"]]
    assert found["policy of random"]["difference"] < best["difference"], "fewer perplexities are better"
    by_random = {row["method"]: row for row in honest["tables"]["test_perplexity, from policy of random"]}
    claims = [claim for claim in honest["claims"] if claim["metric"] == "test_perplexity"]
    assert [claim["than"] for claim in claims] == ["policy of random", honest["best_classical"], shorter]
    assert claims[0]["difference"] == by_random["policy of controller"]["difference"]
    run(ptb_policies, monkeypatch, "--folder", str(tmp_path), "--to", str(tmp_path / "policies"))
    ours = ad.load(tmp_path / "policies" / "ptb-controller.json")
    assert ptb_trainings.SPACE.encode(ours) == tuple(honest["policies"]["policy of controller"])
    assert ours.provenance.rate == honest["rates"]["policy of controller"]
    assert f"test perplexity {found['policy of controller']['mean']:.2f} over 2 seeds" in ours.provenance.note
    searched = {
        e.trial.number: e.trial for e in Journal(tmp_path / "search.jsonl").entries if e.trial.method == "random"
    }
    random = ad.load(tmp_path / "policies" / "ptb-random.json")
    assert searched[random.provenance.trial].tokens == ptb_trainings.SPACE.encode(random)
    target = tmp_path / "made.parquet"
    run(ptb_table, monkeypatch, "--folder", str(tmp_path), "--to", str(target))
    table = ad.table(target)
    assert len(table) == sum(len(Journal(path).entries) for path in tmp_path.glob("*.jsonl"))
    assert len(table.test(steps=LONGEST)) == 6 * 2
    assert len(table.test(steps=24)) == 2, "no policy"
    assert len(table.facts["trained"]) == 1
    assert "minutes" in capsys.readouterr().out


def test_the_report_says_what_the_files_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was not shown, and what was not run; what others wrote into the page stays."""
    page, docs = tmp_path / "docs" / "results.md", ["--folder", str(tmp_path), "--docs", str(tmp_path / "docs")]
    docs += ["--simulated", str(tmp_path / "none.json"), "--translated", str(tmp_path / "translated")]
    run(ptb_report, monkeypatch, *docs)
    assert page.read_text().count("Not run yet") == 11
    page.write_text("# Of ours\n\n" + page.read_text() + "\nBy hand.\n")
    scripts = (ptb_descent, ptb_candidates, ptb_proxy, ptb_orders, ptb_search, ptb_sites, ptb_finalists, ptb_honest)
    for script in (*scripts, ptb_transfer):
        run(script, monkeypatch, "--smoke", "--folder", str(tmp_path))
    run(ptb_report, monkeypatch, *docs)
    text = page.read_text()
    assert text.startswith("# Of ours")
    assert text.endswith("\nBy hand.\n")
    assert text.count("Not run yet") == 2, "the simulator and the translator"
    honest = json.loads((tmp_path / "honest.json").read_text())
    final = text.partition("### The final table")[2].partition("### ")[0]
    for claim in honest["claims"]:
        begins = f"- {claim['metric'].replace('_', ' ')}: the {claim['method']} is "
        (line,) = (line for line in final.splitlines() if line.startswith(begins) and f"than {claim['than']}:" in line)
        assert ("not shown" in line) != claim["holds"]
        assert f"{claim['difference']:+.2f}" in line
    for row in honest["tables"]["test_perplexity, from none"]:
        assert (
            f"| {row['method']} | {row['rate']:g}, {honest['lengths'][row['method']]:,} steps | {row['mean']:.2f}"
            in final
        )
    found = json.loads((tmp_path / "orders.json").read_text())["rows"]
    # three lengths and the longer one at the first rate, two other rates, another seed; the fake knows no length
    assert len(found) == 7
    assert found[0]["with"][found[1]["training"]]["estimate"] == pytest.approx(1.0)
    (row,) = (
        r for r in json.loads((tmp_path / "proxy-half-3000-0.05-for-6000.json").read_text())["rows"] if "best_peer" in r
    )
    assert f"{row['gain_in_deviations']:.1f}" in text
    for row in json.loads((tmp_path / "sites-0.json").read_text())["rows"]:
        assert all(sum(of.values()) == 32 for of in row["last"].values()), "each policy does one of three things"
        assert row["random"]["unused"] is not None, "a site is unused in one random policy of eight"
    assert all((tmp_path / "docs" / name).stat().st_size > 5_000 for name in ("ptb-search.png", "ptb-honest.png"))


def test_what_did_not_work_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of every job diverges: tables are made all the same, and count them."""
    fakes = dict.fromkeys(("half", "small"), lambda steps: Fake(steps, diverges=True))
    monkeypatch.setattr(ptb_study, "TRAININGS", fakes)
    for script in (ptb_proxy, ptb_search, ptb_finalists, ptb_honest):
        run(script, monkeypatch, "--smoke", "--folder", str(tmp_path))
    for path in tmp_path.glob("*.json"):
        assert not {"Infinity", "NaN"} & set(path.read_text().replace(",", " ").split()), "JSON has neither"
    assert json.loads((tmp_path / "honest.json").read_text())["diverged"]
    docs = tmp_path / "docs"
    run(ptb_report, monkeypatch, "--folder", str(tmp_path), "--docs", str(docs))
    assert "Diverged, hence not in the table: none (seed 3000000)" in (docs / "results.md").read_text()


def test_half_a_search_has_no_finalists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ["--smoke", "--folder", str(tmp_path)]
    run(ptb_proxy, monkeypatch, *folder)
    run(ptb_search, monkeypatch, *folder, "--methods", "random")
    with pytest.raises(SystemExit, match="controller-paper has 0 of 32"):
        run(ptb_finalists, monkeypatch, *folder)
    with pytest.raises(SystemExit, match="not all are there: nothing"):
        run(ptb_honest, monkeypatch, *folder)
    with pytest.raises(SystemExit, match=r"run ptb_honest\.py first"):
        run(ptb_transfer, monkeypatch, *folder)
    with pytest.raises(SystemExit, match=r"proxy\.jsonl is not there: run ptb_proxy\.py first"):
        run(ptb_finalists, monkeypatch, "--smoke", "--folder", str(tmp_path / "empty"))


def test_the_best_is_not_judged_by_what_chose_it() -> None:
    """Of methods that are all alike the best of many looks good; by the other seed it does not."""
    draw = np.random.default_rng(0)
    gains = []
    for _ in range(200):
        peers = {str(peer): draw.standard_normal(2).tolist() for peer in range(24)}
        gains.append(ptb_proxy.gain(peers, [0.0]))
    assert abs(np.mean(gains)) < 4 * np.std(gains) / 200**0.5  # p < 1e-4


def test_at_full_size_hardly_a_slot_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job takes as long with fewer children: sizes are chosen so that 48 fill almost all of them."""
    options = ["--folder", str(tmp_path), "--trials", "16"]

    def jobs(script: ModuleType, *arguments: str) -> list[int]:
        before = len(trained)
        run(script, monkeypatch, *arguments)
        return trained[before:]

    assert jobs(ptb_proxy, *options, "--parts", "longer") == [48]
    assert not list(tmp_path.glob("proxy*.json")), "there is nothing to compare it with"
    assert jobs(ptb_proxy, *options, "--parts", "compared", "longer") == [48] * 3
    assert jobs(ptb_proxy, *options) == [48] * 3, "the others are there already"
    assert jobs(ptb_search, *options) == [48]
    assert jobs(ptb_finalists, *options) == [48, 48, 48, 41, 48]
    assert jobs(ptb_honest, *options, "--none-steps", "4000", "2000") == [48, 48, 48, 48, 48, 48, 44, 20, 20]
    assert jobs(ptb_transfer, *options) == [48, 48, 12, 12]
    assert set(prepared) == {48}, "compiled once"
    seeds = {p: {e.trial.seed for e in Journal(tmp_path / f"{p}.jsonl").entries} for p in ("finalists", "honest")}
    seeds["search"] = {entry.trial.seed for entry in Journal(tmp_path / "search.jsonl").entries}
    assert not seeds["finalists"] & seeds["search"], "luck in the search does not count again"
    assert not seeds["honest"] & (seeds["finalists"] | seeds["search"])
    honest = Journal(tmp_path / "honest.jsonl").entries
    final, tuning = ({e.trial.seed for e in honest if e.trial.phase == p} for p in ("final", "tuning"))
    assert not final & tuning
    budgets = Counter(e.trial.method.partition(",")[0] for e in honest if e.trial.phase == "tuning")
    assert set(budgets.values()) == {32}, "every method is tuned with as many trainings"
    assert all((entry.test is not None) == (entry.trial.phase == "final") for entry in honest)


def piece(tmp_path: Path, together: int = 3, minutes: float = 1.0) -> ptb_study.Piece:
    args = ptb_study.study_options("", "any", ["--smoke", "--folder", str(tmp_path), "--minutes", str(minutes)])
    args.together = together
    return ptb_study.Piece(args, "any")


def children(count: int, rates: Sequence[float] = (0.1,)) -> list[ptb_study.Child]:
    return [
        ptb_study.Child("random", number, ptb_trainings.NONE, rate, seed=7) for rate in rates for number in range(count)
    ]


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
        piece(tmp_path).train(
            "p", "small", 4_000, [children(1)[0]._replace(tokens=ptb_trainings.families()["dropout"])]
        )
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
    with pytest.raises(SystemExit):  # another journal knows what a job takes, too
        ptb_study.Piece(ptb_study.study_options("", "o", ["--folder", str(tmp_path), "--minutes", "0.3"]), "o").train(
            "p", "small", 16_000, children(1)
        )


def test_a_child_that_diverged_is_kept_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptb_study, "TRAININGS", {"small": lambda steps: Fake(steps, diverges=True)})
    first, second = piece(tmp_path).train("p", "small", 4_000, children(2))
    assert (first.trial.value, first.trial.failure) == (None, "diverged")
    assert second.trial.failure is None
    assert ptb_study.rewards_of([first, second]) == [0.0, second.trial.value]


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
    found = ptb_trainings.families()
    assert len(set(found.values())) == len(found) == 6
    everywhere = ptb_trainings.SPACE.decode(found["variational_dropout, all sites"])
    assert tuple(everywhere.sites) == TRANSFORMER_SITES
    assert {str(pattern) for pattern in everywhere.sites.values()} == {"size=70 stride=0 share_t"}
    usual = ptb_trainings.SPACE.decode(found["word_dropout"])
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


def test_learning_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(ptb_descent, monkeypatch, "--smoke", "--folder", str(tmp_path))
    record = json.loads((tmp_path / "descent.json").read_text())
    assert [(row["lr"], row["warmup"]) for row in record["rows"]] == [(1e-3, 0), (1e-3, 200)]
    assert record["by_frequency"] == pytest.approx((4 / 8 * 3 / 8 * 1 / 8) ** (-1 / 3))
    half = ptb_descent.descending("small", 5e-4, 200, 1000)
    assert (half.lr, half.lr_after_cosine, half.lr_constant, half.warmup) == pytest.approx((5e-4, 5e-5, 2.5e-5, 200))


def test_who_has_learned() -> None:
    """Whoever is below half of what frequencies give; one that diverged is not, nor one that only counts words."""
    children = [*ptb_proxy.nothing(2), *ptb_proxy.baselines(1, [0.1])[:1], *ptb_proxy.policies(3, 0.1, 0)]
    row = ptb_descent.judge(children, [200.0, 690.0, 150.0, None, 340.0, 345.0], 684.0)
    assert row == {
        "learned": 3,
        "children": 6,
        "none": [200.0, 690.0],
        "classical": [150.0],
        "random": [340.0, 345.0, math.inf],
    }


def test_the_scripts_need_no_database() -> None:
    """A machine with a GPU may have torch and little else."""
    code = (
        "import sys\n"
        "for name in ('sqlalchemy', 'pyarrow', 'sklearn', 'matplotlib', 'optuna', 'ray', 'typer'):\n"
        "    sys.modules[name] = None\n"
        "import ptb_descent, ptb_proxy, ptb_search, ptb_finalists, ptb_honest, ptb_all\n"
    )
    folder = Path(ptb_study.__file__).parent
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=folder)
