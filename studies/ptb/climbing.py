"""Rates tuned until the best one is surrounded: at every length, for every method alike, by validation scores.

    tried = climb(piece, "small", {"dropout": tokens}, [Try("dropout", 0.05, 6_000)], seeds)

A method begins, at each length, with a rate and those beside it on one scale. Where the best of a length is the first
or the last that was tried, the one beyond is tried as well, and so on. A length that is behind the method's best one by
more than `BEHIND` is left alone. All have the same seeds.
"""

import argparse
import math
from collections.abc import Iterable, Mapping
from typing import Any

from studies.comparing import tables
from studies.honest import OURS
from studies.pieces import Child
from studies.ptb.finer import Tried, Try, means, named
from studies.ptb.retuned import final_table
from studies.ptb.study import Piece

SCALE = (0.0125, 0.025, 0.0375, 0.05, 0.0625, 0.075, 0.0875, 0.1, 0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.4)
BEHIND = 0.02  # of the best reward
FINAL_SEED, CLIMBING_SEED = 5_000_000, 6_000_000  # the first of those that no other stage has


def nearest(rate: float) -> float:
    """On the scale; nothing to tune is none."""
    return min(SCALE, key=lambda other: abs(math.log(other / rate))) if rate else 0.0


def beside(rate: float, reach: int = 1) -> tuple[float, ...]:
    """A rate of the scale, after so many below and before as many above."""
    if not rate:
        return (rate,)
    place = SCALE.index(rate)
    return SCALE[max(0, place - reach) : place + reach + 1]


def best_of_each(scores: Mapping[Try, float]) -> dict[str, Try]:
    """By method."""
    return {one.method: one for one in sorted(scores, key=lambda one: scores[one])}


def wanted(scores: Mapping[Try, float]) -> list[Try]:
    """What is to be tried before the best of every method and length is surrounded; nothing in the end."""
    best = best_of_each(scores)
    found = []
    for method, steps in dict.fromkeys((one.method, one.steps) for one in scores):
        there = {one: score for one, score in scores.items() if (one.method, one.steps) == (method, steps)}
        summit = max(there, key=lambda one: there[one])
        if scores[summit] >= (1 - BEHIND) * scores[best[method]]:
            found += [summit._replace(rate=rate) for rate in beside(summit.rate)]
    return [one for one in found if one not in scores]


def climb(
    piece: Piece,
    name: str,
    tokens: Mapping[str, tuple[int, ...]],
    starts: Iterable[Try],
    seeds: range,
    reach: int = 1,
) -> Tried:
    """All that was tried, by method, rate and length. The starts' rates are of the scale; `reach` rates on each side of
    them are tried at first: a crowd takes as long with fewer."""
    tried: Tried = {}
    waiting = [one._replace(rate=rate) for one in starts for rate in beside(one.rate, reach)]
    while waiting:
        for steps in dict.fromkeys(one.steps for one in waiting):
            now = [one for one in waiting if one.steps == steps]
            children = [Child(one.method, 0, tokens[one.method], one.rate, seed) for one in now for seed in seeds]
            entries = piece.train("climbing", name, piece.asked(steps), children)
            for number, one in enumerate(now):
                tried[one] = entries[number * len(seeds) : (number + 1) * len(seeds)]
        waiting = wanted(means(tried))
    return tried


def told(piece: Piece, tried: Tried) -> dict[str, list[dict[str, Any]]]:
    """For a file: every try, and its difference from the best of our controller's policy."""
    ours = named(tried[best_of_each(means(tried))[OURS]][0]).trial.method
    entries = [named(entry) for of in tried.values() for entry in of]
    return tables(entries, (ours,), (f"validation {piece.unit}",), piece.shown)


def climbed_table(
    piece: Piece,
    args: argparse.Namespace,
    phase: str,
    name: str,
    tokens: Mapping[str, tuple[int, ...]],
    starts: Iterable[Try],
    *,
    tries: int,
    seeds: int,
    reach: int = 1,
) -> dict[str, Any]:
    """Every method as it was tuned so, with new seeds, for a file; `tries` are the seeds of each try."""
    tuning, final = (args.tuning_seeds, args.final_seeds) if args.smoke else (tries, seeds)
    tried = climb(piece, name, tokens, starts, range(CLIMBING_SEED, CLIMBING_SEED + tuning), reach)
    best = list(best_of_each(means(tried)).values())
    record = final_table(piece, phase, name, best, tokens, range(FINAL_SEED, FINAL_SEED + final))
    return record | {"tried": told(piece, tried)}
