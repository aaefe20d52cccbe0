"""Which training is worth searching with? Seeds, classical baselines and random policies, at three lengths and longer.

    python benchmarks/ptb_proxy.py [--training small] [--steps 4000] [--smoke]      (see ptb_study.py)

For a training of `--steps`, in one table:
- the deviation between seeds: no policy at all, 8 seeds;
- what regularization is worth: classical methods at four rates, 2 seeds each. A reward is worth searching where the
  best of them beats no policy by 5 deviations or more. The best by one seed is judged by the other, and the reverse:
  the best of 24 judged by what made it the best would look better than it is;
- whether the order of policies is that of the training which the search is for, longer or of another model: Spearman's
  correlation over 34 random policies, and its bootstrap interval; beside it that of two seeds at the same length, which
  no proxy of one seed can be expected to pass by much. So, too, for shorter trainings, of `--lengths`;
- the rate to search at: how far policies lie apart at each, how many are better than none, and how much of their order
  is only the number of sites they use. Where that is most of it, a search mostly learns to use fewer sites.

Trainings that fail stay in the journal, and in the table.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autodropout.tables.statistics import bootstrap, seed_spread, spearman
from ptb_study import (
    NONE,
    SPACE,
    Child,
    Piece,
    Tokens,
    families,
    perplexities,
    rewards_of,
    spread,
    study_options,
)
from recording import Table, interval, write

BASELINE_RATES = (0.05, 0.1, 0.2, 0.3)
SEARCH_RATES = (0.05, 0.1, 0.2)  # the first one's policies are trained longer, too
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


def compared(piece: Piece, name: str, steps: int, count: int) -> Found:
    """One job: the policies at the first rate, no policy, and each classical method once."""
    children = policies(count, SEARCH_RATES[0], 0) + nothing(2 if piece.smoke else 8)
    children += baselines(1, SEARCH_RATES[:1])
    return dict(zip(children, rewards_of(piece.train(PHASE, name, steps, children)), strict=True))


def train_all(piece: Piece, name: str, steps: int, count: int) -> Found:
    """Beside that: classical methods at all rates, policies at the other rates, and those of the first with a seed more."""
    first = compared(piece, name, steps, count)
    children = baselines(2, BASELINE_RATES[:2] if piece.smoke else BASELINE_RATES)
    children += [child for rate in SEARCH_RATES[1:] for child in policies(count, rate, 0)]
    children += policies(count, SEARCH_RATES[0], 1)
    children = [child for child in children if child not in first]
    return first | dict(zip(children, rewards_of(piece.train(PHASE, name, steps, children)), strict=True))


def gain(by_peer: Mapping[str, Sequence[float]], none: Sequence[float]) -> float:
    """What the best classical method has before none: chosen by all seeds but one, judged by that one, in turn."""
    judged = []
    for held_out in range(min(map(len, by_peer.values()))):
        others = {peer: [v for seed, v in enumerate(of) if seed != held_out] for peer, of in by_peer.items()}
        chosen = max(others, key=lambda peer: statistics.fmean(others[peer]))
        judged.append(by_peer[chosen][held_out])
    return statistics.fmean(judged) - statistics.fmean(none)


def judge_length(piece: Piece, name: str, steps: int, found: Found, longer: Found, count: int) -> dict[str, Any]:
    """One row of the table of lengths."""
    none = [found[child] for child in found if child.method == "none"]
    first = policies(count, SEARCH_RATES[0], 0)
    here, there = [found[child] for child in first], [longer[child] for child in first]
    return {
        "training": name,
        "steps": piece.training(name, steps).steps,
        "seconds": piece.seconds(name, steps),
        "none": perplexities(none),
        "deviation": seed_spread([none]).deviation,
        "policies": count,
        "random": perplexities(here),
        "longer": bootstrap(spearman, here, there)._asdict(),
        "shown": {"none": spread(none)},
    }


def judge_all(found: Found, none: Sequence[float], deviation: float, count: int) -> dict[str, Any]:
    """What a row has beside that at full length."""
    first, again = (policies(count, SEARCH_RATES[0], seed) for seed in (0, 1))
    by_peer: dict[str, list[float]] = {}
    for child, value in found.items():
        if child.method in families():
            by_peer.setdefault(f"{child.method} at {child.rate:g}", []).append(value)
    best = max(by_peer, key=lambda peer: statistics.fmean(by_peer[peer]))
    return {
        "peers": {peer: perplexities(of) for peer, of in by_peer.items()},
        "best_peer": best,
        "best_peer_shown": spread(by_peer[best]),
        "gain_in_deviations": gain(by_peer, none) / deviation,
        "two_seeds": bootstrap(spearman, [found[c] for c in first], [found[c] for c in again])._asdict(),
        "rates": [judge_rate(rate, count, found, statistics.fmean(none), deviation) for rate in SEARCH_RATES],
    }


def judge_rate(rate: float, count: int, found: Found, none: float, deviation: float) -> dict[str, Any]:
    """One row of the table of rates."""
    children = policies(count, rate, 0)
    here = [found[child] for child in children]
    return {
        "rate": rate,
        "random": perplexities(here),
        "deviation_of_seeds": float(np.std(here, ddof=1)) / deviation,
        "better_than_none": sum(value > none for value in here) / count,
        "with_sites_used": bootstrap(spearman, here, [sites_used(child.tokens) for child in children])._asdict(),
        "shown": spread(here),
    }


def main(argv: Sequence[str] | None = None) -> None:
    args = study_options(__doc__, "proxy", argv)
    piece = Piece(args, "proxy")
    count = 4 if piece.smoke else 34  # so that jobs of 48 are full
    lengths = [round(share * args.steps) for share in args.lengths]
    found = {steps: compared(piece, args.training, steps, count) for steps in (*lengths, args.steps)}
    longer = compared(piece, args.longer_training, args.longer_steps, count)
    found[args.steps] = train_all(piece, args.training, args.steps, count)
    rows = [judge_length(piece, args.training, steps, of, longer, count) for steps, of in found.items()]
    none = [value for child, value in found[args.steps].items() if child.method == "none"]
    rows[-1] |= judge_all(found[args.steps], none, rows[-1]["deviation"], count)
    columns = ("none, perplexity", "best classical", "gain/deviation", "with the longer", "two seeds")
    table = Table(columns, 34, 24)
    for row in rows:
        whole = "best_peer" in row
        shown = (row["shown"]["none"], row["best_peer_shown"] if whole else None)
        shown += (f"{row['gain_in_deviations']:.1f}" if whole else None, interval(row["longer"]))
        shown += (interval(row["two_seeds"]) if whole else None,)
        table.row(f"{row['training']}, {row['steps']:,} steps", dict(zip(columns, shown, strict=True)))
        print(f"    {row['seconds']:.2f} s a child{'; best: ' + row['best_peer'] if whole else ''}")
    print()
    columns = ("random, perplexity", "deviation", "better than none", "with sites used")
    table = Table(columns, 34, 24)
    for of in rows[-1]["rates"]:
        shown = (of["shown"], f"{of['deviation_of_seeds']:.1f} of seeds'", f"{of['better_than_none']:.0%}")
        shown += (interval(of["with_sites_used"]),)
        table.row(f"{rows[-1]['steps']:,} steps at {of['rate']:g}", dict(zip(columns, shown, strict=True)))
    print(f"\nall trials of this journal: {piece.minutes:.1f} minutes")
    long = {
        "training": args.longer_training,
        "steps": piece.training(args.longer_training, args.longer_steps).steps,
        "seconds": piece.seconds(args.longer_training, args.longer_steps),
        "none": perplexities([value for child, value in longer.items() if child.method == "none"]),
        "random": perplexities([value for child, value in longer.items() if child.method == "random"]),
        "peers": {c.method: perplexities([value])[0] for c, value in longer.items() if c.method in families()},
    }
    what = "candidates for the search's training on Penn Treebank; intervals are 95% bootstrap intervals over policies"
    record = piece.record(what) | {"rows": rows, "longer": long}
    write(record, args.out.with_stem(f"{args.out.stem}-{args.training}"))


if __name__ == "__main__":
    main()
