"""The final table on Penn Treebank: every method with its rate tuned at the same budget, the test text read once.

    python benchmarks/ptb_honest.py [--smoke]      (see ptb_study.py)

The methods: none; Dropout, Variational Dropout and WordDropout; and for each method of the search one of its policies:
whichever trained best when trained longer (`ptb_finalists.py`).
1. Each method is tuned by validation perplexity with as many trainings: a policy's rate with two seeds, a classical
   method's rate and whether it is used at its usual sites or at all of them with one.
2. Each method is trained as it was tuned, with new seeds. The weights that read the validation text best read the test
   text. Without a policy a shorter training may be better than stopping early in a long one: `--none-steps` are tried,
   too, and the one with the best validation perplexity has a row of its own.

Differences are paired by seed, with Student's 95% intervals: from no policy, from the best classical method and from
the policy of random search. Three claims are tested, of the controller at our setting, which is the package's default:
that it is better than random search, which had as many trials, than the best classical method, which is decided in
step 1, and than no policy in its shorter training. Beside the p-values of sign flips stand those for all claims,
multiplied by their number. The better of two controllers would have had twice the trials, so nothing is claimed of it.
A test score that is in the journal is never computed again.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from autodropout.recipes.comparison import Row, Summary, Variant, summaries, table
from autodropout.tables import Entry
from autodropout.tables.statistics import sign_flips
from autodropout.training.run import Scores
from ptb_finalists import LONGER_PHASE
from ptb_study import Child, Piece, perplexities, perplexity, reward, rewards_of, study_options
from ptb_trainings import NONE, Tokens, families
from recording import write

RATES = (0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4)
TUNING_SEED, FINAL_SEED = 2_000_000, 3_000_000  # the first of each kind: no seed was used before
METRICS = ("validation_perplexity", "test_perplexity")
RANDOM, OURS = "policy of random", "policy of controller"

Methods = dict[str, Tokens]


def finalists(piece: Piece, search: int, training: str, steps: int) -> Methods:
    """Of each method of the search the policy that had the best mean when trained longer."""
    found: dict[tuple[str, Tokens], list[float]] = {}
    for entry in piece.entries("finalists"):
        trial = entry.trial
        if (trial.phase, trial.training, trial.steps) == (LONGER_PHASE.format(search), training, steps):
            found.setdefault((trial.method, trial.tokens), []).append(reward(trial))
    policies: Methods = {}
    for method, tokens in sorted(found, key=lambda key: -statistics.fmean(found[key])):
        if method != "none" and method not in families():
            policies.setdefault(f"policy of {method}", tokens)
    whole = len({len(of) for of in found.values()}) == 1  # else some seeds of a job that was cut are missing
    if not whole or not {RANDOM, OURS} <= set(policies):
        there = ", ".join(policies) or "nothing"
        raise SystemExit(
            f"of the finalists of search {search}, {training} for {steps} steps, not all are there: {there}"
        )
    return policies


def kind_of(peer: str) -> str:
    """Which classical method it is, wherever it is used."""
    return peer.partition(",")[0]


def tuned(
    piece: Piece, name: str, steps: int, peers: Methods, policies: Methods, seeds: int
) -> dict[str, dict[float, list[float]]]:
    """Rewards of each method at each rate; a classical one at two kinds of sites has half the seeds for each."""
    rates = RATES[:2] if piece.smoke else RATES
    shared = max(1, seeds * len(set(map(kind_of, peers))) // len(peers))
    children = [
        Child(method, 0, tokens, rate, TUNING_SEED + seed)
        for method, tokens in (peers | policies).items()
        for rate in rates
        for seed in range(shared if method in peers else seeds)
    ]
    found: dict[str, dict[float, list[float]]] = {}
    for child, value in zip(children, rewards_of(piece.train("tuning", name, steps, children)), strict=True):
        found.setdefault(child.method, {}).setdefault(child.rate, []).append(value)
    return found


def none_shorter(piece: Piece, name: str, lengths: Sequence[int], seeds: int) -> list[Entry]:
    """No policy, trained for as many steps as suit it: the best of these lengths by validation perplexity."""
    found = []
    for steps in lengths:
        named = f"none, {piece.training(name, steps).steps:,} steps"
        children = [Child(named, 0, NONE, 0.0, FINAL_SEED + seed) for seed in range(seeds)]
        found.append(piece.train("final", name, steps, children, test=True))
    return max(found, key=lambda entries: statistics.fmean(rewards_of(entries)), default=[])


def rows_of(entries: Sequence[Entry], first: str) -> list[Row]:
    """The final trainings as a comparison has them, those of one method first; a diverged one has no place there."""
    rows = []
    for entry in sorted(entries, key=lambda entry: entry.trial.method != first):
        trial, test = entry
        if trial.value is not None and test is not None:
            metrics = dict(zip(METRICS, (perplexity(trial.value), perplexity(test)), strict=True))
            rows.append(Row(Variant(trial.method, None, trial.rate), trial.seed, Scores(trial.value, metrics)))
    return rows


def told(summary: Summary) -> dict[str, Any]:
    return {
        "method": summary.variant.name,
        "rate": summary.variant.rate,
        "values": summary.values,
        "mean": summary.mean,
        "standard_error": summary.error,
        "difference": summary.difference,
        "half_interval": summary.interval,
    }


def claim(entries: Sequence[Entry], metric: str, ours: str, other: str, claims: int) -> dict[str, Any]:
    """Whether one method is better than another, by their paired differences; less than zero is better."""
    rows = [row for row in rows_of(entries, other) if row.variant.name in (ours, other)]
    by_seed: dict[int, dict[str, float]] = {}
    for row in rows:
        by_seed.setdefault(row.seed, {})[row.variant.name] = row.scores.metrics[metric]
    differences = [both[ours] - both[other] for both in by_seed.values() if len(both) == 2]
    found = next((summary for summary in summaries(rows, metric) if summary.variant.name == ours), None)
    if not differences or found is None:
        return {"metric": metric, "method": ours, "than": other, "n": 0, "holds": False}
    p, half = sign_flips(differences), found.interval
    return {
        "metric": metric,
        "method": ours,
        "than": other,
        "n": len(differences),
        "differences": differences,
        "difference": found.difference,
        "half_interval": half,
        "p": p,
        "p_for_all_claims": min(1.0, claims * p),
        "holds": half is not None and found.difference + half < 0,
    }


def decided(
    scores: Mapping[str, Mapping[float, Sequence[float]]], peers: Methods
) -> tuple[dict[str, float], list[str]]:
    """By the tuning alone: rates, and where each classical method is used; the best of these first."""
    means = {method: {rate: statistics.fmean(of) for rate, of in by.items()} for method, by in scores.items()}
    rates = {method: max(by, key=lambda rate: by[rate]) for method, by in means.items()}
    best: dict[str, str] = {}
    for method in sorted(peers, key=lambda method: -means[method][rates[method]]):
        best.setdefault(kind_of(method), method)
    return rates, list(best.values())


def final_table(
    piece: Piece, args: argparse.Namespace, name: str, steps: int, peers: Methods, policies: Methods
) -> dict[str, Any]:
    """Methods are tuned, then all are trained with new seeds: both steps of above."""
    scores = tuned(piece, name, steps, peers, policies, args.tuning_seeds)
    rates, chosen = decided(scores, peers)
    final = {"none": NONE} | {peer: peers[peer] for peer in chosen} | policies
    edges = [m for m in final if m in rates and rates[m] in (min(scores[m]), max(scores[m]))]
    for method, by in scores.items():
        tried = ", ".join(f"{rate:g}: {perplexity(statistics.fmean(of)):.2f}" for rate, of in by.items())
        print(f"{method:32}{tried}; best: {rates[method]:g}{', at the edge' if method in edges else ''}")
    children = [
        Child(method, 0, tokens, rates.get(method, 0.0), FINAL_SEED + seed)
        for method, tokens in final.items()
        for seed in range(args.final_seeds)
    ]
    found = piece.train("final", name, steps, children, test=True)
    shorter = none_shorter(piece, name, args.none_steps, args.final_seeds)
    found += shorter
    record = piece.record(f"{name}, {steps} steps, policies' rates tuned with {args.tuning_seeds} seeds each")
    record["tuning"] = {m: {f"{rate:g}": perplexities(of) for rate, of in by.items()} for m, by in scores.items()}
    record |= {"rates": rates, "at_the_edge": edges, "best_classical": chosen[0]}
    record["diverged"] = [[e.trial.method, e.trial.seed] for e in found if e.trial.value is None]
    record["policies"] = final
    record["tables"], record["claims"] = {}, []
    others = (RANDOM, chosen[0], *{entry.trial.method: None for entry in shorter})
    for metric in METRICS:
        for first in ("none", *others):
            rows = rows_of(found, first)
            print(f"\n{metric}, differences from {first}\n{table(rows, metric)}")
            record["tables"][f"{metric}, from {first}"] = [told(summary) for summary in summaries(rows, metric)]
        for other in others:
            said = claim(found, metric, OURS, other, claims=len(others))
            record["claims"].append(said)
            print(f"{metric}: {OURS} better than {other}: {'yes' if said['holds'] else 'NOT SHOWN'}")
    print(f"\nall trials of this journal: {piece.minutes:.1f} minutes")
    return record


def main(argv: Sequence[str] | None = None) -> None:
    args = study_options(__doc__, "honest", argv)
    piece = Piece(args, "honest")
    name, steps = args.longer_training, args.longer_steps
    policies = finalists(piece, args.seed, name, piece.training(name, steps).steps)
    write(final_table(piece, args, name, steps, families(), policies), args.out)


if __name__ == "__main__":
    main()
