"""The stages of the Penn Treebank study, from proxy to table, with a training that takes no time."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_study import LONGEST, Fake, install, prepared, run, trained

import autodropout as ad
from autodropout.tables import Journal
from studies import found_policies, proxy
from studies.ptb import climbing, study, table, trainings
from studies.ptb.__main__ import STAGES
from studies.report import ptb as parts
from studies.report.__main__ import main as write_report
from studies.report.page import NOT_RUN

SIMULATED = "Searches replayed on the table of trials"


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def surrounded(tried: dict[str, Any]) -> bool:
    """Whether of each method rates on both sides of the best one were tried, or there is none on the scale."""
    by_method: dict[str, dict[float, float]] = {}
    for row in next(iter(tried.values())):
        method, _, setting = row["method"].rpartition(" at ")
        by_method.setdefault(f"{method}, {setting.partition(', ')[2]}", {})[row["rate"]] = row["mean"]
    best = [min(by, key=lambda rate: by[rate]) for by in by_method.values()]
    return all(set(climbing.beside(rate)) <= set(by) for rate, by in zip(best, by_method.values(), strict=True))


def not_run(page: str) -> set[str]:
    """What a page says to be missing."""
    lines = [line for line in page.splitlines() if line.startswith(NOT_RUN)]
    return {title for line in lines for title in line.removeprefix(NOT_RUN).removesuffix(".").split("; ")}


def found_by_validation(honest: dict[str, Any], method: str) -> list[float]:
    rows = honest["tables"]["validation perplexity, from none"]
    return next(row["values"] for row in rows if row["method"] == method)


def check_race(folder: Path) -> None:
    """All of the best policies run, and what is chosen of them is chosen by other seeds than it is judged by."""
    race = json.loads((folder / "race.json").read_text())
    entries = Journal(folder / "race.jsonl").entries
    assert len(race["rows"]) == 3 * 3, "three of each method in a smoke test"
    for row in race["methods"]:
        best = [min(map(np.mean, of["scores"].values())) for of in race["rows"] if of["method"] == row["method"]]
        assert sorted(row["again"]) == pytest.approx(sorted(best), rel=1e-4), "every policy at its best rate"
    for chosen in race["chosen"]:
        rivals = [of["scores"] for of in race["best"] if of["method"] == chosen["method"]]
        (own,) = (of for of in race["best"] if (of["method"], of["number"]) == (chosen["method"], chosen["number"]))
        assert len(rivals) == 2
        assert np.mean(own["scores"][f"{chosen['rate']:g}"]) == min(np.mean(v) for of in rivals for v in of.values())
        final = [e.trial for e in entries if e.trial.method == f"policy of {chosen['method']}"]
        assert {(t.tokens, t.rate) for t in final} == {(tuple(chosen["tokens"]), chosen["rate"])}
    seeds = [{e.trial.seed for e in entries if e.trial.phase == p} for p in ("race", "race, the best", "race, final")]
    assert len(set.union(*seeds)) == sum(map(len, seeds)) == 6
    assert all((entry.test is not None) == (entry.trial.phase == "race, final") for entry in entries)
    assert race["claims"][0]["than"] == "policy of random"


def check_longer(folder: Path) -> None:
    """The policies of the race, at rates tuned for the length they had not, with the seeds of who had it."""
    longer = json.loads((folder / "longer.json").read_text())
    (of,) = longer["by_length"].values()
    entries = Journal(folder / "longer.jsonl").entries
    tested, tuned = ([e.trial for e in entries if e.trial.phase == p] for p in ("longer", "climbing"))
    raced = {c["method"]: c for c in json.loads((folder / "race.json").read_text())["chosen"]}
    assert {t.method: t.tokens for t in tested} == {f"policy of {m}": tuple(c["tokens"]) for m, c in raced.items()}
    assert {t.steps for t in tested} == {LONGEST}, "the race is shorter"
    assert surrounded(longer["tried"])
    peers = {e.trial.seed for e in Journal(folder / "bracketed.jsonl").entries if e.trial.phase == "bracketed"}
    assert {t.seed for t in tested} == peers
    assert not {t.seed for t in tuned} & peers
    assert all((e.test is not None) == (e.trial.phase == "longer") for e in entries)
    classical = of["claims"][-1]["than"]
    assert [claim["than"] for claim in of["claims"]] == ["policy of random", classical, classical]


def test_from_proxy_to_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--smoke", "--folder", str(tmp_path)]
    stages = ("proxy", "search", "finalists", "honest", "finer", "retuned", "bracketed", "lengths", "race", "longer")
    for stage in stages:
        run(stage, *folder)
    jobs = len(trained)
    run(*stages, *folder)
    assert len(trained) == jobs, "all of it is in the journals"
    record = json.loads((tmp_path / "proxy-half-3000-0.05-for-6000.json").read_text())
    assert record["rows"][-1]["best_peer"].startswith(("dropout", "variational_dropout", "word_dropout"))
    assert record["longer"]["steps"] == 2 * record["rows"][-1]["steps"]
    assert all("best_peer" not in row for row in record["rows"][:-1]), "only at full length"
    assert [note["what"] for note in record["trained"]] == ["from here on half"]
    search = json.loads((tmp_path / "search-0.json").read_text())["rows"]
    assert [row["method"] for row in search] == ["random", "controller-paper", "controller", "tpe"]
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
    found = {row["method"]: row for row in honest["tables"]["test perplexity, from none"]}
    assert found["none"]["difference"] == 0
    best = found[honest["best_classical"]]
    assert found["policy of random"]["difference"] < best["difference"], "fewer perplexities are better"
    by_random = {row["method"]: row for row in honest["tables"]["test perplexity, from policy of random"]}
    claims = [claim for claim in honest["claims"] if claim["metric"] == "test perplexity"]
    assert [claim["than"] for claim in claims] == ["policy of random", honest["best_classical"], shorter]
    assert claims[0]["difference"] == by_random["policy of controller"]["difference"]
    finer = json.loads((tmp_path / "finer.json").read_text())["tables"]
    (rows,) = finer.values()
    ours = f"policy of controller at {honest['rates']['policy of controller']:g}"
    assert rows[0]["method"] == f"{ours}, {LONGEST} steps"
    assert rows[0]["values"] == found_by_validation(honest, "policy of controller"), "the final table's own seeds"
    methods = {row["method"] for row in rows}
    assert {f"dropout at 0.025, {LONGEST} steps", f"dropout at 0.075, {LONGEST} steps"} < methods, "by 0, 0.05 and 0.1"
    assert {f"{ours}, {LONGEST * 3 // 4} steps", f"{ours}, {LONGEST * 4 // 3} steps"} < methods
    retuned = json.loads((tmp_path / "retuned.json").read_text())
    assert len(retuned["lengths"]) == 4, "two classical methods and two policies"
    assert set(retuned["lengths"].values()) == {LONGEST}, "nothing is as good as the longest: it stays"
    best = min((row for row in rows if row["method"].startswith("policy of controller")), key=lambda row: row["mean"])
    by_test = {row["method"]: row for row in retuned["tables"]["test perplexity, from policy of random"]}
    assert by_test["policy of controller"]["rate"] == best["rate"]
    assert [claim["than"] for claim in retuned["claims"]] == ["policy of random", retuned["best_classical"]]
    bracketed = json.loads((tmp_path / "bracketed.json").read_text())
    assert bracketed["lengths"] == retuned["lengths"], "the same methods, for as long"
    assert surrounded(bracketed["tried"])
    assert not {e.trial.seed for e in Journal(tmp_path / "bracketed.jsonl").entries} & {
        e.trial.seed
        for path in tmp_path.glob("*.jsonl")
        if path.stem not in ("bracketed", "race", "longer")
        for e in Journal(path).entries
    }, "seeds that nothing was chosen by"
    lengths = json.loads((tmp_path / "lengths.json").read_text())["by_length"]
    for metric, rows in lengths[f"{LONGEST:,}"]["tables"].items():
        assert rows == bracketed["tables"][metric], "as they were trained then"
    check_race(tmp_path)
    check_longer(tmp_path)
    found_policies.main(["ptb", "--folder", str(tmp_path), "--to", str(tmp_path / "policies")])
    race = json.loads((tmp_path / "race.json").read_text())
    last = {row["method"]: row for row in race["tables"]["test perplexity, from policy of random"]}
    for chosen in race["chosen"]:
        found, row = ad.load(tmp_path / f"policies/ptb-{chosen['method']}.json"), last[f"policy of {chosen['method']}"]
        assert trainings.SPACE.encode(found) == tuple(chosen["tokens"])
        assert found.provenance.rate == chosen["rate"] == row["rate"]
        assert f"test perplexity {row['mean']:.2f} over 2 seeds" in found.provenance.note
        assert f"After {LONGEST} steps at " in found.provenance.note, "the length that they had afterwards"
    assert {chosen["method"] for chosen in race["chosen"]} == {"controller", "controller-paper", "random"}
    searched = {
        e.trial.number: e.trial for e in Journal(tmp_path / "search.jsonl").entries if e.trial.method == "random"
    }
    random = ad.load(tmp_path / "policies" / "ptb-random.json")
    assert searched[random.provenance.trial].tokens == trainings.SPACE.encode(random)
    target = tmp_path / "made.parquet"
    table.main(["--folder", str(tmp_path), "--to", str(target)])
    made = ad.table(target)
    assert len(made) == sum(len(Journal(path).entries) for path in tmp_path.glob("*.jsonl"))
    assert len(made.test(steps=LONGEST)) == (6 + 4 + 4 + 3) * 2
    assert len(made.test(steps=24)) == 2 + 3 * 2, "no policy, and the race"
    assert len(made.facts["trained"]) == 9, "each journal says where it was trained, though one compiled for all"
    assert "minutes" in capsys.readouterr().out


def test_the_report_says_what_the_files_say(tmp_path: Path) -> None:
    """Also what was not shown, and what was not run."""
    page = tmp_path / "docs" / "results-ptb.md"
    docs = ["ptb", "--folder", str(tmp_path), "--docs", str(tmp_path / "docs")]
    docs += ["--simulated", str(tmp_path / "none.json"), "--translated", str(tmp_path / "translated")]
    write_report(docs)
    assert not_run(page.read_text()) == {title for title, _ in parts.STAGES.values()} | {SIMULATED}
    run(*STAGES, "--smoke", "--folder", str(tmp_path), "--minutes", "60")
    write_report(docs)
    text = page.read_text()
    left = {"The same, with Penn Treebank's length", "Earlier policies on Multi30k, German to English"}
    assert not_run(text) == left | {SIMULATED}
    honest = json.loads((tmp_path / "honest.json").read_text())
    final = text.partition("## The final table")[2].partition("\n## ")[0]
    for claim in honest["claims"]:
        begins = f"- {claim['metric'].replace('_', ' ')}: the {claim['method']} is "
        (line,) = (line for line in final.splitlines() if line.startswith(begins) and f"than {claim['than']}:" in line)
        assert ("is **better** than" in line) == claim["holds"]
        assert f"{claim['difference']:+.2f}" in line
    for row in honest["tables"]["test perplexity, from none"]:
        assert (
            f"| {row['method']} | {row['rate']:g}, {honest['lengths'][row['method']]:,} steps | {row['mean']:.2f}"
            in final
        )
    again = text.partition("## Did the data race")[2].partition("\n## ")[0]
    assert again.count("+0.00 ± 0.00") == 4, "the fake trains four methods as before"
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
    monkeypatch.setattr(study, "TRAININGS", fakes)
    run("proxy", "search", "finalists", "honest", "finer", "--smoke", "--folder", str(tmp_path))
    for path in tmp_path.glob("*.json"):
        assert not {"Infinity", "NaN"} & set(path.read_text().replace(",", " ").split()), "JSON has neither"
    assert json.loads((tmp_path / "honest.json").read_text())["diverged"]
    docs = tmp_path / "docs"
    write_report(["ptb", "--folder", str(tmp_path), "--docs", str(docs)])
    assert "Diverged, hence not in the table: none (seed 3000000)" in (docs / "results-ptb.md").read_text()


def test_half_a_search_has_no_finalists(tmp_path: Path) -> None:
    folder = ["--smoke", "--folder", str(tmp_path)]
    run("proxy", *folder)
    run("search", *folder, "--methods", "random")
    with pytest.raises(SystemExit, match="controller-paper has 0 of 32"):
        run("finalists", *folder)
    with pytest.raises(SystemExit, match="controller-paper has 0 of 32"):
        run("race", *folder)
    with pytest.raises(SystemExit, match="not all are there: nothing"):
        run("honest", *folder)
    with pytest.raises(SystemExit, match=r"run python -m studies\.ptb honest first"):
        run("transfer", *folder)
    with pytest.raises(SystemExit, match=r"proxy\.jsonl is not there: run python -m studies\.ptb proxy first"):
        run("finalists", "--smoke", "--folder", str(tmp_path / "empty"))


def test_the_best_is_not_judged_by_what_chose_it() -> None:
    """Of methods that are all alike the best of many looks good; by the other seed it does not."""
    draw = np.random.default_rng(0)
    gains = []
    for _ in range(200):
        peers = {str(peer): draw.standard_normal(2).tolist() for peer in range(24)}
        gains.append(proxy.gain(peers, [0.0]))
    assert abs(np.mean(gains)) < 4 * np.std(gains) / 200**0.5  # p < 1e-4


def test_at_full_size_hardly_a_slot_is_idle(tmp_path: Path) -> None:
    """A job takes as long with fewer children: sizes are chosen so that 48 fill almost all of them."""
    options = ["--folder", str(tmp_path), "--trials", "16", "--methods", "random", "controller-paper", "controller"]

    def jobs(*arguments: str) -> list[int]:
        before = len(trained)
        run(*arguments)
        return trained[before:]

    assert jobs("proxy", *options, "--parts", "longer") == [48]
    assert not list(tmp_path.glob("proxy*.json")), "there is nothing to compare it with"
    assert jobs("proxy", *options, "--parts", "compared", "longer") == [48] * 3
    assert jobs("proxy", *options) == [48] * 3, "the others are there already"
    assert jobs("search", *options) == [48]
    assert jobs("finalists", *options) == [48, 48, 48, 41, 48]
    assert jobs("honest", *options, "--none-steps", "4000", "2000") == [48, 48, 48, 48, 48, 48, 44, 20, 20]
    assert jobs("transfer", *options)[:3] == [48] * 3, "five rates of three methods, and none, three seeds each"
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
