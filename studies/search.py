"""The controller against random search, trial by trial: the same training, the same seeds.

    python -m studies.ptb search [--trials 512] [--seed 0] [--smoke]      (and cifar, digits)

All methods are trained in one crowd: in each round every method proposes 16 policies, which are trained side by side,
and learns from them before it proposes the next 16. So nobody learns late, nobody has a better hour of the machine, and
trial i of each method has the same seed. A search that was cut is resumed from its journal: what was proposed stands
there, and the proposer learns from it again.

Writes best-so-far curves with bootstrap bands (`autodropout.tables.statistics.best_so_far`) beside the table. Their
values are rewards of single seeds, so the best is partly luck: `finalists.py` takes that out. Minutes until a
search has seen a reward are those of whole rounds: before its end nobody knows what a round has found.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autodropout.controller import make_proposer
from autodropout.search.protocols import Proposer, Scored
from autodropout.search.records import trial_seed
from autodropout.spaces import Space
from autodropout.tables import Entry
from autodropout.tables.statistics import best_so_far
from benchmarks.recording import Table, decimals, write
from studies.pieces import MINIBATCH, Child, Piece, minutes, reward, rewards_of


class Search:
    """One method: its proposer, as far as the journal has it."""

    def __init__(self, method: str, space: Space, seed: int, rate: float) -> None:
        self.method, self.seed, self.rate = method, seed, rate
        self.proposer: Proposer = make_proposer(method, space, seed)
        self.entries: list[Entry] = []

    def next(self, count: int) -> list[Child]:
        numbers = range(len(self.entries), len(self.entries) + count)
        return [
            Child(
                *(self.method, number, proposal.tokens, self.rate, trial_seed(self.seed, number)),
                *(proposal.log_prob, proposal.version),
            )
            for number, proposal in zip(numbers, self.proposer.propose(numbers), strict=True)
        ]

    def learn(self, entries: Sequence[Entry]) -> None:
        """From one round."""
        self.entries.extend(entries)
        trials = [entry.trial for entry in entries]
        self.proposer.update(
            [Scored(trial.number, trial.tokens, trial.log_prob, trial.version, reward(trial)) for trial in trials]
        )


def searched(piece: Piece, args: argparse.Namespace) -> dict[str, list[Entry]]:
    """What the search of these options has trained, by method, as far as its journal has it."""
    what = (f"search {args.seed}", args.training, piece.training(args.training, args.steps).steps, args.rate)
    found: dict[str, list[Entry]] = {method: [] for method in args.methods}
    for entry in sorted(piece.entries("search"), key=lambda entry: entry.trial.number):
        trial = entry.trial
        if (trial.phase, trial.training, trial.steps, trial.rate) == what and trial.method in found:
            found[trial.method].append(entry)
    return found


def resume(searches: Sequence[Search], known: Mapping[str, list[Entry]]) -> None:
    """Every search learns again from its whole rounds in the journal; a round that was cut is trained again."""
    for search in searches:
        own = known[search.method]
        assert [entry.trial.number for entry in own] == list(range(len(own))), "journals keep whole jobs, in order"
        for start in range(0, len(own) - len(own) % MINIBATCH, MINIBATCH):
            search.learn(own[start : start + MINIBATCH])


def reached(entries: Sequence[Entry], target: float) -> tuple[int, float] | None:
    """How many trials, and minutes of the machine, a search took to see a reward at least as good."""
    for number, entry in enumerate(entries, start=1):
        if reward(entry.trial) >= target:
            return number, minutes(entries[: -(-number // MINIBATCH) * MINIBATCH])
    return None


def quartiles(piece: Piece, rewards: Sequence[float]) -> list[list[float | None]]:
    """Scores of each round: a quarter of its policies is below the first, half below the second."""
    rounds = [rewards[first : first + MINIBATCH] for first in range(0, len(rewards), MINIBATCH)]
    cuts = (np.quantile(of, (0.75, 0.5, 0.25)).tolist() for of in rounds)
    return [[_rounded(value) for value in piece.scores(of)] for of in cuts]


def summary(piece: Piece, search: Search, target: float) -> dict[str, Any]:
    """One row: how a method did, and how soon it was as good as the target."""
    rewards = rewards_of(search.entries)
    last = [piece.shown(value) for value in rewards[-64:] if value]
    band = best_so_far(rewards, block=MINIBATCH)
    return {
        "method": search.method,
        "trials": len(rewards),
        "best": piece.scores([max(rewards)])[0],
        "last": float(np.mean(last)) if last else None,
        "diverged": sum(entry.trial.value is None for entry in search.entries),
        "minutes": minutes(search.entries),
        "reached": reached(search.entries, target),
        "rounds": {"policies": MINIBATCH, "quartiles": quartiles(piece, rewards)},
        # A band's low end is of rewards: of what is shown it is the high one.
        "curve": {
            name: [_rounded(value) for value in piece.scores(of.tolist())]
            for name, of in zip(("best", "high", "low"), band, strict=True)
        },
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def study(piece: Piece, args: argparse.Namespace) -> None:
    """To its end, then the table."""
    piece.together = MINIBATCH * len(args.methods)
    phase = f"search {args.seed}"
    searches = [Search(method, piece.space, args.seed, args.rate) for method in args.methods]
    resume(searches, searched(piece, args))
    while behind := [search for search in searches if len(search.entries) < args.trials]:
        least = min(len(search.entries) for search in behind)
        now = [search for search in behind if len(search.entries) == least]
        children = [child for search in now for child in search.next(MINIBATCH)]
        found = piece.train(phase, args.training, args.steps, children)
        for place, search in enumerate(now):
            search.learn(found[place * MINIBATCH : (place + 1) * MINIBATCH])
    target = max(rewards_of(searches[0].entries))
    columns = (f"best, {piece.unit}", "mean of last 64", "diverged", "minutes", f"as good as {searches[0].method}")
    table, rows = Table(columns, 20, 24), []
    for search in searches:
        row = summary(piece, search, target)
        rows.append(row)
        took = "never" if row["reached"] is None else "{} trials, {:.1f} min".format(*row["reached"])
        shown = (decimals(row["best"]), decimals(row["last"]), row["diverged"], f"{row['minutes']:.1f}", took)
        table.row(search.method, dict(zip(columns, shown, strict=True)))
    print(f"\nall trials of this journal: {piece.minutes:.1f} minutes")
    what = f"searches on {piece.subject}: {args.training}, {args.steps} steps, rate {args.rate}, seed {args.seed}"
    write(piece.record(what) | {"rows": rows}, args.out.with_stem(f"{args.out.stem}-{args.seed}"))
