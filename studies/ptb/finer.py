"""Were the methods of the final table tuned finely enough? Rates and lengths between, by validation text alone.

    python -m studies.ptb finer [--smoke]

1. Classical methods, at their usual sites and at all, that came near the best of them in the tuning of `honest.py`,
   at the rates halfway to the neighbours of their best one. Policies are not tuned further, so that a difference to
   them can only shrink.
2. The best classical methods and both policies for shorter and for longer than they were tuned to, at their rate and,
   since a longer training wants more noise, at the next one in that direction.

Each with as many seeds of the final table as make one job. The test text is not read: the final table stays as it is.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from autodropout.tables import Entry
from benchmarks.recording import write
from studies.comparing import tables
from studies.honest import FINAL_SEED, OURS, RANDOM
from studies.pieces import Child, Piece, rewards_of

NEAR = 1.02  # times the perplexity of the best
LENGTH_PEERS = 2  # classical methods that are trained for other lengths, too
LENGTHS = (3 / 4, 4 / 3)  # of the tuned one


class Try(NamedTuple):
    """A method, as it is trained."""

    method: str
    rate: float
    steps: int

    @classmethod
    def of(cls, entry: Entry) -> "Try":
        return cls(entry.trial.method, entry.trial.rate, entry.trial.steps)


Tried = dict[Try, list[Entry]]


def by_try(entries: Iterable[Entry]) -> Tried:
    found: Tried = {}
    for entry in entries:
        found.setdefault(Try.of(entry), []).append(entry)
    return found


def means(tried: Tried) -> dict[Try, float]:
    return {one: statistics.fmean(rewards_of(entries)) for one, entries in tried.items()}


Tuning = dict[str, list[dict[str, Any]]]
"""By method, what was tried, as the JSON file of `honest.py` has it."""


def between(rate: float, tried: Iterable[float]) -> tuple[float, float]:
    """Halfway to the next rates; below the first, to nothing, and as far above the last."""
    rates = [0.0, *sorted(set(tried))]
    place = rates.index(rate)
    below = (rates[place - 1] + rate) / 2
    above = (rate + rates[place + 1]) / 2 if place + 1 < len(rates) else 2 * rate - below
    return round(below, 6), round(above, 6)


def leaders(tuning: Tuning, methods: Iterable[str]) -> list[Try]:
    """Of each method what was best, the best of all first; methods that are not near it are left out."""
    tried = [
        (statistics.fmean(of["scores"]), Try(method, of["rate"], of["steps"]))
        for method in methods
        for of in tuning[method]
        if None not in of["scores"]
    ]
    tried.sort(key=lambda one: one[0])
    found: dict[str, Try] = {}
    for score, one in tried:
        if score < NEAR * tried[0][0]:
            found.setdefault(one.method, one)
    return list(found.values())


def jobs_of(tuning: Tuning, peers: Sequence[str]) -> list[list[Try]]:
    """Three: other rates, a shorter and a longer training."""
    around = {method: [of["rate"] for of in tried] for method, tried in tuning.items()}
    classical = leaders(tuning, peers)
    jobs = [[one._replace(rate=rate) for one in classical for rate in between(one.rate, around[one.method])]]
    both = [*classical[:LENGTH_PEERS], *leaders(tuning, [RANDOM]), *leaders(tuning, [OURS])]
    for direction, share in enumerate(LENGTHS):
        job = []
        for one in both:
            other = one._replace(steps=round(share * one.steps))
            job += [other, other._replace(rate=between(one.rate, around[one.method])[direction])]
        jobs.append(job)
    return jobs


def train(piece: Piece, name: str, jobs: Sequence[Sequence[Try]], tokens: dict[str, tuple[int, ...]]) -> list[Entry]:
    found: list[Entry] = []
    for job in jobs:
        seeds = max(2, piece.together // len(job))
        for steps in dict.fromkeys(one.steps for one in job):
            children = [
                Child(one.method, 0, tokens[one.method], one.rate, FINAL_SEED + seed)
                for one in job
                if one.steps == steps
                for seed in range(seeds)
            ]
            found += piece.train("finer", name, steps, children)
    return found


def compared(piece: Piece, found: Sequence[Entry]) -> list[Entry]:
    """What was tried, after what the final table has of the same methods and seeds."""
    seeds, methods = {entry.trial.seed for entry in found}, {entry.trial.method for entry in found}
    final = [
        entry
        for entry in piece.entries("honest")
        if entry.trial.phase == "final" and entry.trial.seed in seeds and entry.trial.method in methods
    ]
    return final + list(found)


def named(entry: Entry) -> Entry:
    """With its rate and length in its method's name: methods are compared at several."""
    one = Try.of(entry)
    told = f"{one.method} at {one.rate:g}, {one.steps:,} steps"
    return entry._replace(trial=replace(entry.trial, method=told))


def study(piece: Piece, args: argparse.Namespace) -> None:
    source = args.folder / "honest.json"
    if not source.exists():
        raise SystemExit(f"{source} is not there, which has the tuning: run {piece.command.format('honest')} first")
    before = json.loads(source.read_text())
    tokens = {**piece.peers, **{name: tuple(of) for name, of in before["policies"].items()}}
    jobs = jobs_of(before["tuning"], list(piece.peers))
    found = compared(piece, train(piece, args.longer_training, jobs, tokens))
    ours = next(named(entry).trial.method for entry in found if entry.trial.method == OURS)
    record = piece.record(f"{args.longer_training}: rates and lengths between those of the final table, with its seeds")
    metric = f"validation {piece.unit}"
    record["tables"] = tables([named(entry) for entry in found], (ours,), (metric,), piece.shown)
    write(record, args.out)
