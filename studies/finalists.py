"""The best policies of each method, trained again with new seeds, so that luck falls out; then longer.

    python -m studies.ptb finalists [--seed 0] [--smoke]      (and cifar, digits)

1. Of each method in the journal of the search the 10 policies with the best rewards, 5 new seeds each, beside no policy
   and the classical methods at the best rate that `proxy.py` saw, with the same seeds.
2. The 3 best of them by their new mean, for each of `--longer-methods`, and the others again: trained longer, with 3 of
   the seeds. With `--longer-training` that is another training: the one that the search is for. It may want other
   rates: all are multiplied by `--longer-rate` over `--rate`.

The difference between a policy's reward in the search and its mean over new seeds is what was luck. The first of these
10 owes its place to the new seeds, too; the mean over all 10, by which methods are compared here, does not.
"""

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from autodropout.spaces import Space, canonical
from autodropout.tables import Entry, TableTrial
from autodropout.tables.statistics import exchanges
from benchmarks.recording import Table, averaged, write
from studies.pieces import Child, Piece, reward, rewards_of
from studies.search import searched

FIRST_SEED = 1_000_000  # of those that no search uses
PHASE, LONGER_PHASE = "finalists {}", "finalists {}, longer"  # of the search with that seed

Groups = dict[tuple[str, int], list[float]]
"""Rewards by method and number, over seeds."""

Lucky = dict[tuple[str, int], TableTrial]
"""By the same, what a search saw of its best policies."""


def distinct(space: Space, entries: Sequence[Entry], count: int) -> list[Entry]:
    """The best entries, of which no two do the same: tokens without effect do not make another policy."""
    found: dict[tuple[int, ...], Entry] = {}
    for entry in sorted(entries, key=lambda entry: -(reward(entry.trial))):
        found.setdefault(canonical(space, entry.trial.tokens), entry)
    return list(found.values())[:count]


def peers(piece: Piece, training: str, steps: int, seeds: range) -> list[Child]:
    """No policy, and each classical method at the rate that was best for it at this length."""
    seen = [
        entry
        for entry in piece.entries("proxy")
        if entry.trial.training == training and entry.trial.steps == piece.training(training, steps).steps
    ]
    children = [piece.nothing(1)[0]._replace(seed=seed) for seed in seeds]
    for name, tokens in piece.peers.items():
        by_rate: dict[float, list[float]] = {}
        for entry in seen:
            if entry.trial.method == name:
                by_rate.setdefault(entry.trial.rate, []).append(reward(entry.trial))
        if not by_rate:
            raise SystemExit(
                f"{name} was not tried with {training} at {steps} steps: run {piece.command.format('proxy')} first"
            )
        rate = max(by_rate, key=lambda rate: statistics.fmean(by_rate[rate]))
        children += [Child(name, 0, tokens, rate, seed) for seed in seeds]
    return children


def grouped(children: Sequence[Child], found: Sequence[Entry]) -> Groups:
    groups: Groups = {}
    for child, value in zip(children, rewards_of(found), strict=True):
        groups.setdefault((child.method, child.number), []).append(value)
    return groups


def top(space: Space, entries: Mapping[str, Sequence[Entry]], count: int) -> Lucky:
    """Of each method its best policies in the search."""
    best_of = {method: distinct(space, own, count) for method, own in entries.items()}
    return {(method, entry.trial.number): entry.trial for method, own in best_of.items() for entry in own}


def best(again: Groups, lucky: Lucky, methods: Sequence[str], count: int) -> set[tuple[str, int]]:
    """Of each method the best by its mean over new seeds."""
    ordered = sorted((key for key in again if key in lucky), key=lambda key: -statistics.fmean(again[key]))
    return {key for method in methods for key in [key for key in ordered if key[0] == method][:count]}


def by_method(piece: Piece, again: Groups, lucky: Lucky, methods: Sequence[str]) -> list[dict[str, Any]]:
    """All finalists of a method together, against the first method's: no choice among them helps.

    Policies are what differs, so the means of policies are compared, not of seeds.
    """
    rows = []
    means: dict[str, list[float]] = {}
    for method in methods:
        own = [key for key in again if key in lucky and key[0] == method]
        again_of = piece.scores([statistics.fmean(again[key]) for key in own])
        means[method] = [value for value in again_of if value is not None]
        searched = [value for value in piece.scores([reward(lucky[key]) for key in own]) if value is not None]
        both = method != methods[0] and means[method] and means[methods[0]]
        rows.append(
            {
                "method": method,
                "policies": len(own),
                "in_search": statistics.fmean(searched) if searched else None,
                "again": again_of,
                "difference": statistics.fmean(means[method]) - statistics.fmean(means[methods[0]]) if both else None,
                "p": exchanges(means[method], means[methods[0]]) if both else None,
            }
        )
    return rows


def finished(piece: Piece, args: argparse.Namespace) -> dict[str, list[Entry]]:
    """By method, all trials of the search: the best of half a search would be another."""
    found = searched(piece, args)
    for method, entries in found.items():
        if len(entries) < args.trials:
            raise SystemExit(
                f"search {args.seed} by {method} has {len(entries)} of {args.trials} trials: "
                f"run {piece.command.format('search')} first"
            )
    return found


def study(piece: Piece, args: argparse.Namespace) -> None:
    """Both steps, then the tables."""
    many, kept, count, fewer = (2, 1, 2, 2) if args.smoke else (10, 3, 5, 3)
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    others = peers(piece, args.training, args.steps, seeds)
    methods = args.methods
    lucky = top(piece.space, finished(piece, args), many)
    children = [Child(m, number, t.tokens, args.rate, seed) for (m, number), t in lucky.items() for seed in seeds]
    children += others
    again = grouped(children, piece.train(PHASE.format(args.seed), args.training, args.steps, children))
    chosen = best(again, lucky, args.longer_methods, kept) | {(child.method, child.number) for child in others}
    more = args.longer_rate / args.rate
    longer = [
        child._replace(rate=round(min(1.0, more * child.rate), 6))
        for child in children
        if (child.method, child.number) in chosen and child.seed < FIRST_SEED + fewer
    ]
    phase = LONGER_PHASE.format(args.seed)
    long = grouped(longer, piece.train(phase, args.longer_training, args.longer_steps, longer))
    columns = ("rate", "in the search", f"{count} new seeds", "longer")
    rates, longer_rates = ({(child.method, child.number): child.rate for child in of} for of in (children, longer))
    table, rows = Table(columns, 36, 24), []
    for key, found in sorted(again.items(), key=lambda item: -statistics.fmean(item[1])):
        name = f"{key[0]} {key[1]}" if key in lucky else key[0]
        seen = piece.scores([reward(lucky[key])])[0] if key in lucky else None
        rows.append(
            {
                "policy": name,
                "method": key[0],
                "rate": rates[key],
                "longer_rate": longer_rates.get(key),
                "search": seen,
                "again": piece.scores(found),
                "longer": piece.scores(long.get(key, [])),
            }
        )
        shown = (f"{rates[key]:g}", None if seen is None else f"{seen:.2f}", averaged(piece.scores(found), error=True))
        shown += (averaged(piece.scores(long[key]), error=True) if key in long else None,)
        table.row(name, dict(zip(columns, shown, strict=True)))
    together = by_method(piece, again, lucky, methods)
    print()
    for row in together:
        means = [value for value in row["again"] if value is not None]
        print(
            f"{row['method']}: its {row['policies']} policies had {row['in_search'] or math.nan:.2f} in the search on "
            f"average, {statistics.fmean(means) if means else math.nan:.2f} with new seeds"
        )
    print(f"\nall trials of this journal: {piece.minutes:.1f} minutes")
    what = (
        f"finalists on {piece.subject}: {args.training}, {args.steps} steps, rate {args.rate}; longer: "
        f"{args.longer_training}, {args.longer_steps} steps"
    )
    record = piece.record(what) | {"rows": rows, "methods": together}
    write(record, args.out.with_stem(f"{args.out.stem}-{args.seed}"))
