"""Every method at each length that suits it: which of them tuning chose was nearly luck, and made a difference.

    python -m studies.ptb lengths [--smoke]

`bracketed.py` found the best rate of each method at two lengths, and trained it at one of them for its table. By
the validation text the two are often as good as each other; by the test text the longer one seemed to be better, and
not all methods had it. So here each method is trained at both, with that table's seeds, unless one is behind by more
than `NEAR`. Nothing is tuned or chosen. Claims are made of methods at one length.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from autodropout.tables import Entry
from benchmarks.recording import write
from studies.comparing import tables
from studies.honest import OURS, RANDOM, best_of, claim
from studies.pieces import Child
from studies.ptb.climbing import best_of_each
from studies.ptb.finer import Try, by_try, means
from studies.ptb.study import Piece

NEAR = 0.01  # of the best reward


def suitable(scores: Mapping[Try, float]) -> list[Try]:
    """Of each method and length the best rate, but for lengths that do not suit the method."""
    best = best_of_each(scores)
    by_length = {(one.method, one.steps): one for one in sorted(scores, key=lambda one: scores[one])}
    return [one for one in by_length.values() if scores[one] >= (1 - NEAR) * scores[best[one.method]]]


def compared(piece: Piece, entries: Sequence[Entry], claims: int) -> dict[str, Any]:
    """The methods of one length: what is claimed is that policies are better than the best classical one, and ours
    than random search's."""
    methods = dict.fromkeys(entry.trial.method for entry in entries)
    peers = [method for method in methods if method in piece.peers]
    firsts = [RANDOM] * (RANDOM in methods) + ([best_of(peers, entries)] if peers else [])
    pairs = [(ours, other) for ours in (OURS, RANDOM) for other in firsts if ours in methods and ours != other]
    return {
        "tables": tables(entries, firsts, (f"validation {piece.unit}", f"test {piece.unit}"), piece.shown),
        "claims": [claim(piece, entries, *pair, claims=claims * len(pairs)) for pair in pairs],
    }


def study(piece: Piece, args: argparse.Namespace) -> None:
    before = piece.entries("bracketed")
    known, climbed = (
        by_try(entry for entry in before if entry.trial.phase == phase) for phase in ("bracketed", "climbing")
    )
    tokens = {one.method: entries[0].trial.tokens for one, entries in known.items()}
    seeds = sorted({entry.trial.seed for entries in known.values() for entry in entries})
    chosen = suitable(means(climbed))
    found: dict[int, list[Entry]] = {}
    for steps in sorted({one.steps for one in chosen}, reverse=True):
        there = [one for one in chosen if one.steps == steps]
        found[steps] = [entry for one in there for entry in known.get(one, [])]
        children = [
            Child(one.method, 0, tokens[one.method], one.rate, seed)
            for one in there
            if one not in known
            for seed in seeds
        ]
        found[steps] += piece.train("lengths", args.longer_training, piece.asked(steps), children, test=True)
    record = piece.record(
        f"{args.longer_training}, each method at the lengths that suit it, the seeds of bracketed.json"
    )
    record["by_length"] = {f"{steps:,}": compared(piece, entries, len(found)) for steps, entries in found.items()}
    write(record, args.out)
