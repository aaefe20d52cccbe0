"""Which search found the best policies? All ten best of each method in the final training, each at a rate of its own.

    python -m studies.ptb race [--seed 0] [--longer-methods random controller] [--smoke]

The tables so far have one policy of each method: of its three best in the search the one that did best in the final
training, by three seeds. Seeds deviate by 0.35 there, and good policies lie nearer than that: which one was taken was
nearly luck. Here nobody is left out early.
1. The ten best policies of each method, those of `finalists.py`, are trained as in the final table: at each of
   `rates_near` with four seeds. What a policy is worth is its mean at the best of them. Methods are compared by all of
   their policies, so that no choice among them helps; the other comparison is of whom each would send.
2. The three best of each are trained at their best rate and those beside it, with eight new seeds. By these alone the
   best of each method is chosen, and its rate.
3. The two are trained once more, with the seeds of `lengths.py`, beside whose classical methods of this length they
   stand. The test text is read here; what it said before has decided nothing.
"""

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autodropout.tables import Entry
from benchmarks.recording import Table, averaged, write
from studies.finalists import Lucky, best, by_method, finished, top
from studies.pieces import Child, reward
from studies.ptb.climbing import FINAL_SEED, beside, nearest
from studies.ptb.lengths import compared
from studies.ptb.retuned import SEEDS
from studies.ptb.study import Piece

MANY, KEPT = 10, 3  # policies of each method
RACE_SEED, CHOICE_SEED = 7_000_000, 8_000_000  # the first of each kind: no other stage has them
RACE_SEEDS, CHOICE_SEEDS = 4, 8
FINAL = "race, final"  # the phase of those that are tested
RATES, RATES_AT = (0.05, 0.0625, 0.0875), 6_000  # between which good policies had their best rate, at that length

Key = tuple[str, int]
"""A policy: the method that found it, and its number in that search."""

Rewards = dict[Key, dict[float, list[float]]]
"""Of each policy by its rate."""


def rates_near(steps: int) -> list[float]:
    """A longer training wants more noise, in proportion."""
    return list(dict.fromkeys(nearest(rate * steps / RATES_AT) for rate in RATES))


def raced(
    piece: Piece, args: argparse.Namespace, phase: str, lucky: Lucky, rates: Mapping[Key, Iterable[float]], seeds: range
) -> Rewards:
    children = [
        Child(key[0], key[1], lucky[key].tokens, rate, seed)
        for key, of in rates.items()
        for rate in of
        for seed in seeds
    ]
    found: Rewards = {}
    for entry in piece.train(phase, args.longer_training, args.longer_steps, children):
        trial = entry.trial
        found.setdefault((trial.method, trial.number), {}).setdefault(trial.rate, []).append(reward(trial))
    return found


def best_rates(found: Rewards) -> dict[Key, float]:
    return {key: max(by_rate, key=lambda rate: statistics.fmean(by_rate[rate])) for key, by_rate in found.items()}


def at_best(found: Rewards) -> dict[Key, list[float]]:
    """Of each policy its rewards at its best rate."""
    return {key: found[key][rate] for key, rate in best_rates(found).items()}


def sent(found: Rewards, methods: Sequence[str]) -> dict[str, Key]:
    """Of each method its best policy."""
    worth = {key: statistics.fmean(of) for key, of in at_best(found).items()}
    return {method: max((key for key in worth if key[0] == method), key=lambda key: worth[key]) for method in methods}


def classical(piece: Piece) -> list[Entry]:
    """The final trainings of classical methods, at each length that suits them."""
    stages = ("bracketed", "lengths")
    known = (entry for stage in stages for entry in piece.entries(stage) if entry.trial.phase == stage)
    return [entry for entry in known if entry.trial.method in piece.peers]


def final(piece: Piece, args: argparse.Namespace, lucky: Lucky, chosen: Mapping[Key, float]) -> list[Entry]:
    """The best of each method, and the classical methods that had a final training of this length with these seeds."""
    seeds = range(FINAL_SEED, FINAL_SEED + (args.final_seeds if args.smoke else SEEDS))
    children = [
        Child(f"policy of {method}", 0, lucky[method, number].tokens, rate, seed)
        for (method, number), rate in chosen.items()
        for seed in seeds
    ]
    ours = piece.train(FINAL, args.longer_training, args.longer_steps, children, test=True)
    steps = piece.training(args.longer_training, args.longer_steps).steps
    return ours + [entry for entry in classical(piece) if entry.trial.steps == steps and entry.trial.seed in seeds]


def show(piece: Piece, found: Rewards, methods: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each policy, the best first; the same for a file."""
    rates = sorted({rate for by_rate in found.values() for rate in by_rate})
    columns = [f"at {rate:g}" for rate in rates]
    table, rows = Table(columns, 24, 20), []
    worth = at_best(found)
    for key in sorted(found, key=lambda key: -statistics.fmean(worth[key])):
        method, number = key
        by_rate = {rate: piece.scores(of) for rate, of in sorted(found[key].items())}
        shown = {f"at {rate:g}": averaged(of, error=True) for rate, of in by_rate.items()}
        table.row(f"{method} {number}", {column: shown.get(column) for column in columns})
        rows.append({"method": method, "number": number, "scores": {f"{rate:g}": of for rate, of in by_rate.items()}})
    for row in methods:
        known = [value for value in row["again"] if value is not None]
        told = "" if row["p"] is None else f", {row['difference']:+.2f} from {methods[0]['method']}, p = {row['p']:.4f}"
        print(f"{row['method']}: its {row['policies']} policies are worth {averaged(known, error=True)}{told}")
    print()
    return rows


def study(piece: Piece, args: argparse.Namespace) -> None:
    many, kept, race, choice = (3, 2, 2, 2) if args.smoke else (MANY, KEPT, RACE_SEEDS, CHOICE_SEEDS)
    methods = args.longer_methods
    lucky = top(piece.space, {method: of for method, of in finished(piece, args).items() if method in methods}, many)
    steps = piece.training(args.longer_training, args.longer_steps).steps
    everywhere = dict.fromkeys(lucky, rates_near(args.longer_steps))
    first = raced(piece, args, "race", lucky, everywhere, range(RACE_SEED, RACE_SEED + race))
    together = by_method(piece, at_best(first), lucky, methods)
    rows = show(piece, first, together)
    rates, leaders = best_rates(first), best(at_best(first), lucky, methods, kept)
    going_on = {key: beside(rate) for key, rate in rates.items() if key in leaders}
    second = raced(piece, args, "race, the best", lucky, going_on, range(CHOICE_SEED, CHOICE_SEED + choice))
    chosen = {key: best_rates(second)[key] for key in sent(second, methods).values()}
    record = piece.record(f"{args.longer_training}, {steps:,} steps: the {many} best policies of each search")
    record |= {"methods": together, "rows": rows, "best": show(piece, second, ())}
    record["chosen"] = [
        {"method": method, "number": number, "rate": rate, "tokens": lucky[method, number].tokens}
        for (method, number), rate in chosen.items()
    ]
    record |= compared(piece, final(piece, args, lucky, chosen), 1)
    tried = {key: {*first[key], *second[key]} for key in chosen}
    record["at_the_edge"] = [
        f"{key[0]} {key[1]}" for key, rate in chosen.items() if rate in (min(tried[key]), max(tried[key]))
    ]
    record["lengths"] = dict.fromkeys((row["method"] for of in record["tables"].values() for row in of), steps)
    write(record, args.out)
