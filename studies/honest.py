"""The final table of a study: every method tuned at the same budget, the test part kept for the end.

    python -m studies.ptb honest [--smoke]      (and cifar, digits)

The methods: none; the study's classical ones; and for each method of the search one of its policies:
whichever trained best on the whole text (`finalists.py`).
1. Each method is tuned by validation perplexity with as many trainings: a policy's rate and length (`--final-steps`)
   with two seeds; a classical method's rate, length, and whether it is used at its usual sites or at all, with one.
2. Each method is trained as it was tuned, with new seeds. The test perplexity of a training is that of the weights
   which read the validation text best. No policy has only its length to be tuned, and may want a shorter one than the
   others: `--none-steps` are tried with all seeds, and the one with the best validation perplexity has a row.

Differences are paired by seed, with Student's 95% intervals. Three claims are tested on the test text, of the policy
that the controller found at our setting, which is the package's default: that it is better than the policy that random
search found in as many trials, than the best classical method and than no policy in its shorter training. The best
classical method is that with the best validation perplexity in step 2. A claim holds where the p-value of sign flips,
multiplied by the number of claims, is below 0.05. It is one of policies: each method has searched once. The better of
two controllers would have had twice the trials, so nothing is claimed of it. A test score that is in the journal is
never computed again.
"""

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from autodropout.recipes.comparison import summaries
from autodropout.tables import Entry
from autodropout.tables.statistics import sign_flips
from benchmarks.recording import write
from studies.comparing import rows_of, tables
from studies.finalists import LONGER_PHASE
from studies.pieces import Child, Piece, reward, rewards_of

LEVEL = 0.05  # of the claims
TUNING_SEED, FINAL_SEED = 2_000_000, 3_000_000  # the first of each kind: no seed was used before
RANDOM, OURS = "policy of random", "policy of controller"

Methods = Mapping[str, tuple[int, ...]]


class Setting(NamedTuple):
    """What is tuned of a method."""

    steps: int
    rate: float

    def __str__(self) -> str:
        return f"{self.rate:g}, {self.steps:,} steps"


def finalists(piece: Piece, search: int, training: str, steps: int) -> Methods:
    """Of each method of the search the policy that had the best mean when trained longer."""
    found: dict[tuple[str, tuple[int, ...]], list[float]] = {}
    for entry in piece.entries("finalists"):
        trial = entry.trial
        if (trial.phase, trial.training, trial.steps) == (LONGER_PHASE.format(search), training, steps):
            found.setdefault((trial.method, trial.tokens), []).append(reward(trial))
    policies: dict[str, tuple[int, ...]] = {}
    for method, tokens in sorted(found, key=lambda key: -statistics.fmean(found[key])):
        if method != "none" and method not in piece.peers:
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
    piece: Piece, name: str, lengths: Sequence[int], peers: Methods, policies: Methods, seeds: int
) -> dict[str, dict[Setting, list[float]]]:
    """Rewards of each method by length and rate; a classical one at two kinds of sites has half the seeds for each."""
    shared = max(1, seeds * len(set(map(kind_of, peers))) // max(1, len(peers)))
    children = [
        Child(method, 0, tokens, rate, TUNING_SEED + seed)
        for method, tokens in {**peers, **policies}.items()
        for rate in piece.rates_for(method)[: 2 if piece.smoke else None]
        for seed in range(shared if method in peers else seeds)
    ]
    found: dict[str, dict[Setting, list[float]]] = {}
    for steps in lengths:
        for child, value in zip(children, rewards_of(piece.train("tuning", name, steps, children)), strict=True):
            found.setdefault(child.method, {}).setdefault(Setting(steps, child.rate), []).append(value)
    return found


def none_shorter(piece: Piece, name: str, lengths: Sequence[int], seeds: int) -> dict[str, list[Entry]]:
    """No policy, trained for each of these lengths."""
    found = {}
    for steps in lengths:
        named = f"none, {piece.training(name, steps).steps:,} steps"
        children = [child._replace(method=named, seed=FINAL_SEED + child.seed) for child in piece.nothing(seeds)]
        found[named] = piece.train("final", name, steps, children, test=True)
    return found


def claim(piece: Piece, entries: Sequence[Entry], ours: str, other: str, claims: int) -> dict[str, Any]:
    """Whether one method is better than another on the test part, by their paired differences; below zero is better."""
    metric = f"test {piece.unit}"
    rows = [row for row in rows_of(entries, other, metric, piece.shown) if row.variant.name in (ours, other)]
    by_seed: dict[int, dict[str, float]] = {}
    for row in rows:
        by_seed.setdefault(row.seed, {})[row.variant.name] = row.scores.metrics[metric]
    differences = [both[ours] - both[other] for both in by_seed.values() if len(both) == 2]
    found = next((summary for summary in summaries(rows, metric) if summary.variant.name == ours), None)
    if not differences or found is None:
        return {"metric": metric, "method": ours, "than": other, "n": 0, "holds": False}
    corrected = min(1.0, claims * (p := sign_flips(differences)))
    return {
        "metric": metric,
        "method": ours,
        "than": other,
        "n": len(differences),
        "differences": differences,
        "difference": found.difference,
        "half_interval": found.interval,
        "p": p,
        "p_for_all_claims": corrected,
        "holds": found.difference < 0 and corrected < LEVEL,
    }


def decided(
    scores: Mapping[str, Mapping[Setting, Sequence[float]]], peers: Methods
) -> tuple[dict[str, Setting], list[str]]:
    """By the tuning alone: lengths and rates, and which classical methods are used where."""
    means = {method: {setting: statistics.fmean(of) for setting, of in by.items()} for method, by in scores.items()}
    best = {method: max(by, key=lambda setting: by[setting]) for method, by in means.items()}
    kinds: dict[str, str] = {}
    for method in sorted(peers, key=lambda method: -means[method][best[method]]):
        kinds.setdefault(kind_of(method), method)
    return best, list(kinds.values())


def at_the_edge(setting: Setting, tried: Iterable[Setting]) -> bool:
    """Whether another rate, beyond those tried at this length, might have been better."""
    rates = [other.rate for other in tried if other.steps == setting.steps]
    return setting.rate in (min(rates), max(rates))


def trained(
    piece: Piece, name: str, lengths: Sequence[int], methods: Methods, settings: Mapping[str, Setting], seeds: int
) -> list[Entry]:
    """Every method as it was tuned, with new seeds; no policy for the first of the lengths."""
    found: list[Entry] = []
    for steps in lengths:
        children = [
            Child(method, 0, tokens, setting.rate, FINAL_SEED + seed)
            for method, tokens in methods.items()
            if (setting := settings.get(method, Setting(lengths[0], 0.0))).steps == steps
            for seed in range(seeds)
        ]
        found += piece.train("final", name, steps, children, test=True)
    return found


def best_of(methods: Iterable[str], entries: Sequence[Entry]) -> str:
    """By the mean of their validation scores."""
    return max(methods, key=lambda m: statistics.fmean(rewards_of([e for e in entries if e.trial.method == m])))


def told(piece: Piece, scores: Mapping[str, Mapping[Setting, Sequence[float]]]) -> dict[str, list[dict[str, Any]]]:
    """What was tuned, for a file."""
    return {
        method: [setting._asdict() | {"scores": piece.scores(of)} for setting, of in by.items()]
        for method, by in scores.items()
    }


def final_table(
    piece: Piece, args: argparse.Namespace, name: str, lengths: Sequence[int], peers: Methods, policies: Methods
) -> dict[str, Any]:
    """Methods are tuned, then all are trained with new seeds: both steps of above."""
    scores = tuned(piece, name, lengths, peers, policies, args.tuning_seeds)
    settings, used = decided(scores, peers)
    edges = [method for method, setting in settings.items() if at_the_edge(setting, scores[method])]
    for method, by in scores.items():
        tried = ", ".join(f"{piece.shown(statistics.fmean(of)):.2f}" for of in by.values())
        print(f"{method:32}{tried}; best: {settings[method]}{', at the edge' if method in edges else ''}")
    methods = {"none": piece.nothing(1)[0].tokens} | {peer: peers[peer] for peer in used} | policies
    found = trained(piece, name, lengths, methods, settings, args.final_seeds)
    best_peer = best_of(used, found)
    lengths_of_none = none_shorter(piece, name, args.none_steps, args.final_seeds)
    none_means = {method: statistics.fmean(rewards_of(entries)) for method, entries in lengths_of_none.items()}
    best_length = sorted(none_means, key=lambda method: -none_means[method])[:1]
    for method in best_length:
        found += lengths_of_none[method]
    others = (RANDOM, best_peer, *best_length)
    record = piece.record(f"{name}, tuned at {' and '.join(f'{steps:,}' for steps in lengths)} steps")
    record["tuning"] = told(piece, scores)
    record |= {"rates": {method: setting.rate for method, setting in settings.items()}, "at_the_edge": edges}
    record["training"] = name
    record["lengths"] = {entry.trial.method: entry.trial.steps for entry in found}
    record["none_lengths"] = {method: piece.shown(mean) for method, mean in none_means.items()}
    record |= {"best_classical": best_peer, "policies": methods}
    record["diverged"] = [[e.trial.method, e.trial.seed] for e in found if e.trial.value is None]
    record["tables"] = tables(found, ("none", *others), (f"validation {piece.unit}", f"test {piece.unit}"), piece.shown)
    record["claims"] = [claim(piece, found, OURS, other, claims=len(others)) for other in others]
    for said in record["claims"]:
        print(f"{OURS} better than {said['than']} in the test: {'yes' if said['holds'] else 'NOT SHOWN'}")
    print(f"\nall trials of this journal: {piece.minutes:.1f} minutes")
    return record


def study(piece: Piece, args: argparse.Namespace) -> None:
    name = args.longer_training
    policies = finalists(piece, args.seed, name, piece.training(name, args.longer_steps).steps)
    write(final_table(piece, args, name, args.final_steps, piece.peers, policies), args.out)
