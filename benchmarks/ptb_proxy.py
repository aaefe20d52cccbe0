"""Which training is worth searching with? Seeds, classical baselines and random policies, at three lengths and longer.

    python benchmarks/ptb_proxy.py [--training small] [--steps 4000] [--smoke]      (see ptb_study.py)

For trainings of a quarter, a half and all of `--steps`:
- the deviation between seeds: no policy at all, 8 seeds;
- what regularization is worth: classical methods at four rates, 2 seeds each. A reward is worth searching where the
  best of them beats no policy by 5 deviations or more;
- whether the order of policies is that of longer training: Spearman's correlation, over 32 random policies, with
  training 4 times longer, and its bootstrap interval; beside it that of two seeds at the same length, which no proxy of
  one seed can be expected to pass by much;
- the rate to search at: how far policies lie apart at each, how many are better than none, and how much of their order
  is only the number of sites they use. Where that is most of it, a search mostly learns to use fewer sites.

Trainings that fail stay in the journal, and in the table.
"""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from autodropout.tables.statistics import bootstrap, seed_spread, spearman
from ptb_study import NONE, SPACE, Child, Piece, Tokens, families, minutes, parsed, perplexity, spread, study_options
from ptb_study import values as rewards
from recording import Table, facts, write

BASELINE_RATES = (0.05, 0.1, 0.2, 0.3)
SEARCH_RATES = (0.1, 0.05, 0.2)  # the first one's policies are trained longer, too
LONGER = 4
PHASE = "proxy"


def nothing(seeds: int) -> list[Child]:
    return [Child("none", 0, NONE, 0.0, seed) for seed in range(seeds)]


def baselines(seeds: int, rates: Sequence[float]) -> list[Child]:
    return [
        Child(name, 0, tokens, rate, seed)
        for name, tokens in families().items()
        for rate in rates
        for seed in range(seeds)
    ]


def policies(count: int, rate: float, seed: int) -> list[Child]:
    return [Child("random", number, SPACE.encode(SPACE.sample(number)), rate, seed) for number in range(count)]


def sites_used(tokens: Tokens) -> int:
    return sum(not pattern.is_none for pattern in SPACE.decode(tokens).sites.values())


Found = dict[Child, float]
"""Rewards of one training and length."""


def train_all(piece: Piece, name: str, steps: int, count: int) -> tuple[list[Child], list[Child], Found]:
    """Everything at one length, in as few jobs as possible: no policy, the classical methods, and all rewards."""
    bare = nothing(2 if piece.smoke else 8)
    peers = baselines(2, BASELINE_RATES[:1] if piece.smoke else BASELINE_RATES)
    random = [child for rate in SEARCH_RATES for child in policies(count, rate, 0)]
    children = [*bare, *peers, *random, *policies(count, SEARCH_RATES[0], 1)]
    return bare, peers, dict(zip(children, rewards(piece.train(PHASE, name, steps, children)), strict=True))


def judge_length(piece: Piece, name: str, steps: int, count: int) -> dict[str, Any]:
    """One row of the table of lengths."""
    bare, peers, found = train_all(piece, name, steps, count)
    first, again = (policies(count, SEARCH_RATES[0], seed) for seed in (0, 1))
    longer = rewards(piece.train(PHASE, name, LONGER * steps, first))
    none = [found[child] for child in bare]
    by_peer: dict[str, list[float]] = {}
    for child in peers:
        by_peer.setdefault(f"{child.method} at {child.rate:g}", []).append(found[child])
    best = max(by_peer, key=lambda peer: statistics.fmean(by_peer[peer]))
    deviation = seed_spread([none]).deviation
    here = [found[child] for child in first]
    return {
        "training": name,
        "steps": piece.training(name, steps).steps,
        "none": [perplexity(value) for value in none],
        "deviation": deviation,
        "peers": {peer: [perplexity(value) for value in of] for peer, of in by_peer.items()},
        "best_peer": best,
        "gain_in_deviations": (statistics.fmean(by_peer[best]) - statistics.fmean(none)) / deviation,
        "longer": bootstrap(spearman, here, longer)._asdict(),
        "two_seeds": bootstrap(spearman, here, [found[child] for child in again])._asdict(),
        "shown": {"none": spread(none), "best": spread(by_peer[best])},
        "rates": [judge_rate(rate, count, found, statistics.fmean(none), deviation) for rate in SEARCH_RATES],
    }


def judge_rate(rate: float, count: int, found: Found, none: float, deviation: float) -> dict[str, Any]:
    """One row of the table of rates."""
    children = policies(count, rate, 0)
    here = [found[child] for child in children]
    return {
        "rate": rate,
        "random": [perplexity(value) for value in here],
        "deviation_of_seeds": float(np.std(here, ddof=1)) / deviation,
        "better_than_none": sum(value > none for value in here) / count,
        "with_sites_used": bootstrap(spearman, here, [sites_used(child.tokens) for child in children])._asdict(),
        "shown": spread(here),
    }


def main() -> None:
    args = parsed(study_options(__doc__, "proxy"))
    piece = Piece(args, "proxy")
    count = 4 if piece.smoke else 32
    lengths = [args.steps // 4, args.steps // 2, args.steps]
    columns = ("none, perplexity", "best classical", "gain/deviation", "with 4x longer", "two seeds")
    table, rows = Table(columns, 34, 24), []
    for steps in lengths:
        row = judge_length(piece, args.training, steps, count)
        rows.append(row)
        shown = {"none, perplexity": row["shown"]["none"], "best classical": row["shown"]["best"]}
        shown |= {"gain/deviation": f"{row['gain_in_deviations']:.1f}", "with 4x longer": _interval(row["longer"])}
        table.row(f"{row['training']}, {row['steps']:,} steps", shown | {"two seeds": _interval(row["two_seeds"])})
        print(f"    the best classical method: {row['best_peer']}")
    print()
    table = Table(("random, perplexity", "deviation", "better than none", "with sites used"), 34, 24)
    for row in rows:
        for found in row["rates"]:
            shown = {"random, perplexity": found["shown"], "deviation": f"{found['deviation_of_seeds']:.1f} of seeds'"}
            shown["better than none"] = f"{found['better_than_none']:.0%}"
            shown["with sites used"] = _interval(found["with_sites_used"])
            table.row(f"{row['steps']:,} steps at {found['rate']:g}", shown)
    print(f"\nall trials of this journal: {minutes(piece.journal.entries):.1f} minutes")
    what = "candidates for the search's training on Penn Treebank; intervals are 95% bootstrap intervals over policies"
    record = facts(what, ("torch", "numpy"), piece.machine) | {"rows": rows}
    write(record, args.out.with_stem(f"{args.out.stem}-{args.training}"))


def _interval(found: dict[str, float]) -> str:
    return f"{found['estimate']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


if __name__ == "__main__":
    main()
