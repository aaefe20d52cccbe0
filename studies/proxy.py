"""Which training is worth searching with? Seeds, classical baselines and random policies, at three lengths and longer.

    python -m studies.ptb proxy [--training half] [--steps 3000] [--smoke]      (and cifar, digits)

For a training of `--steps`, in one table:
- the deviation between seeds: no policy at all, 8 seeds;
- what regularization is worth: classical methods at four rates, 2 seeds each. A reward is worth searching where the
  best of them beats no policy by 5 deviations or more. The best by one seed is judged by the other, and the reverse:
  the best of 24 judged by what made it the best would look better than it is;
- whether the order of policies is that of the training which the search is for, longer or of another model: Spearman's
  correlation over 34 random policies, and its bootstrap interval; beside it that of two seeds at the same length, which
  no proxy of one seed can be expected to pass by much. So, too, for shorter trainings, of `--lengths`. At one rate for
  both much of the order is who drops most, which is good where a training is too long for the rate, and bad where it is
  too short; `--longer-rate` is the longer one's own;
- the rate to search at: how far policies lie apart at each, how many are better than none, and how much of their order
  is only the number of sites they use. Where that is most of it, a search mostly learns to use fewer sites.

These are three parts, which `--parts` can do without: what is compared with the longer one, rates, and the longer one.
The table is made of those that are asked for, but not without the first and the last. Trainings that fail stay in the
journal.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autodropout.spaces import ConvPolicy, Space
from autodropout.tables.statistics import bootstrap, seed_spread, spearman
from benchmarks.recording import Table, averaged, interval, write
from studies.pieces import Child, Piece, rewards_of

BASELINE_RATES = (0.05, 0.1, 0.2, 0.3)
SEARCH_RATES = (0.05, 0.1, 0.2)
PHASE = "proxy"


def sites_used(space: Space, tokens: tuple[int, ...]) -> int:
    policy = space.decode(tokens)
    convnet = isinstance(policy, ConvPolicy)
    patterns = [group.pattern for group in policy.groups] if convnet else policy.sites.values()
    return sum(not pattern.is_none for pattern in patterns)


Found = dict[Child, float]
"""Rewards of one training and length."""


def trained(piece: Piece, name: str, steps: int, children: Sequence[Child]) -> Found:
    return dict(zip(children, rewards_of(piece.train(PHASE, name, steps, children)), strict=True))


def compared(piece: Piece, name: str, steps: int, count: int, rate: float) -> Found:
    """One job: policies, no policy, and each classical method once."""
    bare = piece.nothing(2 if piece.smoke else 8)
    return trained(piece, name, steps, piece.policies(count, rate, 0) + bare + piece.baselines(1, [rate]))


def compared_longer(piece: Piece, name: str, steps: int, count: int, rate: float) -> Found:
    """One job: policies, no policy, and each classical method at the rate and at another."""
    others = piece.nothing(2) + piece.baselines(1, [rate, another(rate)])
    return trained(piece, name, steps, piece.policies(count, rate, 0) + others)


def another(rate: float) -> float:
    """Twice as much; half as much where that would be all."""
    return 2 * rate if 2 * rate < 1 else rate / 2


def all_rates(piece: Piece, name: str, steps: int, count: int, rate: float, rates: Sequence[float]) -> Found:
    """Classical methods with two seeds, policies at the other rates, and at this one with a seed more."""
    tried = (rate, another(rate)) if piece.smoke else (*BASELINE_RATES, rate)  # the search's own with both seeds, too
    children = piece.baselines(2, list(dict.fromkeys(tried)))
    children += [child for other in rates if other != rate for child in piece.policies(count, other, 0)]
    return trained(piece, name, steps, children + piece.policies(count, rate, 1))


def gain(by_peer: Mapping[str, Sequence[float]], none: Sequence[float]) -> float:
    """What the best classical method has before none: chosen by all seeds but one, judged by that one, in turn."""
    judged = []
    for held_out in range(min(map(len, by_peer.values()))):
        others = {peer: [v for seed, v in enumerate(of) if seed != held_out] for peer, of in by_peer.items()}
        chosen = max(others, key=lambda peer: statistics.fmean(others[peer]))
        judged.append(by_peer[chosen][held_out])
    return statistics.fmean(judged) - statistics.fmean(none)


def judge_length(piece: Piece, name: str, steps: int, found: Found, longer: Found) -> dict[str, Any]:
    """One row of the table of lengths; both have the same policies, each at its own rate."""
    here, there, none = of_method("random", found), of_method("random", longer), of_method("none", found)
    return {
        "training": name,
        "steps": piece.training(name, steps).steps,
        "seconds": piece.seconds(name, steps),
        "none": piece.scores(none),
        "deviation": seed_spread([none]).deviation,
        "policies": len(here),
        "random": piece.scores(here),
        "longer": bootstrap(spearman, here, there)._asdict(),
    }


def of_method(method: str, found: Found) -> list[float]:
    return [value for child, value in found.items() if child.method == method]


def judge_all(
    piece: Piece,
    found: Found,
    none: Sequence[float],
    deviation: float,
    count: int,
    rate: float,
    rates: Sequence[float],
) -> dict[str, Any]:
    """What a row has beside that at full length."""
    by_peer: dict[str, list[float]] = {}
    for child, value in found.items():
        if child.method in piece.peers:
            by_peer.setdefault(f"{child.method} at {child.rate:g}", []).append(value)
    best = max(by_peer, key=lambda peer: statistics.fmean(by_peer[peer]))
    first, again = ([found[child] for child in piece.policies(count, rate, seed)] for seed in (0, 1))
    return {
        "peers": {peer: piece.scores(of) for peer, of in by_peer.items()},
        "best_peer": best,
        "gain_in_deviations": gain(by_peer, none) / deviation,
        "two_seeds": bootstrap(spearman, first, again)._asdict(),
        "rates": [judge_rate(piece, other, count, found, statistics.fmean(none), deviation) for other in rates],
    }


def judge_rate(piece: Piece, rate: float, count: int, found: Found, none: float, deviation: float) -> dict[str, Any]:
    """One row of the table of rates."""
    children = piece.policies(count, rate, 0)
    here = [found[child] for child in children]
    return {
        "rate": rate,
        "random": piece.scores(here),
        "deviation_of_seeds": float(np.std(here, ddof=1)) / deviation,
        "better_than_none": sum(value > none for value in here) / count,
        "with_sites_used": bootstrap(
            spearman, here, [sites_used(piece.space, child.tokens) for child in children]
        )._asdict(),
    }


def judge_longer(piece: Piece, name: str, steps: int, rate: float, longer: Found) -> dict[str, Any]:
    peers = {f"{child.method} at {child.rate:g}": child for child in longer if child.method in piece.peers}
    return {
        "training": name,
        "steps": piece.training(name, steps).steps,
        "seconds": piece.seconds(name, steps),
        "rate": rate,
        "none": piece.scores(of_method("none", longer)),
        "random": piece.scores(of_method("random", longer)),
        "peers": {peer: piece.scores([longer[child]])[0] for peer, child in peers.items()},
    }


def show(rows: Sequence[dict[str, Any]], unit: str) -> None:
    """Both tables."""
    columns = (f"none, {unit}", "best classical", "gain/deviation", "with the longer", "two seeds")
    table = Table(columns, 34, 24)
    for row in rows:
        shown: tuple[str | None, ...] = (averaged(row["none"]), None, None, interval(row["longer"]), None)
        if "best_peer" in row:
            best = averaged(row["peers"][row["best_peer"]])
            shown = (shown[0], best, f"{row['gain_in_deviations']:.1f}", shown[3], interval(row["two_seeds"]))
        table.row(f"{row['training']}, {row['steps']:,} steps", dict(zip(columns, shown, strict=True)))
        print(f"    {row['seconds']:.2f} s a child; best: {row.get('best_peer', 'not asked')}")
    print()
    columns = (f"random, {unit}", "deviation", "better than none", "with sites used")
    table = Table(columns, 34, 24)
    for row in rows:
        for of in row.get("rates", ()):
            shown = (
                averaged(of["random"]),
                f"{of['deviation_of_seeds']:.1f} of seeds'",
                f"{of['better_than_none']:.0%}",
            )
            shown += (interval(of["with_sites_used"]),)
            table.row(f"{row['steps']:,} steps at {of['rate']:g}", dict(zip(columns, shown, strict=True)))


def study(piece: Piece, args: argparse.Namespace, count: int, rates: Sequence[float] = SEARCH_RATES) -> None:
    """As far as `--parts` go; the tables are printed and written once all that they need is there."""
    rate = args.rate
    lengths = [*(round(share * args.steps) for share in args.lengths), args.steps]
    final = (args.longer_training, args.longer_steps)
    found, others, longer = {}, {}, {}
    if "compared" in args.parts:
        found = {steps: compared(piece, args.training, steps, count, rate) for steps in lengths}
    if "rates" in args.parts:
        others = all_rates(piece, args.training, args.steps, count, rate, rates)
    if "longer" in args.parts:  # last: it may be another crowd
        longer = compared_longer(piece, *final, count, args.longer_rate)
    if not found or not longer:
        return
    rows = [judge_length(piece, args.training, steps, of, longer) for steps, of in found.items()]
    if others:
        none = of_method("none", found[args.steps])
        rows[-1] |= judge_all(piece, found[args.steps] | others, none, rows[-1]["deviation"], count, rate, rates)
    show(rows, piece.unit)
    print(f"\nall trials of this journal: {piece.minutes:.1f} minutes")
    what = (
        f"candidates for the search's training on {piece.subject}; intervals are 95% bootstrap intervals over policies"
    )
    record = piece.record(what) | {"rate": rate, "rows": rows}
    record["longer"] = judge_longer(piece, *final, args.longer_rate, longer)
    name = "-".join(args.training.replace(",", "").split())
    write(record, args.out.with_stem(f"{args.out.stem}-{name}-{args.steps}-{rate:g}-for-{args.longer_steps}"))
