"""The study on Multi30k, with a made-up translator: what is tuned, what is tested, and that it goes on where it was."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from autodropout.spaces import Policy
from autodropout.tables import Journal
from autodropout.training.run import Run, Scores
from studies import multi30k
from studies.ptb import trainings
from studies.report.__main__ import main as write_report

DROPOUT = trainings.families()["dropout"]
OURS = trainings.families()["variational_dropout, all sites"]


@dataclass(frozen=True)
class Translator:
    """Best at a rate of 0.2, where Variational Dropout is worth more than Dropout; diverges at 0.3."""

    steps: int = 16
    evaluate_every: int = 2

    def smoke(self) -> "Translator":
        return self

    def load(self) -> None:
        pass

    def fit(self, policy: Policy | None, rate: float, seed: int, run: Run) -> Scores:
        if rate == 0.3:
            raise FloatingPointError("the loss is not finite")
        sites = 0 if policy is None else sum(not pattern.is_none for pattern in policy.sites.values())
        reward = 0.3 + (0.05 - abs(rate - 0.2)) * sites / 100 + 0.001 * (seed % 2)
        assert run.report is not None
        run.report(self.steps, reward)
        metrics: Mapping[str, float] = {"test_bleu": 100 * reward - 1} if run.test else {}
        return Scores(reward, metrics)


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(multi30k, "multi30k_de_en", Translator)
    policies = {"none": trainings.NONE, "dropout, all sites": DROPOUT, "policy of controller": OURS}
    (tmp_path / "honest.json").write_text(json.dumps({"policies": policies}))
    paths = ["--folder", str(tmp_path / "found"), "--policies", str(tmp_path / "honest.json")]
    return [*paths, "--smoke", "--workers", "2"]


def test_every_method_is_tuned_then_tested_with_new_seeds(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        multi30k.main([*arguments, "--minutes", "0"])
    assert ended.value.code == 3, "no time, nothing done"
    multi30k.main(arguments)
    entries = Journal(tmp_path / "found" / "multi30k.jsonl").entries
    final, tuning = ([e for e in entries if e.trial.phase == phase] for phase in ("final", "tuning"))
    assert {e.trial.method for e in tuning} == {"dropout", "policy of controller"}
    assert len(tuning) == 2 * len(multi30k.RATES)
    assert {e.trial.failure for e in tuning if e.trial.rate == 0.3} == {"diverged"}
    assert all((e.test is None) == (e.trial.phase == "tuning") for e in entries)
    assert not {e.trial.seed for e in final} & {e.trial.seed for e in tuning}
    found = json.loads((tmp_path / "found" / "multi30k.json").read_text())
    assert found["rates"] == {"dropout": 0.2, "policy of controller": 0.2}
    by_method = {row["method"]: row for row in found["tables"]["test BLEU, from dropout"]}
    assert list(by_method) == ["dropout", "none", "policy of controller"]
    gain = 100 * 0.05 * (11 - sum(not p.is_none for p in trainings.SPACE.decode(DROPOUT).sites.values())) / 100
    assert by_method["policy of controller"]["difference"] == pytest.approx(gain)
    folders = ["--folder", str(tmp_path / "none"), "--translated", str(tmp_path / "found"), "--docs", str(tmp_path)]
    write_report(["ptb", *folders])
    assert (
        f"| policy of controller | 0.2 | {by_method['policy of controller']['mean']:.2f}"
        in (tmp_path / "results-ptb.md").read_text()
    )
    multi30k.main([*arguments, "--minutes", "0"])
    assert len(Journal(tmp_path / "found" / "multi30k.jsonl").entries) == len(entries), "nothing was trained again"


def test_rates_are_tuned_until_the_best_is_surrounded() -> None:
    best = {"dropout": 0.5, "policy of controller": 0.05, "policy of random": 0.0125}

    class Piece:
        def train(self, jobs: Sequence[multi30k.Job]) -> list[SimpleNamespace]:
            rewards = (1 - abs(job.rate - best[job.method]) for job in jobs)
            return [SimpleNamespace(trial=SimpleNamespace(value=reward)) for reward in rewards]

    methods = {"none": trainings.NONE} | dict.fromkeys(best, OURS)
    scores = multi30k.tuned(Piece(), methods, range(2))
    assert multi30k.best_rates(scores) == best
    assert {method: sorted(by_rate) for method, by_rate in scores.items()} == {
        "dropout": [*multi30k.RATES, 0.4, 0.5, 0.6],
        "policy of controller": [*multi30k.RATES],
        "policy of random": [0.0125, *multi30k.RATES],
    }
    assert all(len(of) == 2 for by_rate in scores.values() for of in by_rate.values())


def test_policies_come_from_penn_treebank(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"nowhere\.json is not there, which has the policies: run python"):
        multi30k.main([*arguments, "--policies", str(tmp_path / "nowhere.json")])
