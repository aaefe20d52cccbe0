"""Does the final table stand when methods are tuned more finely? Four of them, at what `finer.py` found to be best.

    python -m studies.ptb retuned [--smoke]

The methods: the two classical ones and the two policies whose lengths were tried there. Of each it takes the rate and
the length with the best validation perplexity, of those of the final table and of those between, and trains it with
seeds that nothing was chosen by. The test text is read for a second time; what the first reading said has decided
nothing here. The claims are those of `honest.py`, but for no policy, which has not been tuned again.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from autodropout.tables import Entry
from benchmarks.recording import write
from studies.comparing import tables
from studies.honest import OURS, RANDOM, best_of, claim
from studies.pieces import Child
from studies.ptb.finer import Try, by_try, compared, means
from studies.ptb.study import Piece

SEED = 4_000_000  # the first of those that no other stage has
SEEDS = 24  # of each method: two of one length fill a crowd


def best_tries(entries: Sequence[Entry]) -> list[Try]:
    """Of each method that was trained for several lengths, what had the best mean."""
    scores = means(by_try(entries))
    found: dict[str, Try] = {}
    for one in sorted(scores, key=lambda one: -scores[one]):
        if len({other.steps for other in scores if other.method == one.method}) > 1:
            found.setdefault(one.method, one)
    return list(found.values())


def final_table(
    piece: Piece, phase: str, name: str, chosen: Sequence[Try], tokens: Mapping[str, tuple[int, ...]], seeds: range
) -> dict[str, Any]:
    """Every method as it was tuned, with these seeds, by validation and by test text."""
    found: list[Entry] = []
    for steps in sorted({one.steps for one in chosen}, reverse=True):
        children = [
            Child(one.method, 0, tokens[one.method], one.rate, seed)
            for one in chosen
            if one.steps == steps
            for seed in seeds
        ]
        found += piece.train(phase, name, piece.asked(steps), children, test=True)
    best_peer = best_of([one.method for one in chosen if one.method in piece.peers], found)
    others = (RANDOM, best_peer, *(one.method for one in chosen if not one.rate))
    record = piece.record(f"{name}, each method at the best of its rates and lengths, new seeds")
    record |= {"lengths": {one.method: one.steps for one in chosen}, "best_classical": best_peer}
    record["tables"] = tables(found, others, (f"validation {piece.unit}", f"test {piece.unit}"), piece.shown)
    record["claims"] = [claim(piece, found, OURS, other, claims=len(others)) for other in others]
    return record


def study(piece: Piece, args: argparse.Namespace) -> None:
    before = compared(piece, piece.entries("finer"))
    tokens = {entry.trial.method: entry.trial.tokens for entry in before}
    seeds = range(SEED, SEED + (args.final_seeds if args.smoke else SEEDS))
    write(final_table(piece, "retuned", args.longer_training, best_tries(before), tokens, seeds), args.out)
