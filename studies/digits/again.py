"""A later search, and what its policies are worth beside the methods of the final table.

    python -m studies.digits search finalists --seed 1 --trials 320
    python -m studies.digits again --seed 1 --trials 320 [--smoke]

Of each method it takes the policy that was best by the five new seeds of `finalists.py`, at the search's own length, as
`autodropout confirm` would. Its rate is tuned as rates were for the final table (`honest.py`), and it is trained with
the seeds of that table, so that differences from the methods there are paired. The test images are seen here once more;
what they said before has decided nothing.
"""

import argparse
import statistics
from typing import Any

from benchmarks.recording import write
from studies.comparing import tables
from studies.digits.study import Piece
from studies.finalists import PHASE, finished
from studies.honest import OURS, RANDOM, Methods, best_of, claim, decided, told, trained, tuned
from studies.pieces import reward


def chosen(piece: Piece, args: argparse.Namespace) -> Methods:
    """Of each method of the search its best policy by new seeds, named by how many it had tried."""
    finished(piece, args)
    found: dict[tuple[str, tuple[int, ...]], list[float]] = {}
    for entry in piece.entries("finalists"):
        trial = entry.trial
        if trial.phase == PHASE.format(args.seed) and trial.method in args.methods:
            found.setdefault((trial.method, trial.tokens), []).append(reward(trial))
    if missing := set(args.methods) - {method for method, _ in found}:
        raise SystemExit(
            f"search {args.seed} has no finalists by {', '.join(sorted(missing))}: "
            f"run {piece.command.format('finalists')} first"
        )
    policies: dict[str, tuple[int, ...]] = {}
    for method, tokens in sorted(found, key=lambda key: -statistics.fmean(found[key])):
        policies.setdefault(f"policy of {method}, {args.trials} policies", tokens)
    return policies


def study(piece: Piece, args: argparse.Namespace) -> None:
    policies, steps = chosen(piece, args), args.steps
    scores = tuned(piece, args.training, [steps], {}, policies, args.tuning_seeds)
    settings, _ = decided(scores, {})
    earlier = [entry for entry in piece.entries("honest") if entry.trial.phase == "final"]
    found = trained(piece, args.training, [steps], policies, settings, args.final_seeds) + earlier
    tested = {entry.trial.method for entry in earlier}
    best_peer = best_of([peer for peer in piece.peers if peer in tested], earlier)
    ours, random = (f"{name}, {args.trials} policies" for name in (OURS, RANDOM))
    others = (random, best_peer, OURS)
    record: dict[str, Any] = piece.record(
        f"{args.training}, {steps} steps: policies of search {args.seed}, of {args.trials} policies each, beside the "
        "final table's methods, with its seeds"
    )
    record["tuning"] = told(piece, scores)
    record |= {"policies": policies, "lengths": {entry.trial.method: entry.trial.steps for entry in found}}
    record["tables"] = tables(found, (ours, *others), (f"validation {piece.unit}", f"test {piece.unit}"), piece.shown)
    record["claims"] = [claim(piece, found, ours, other, claims=len(others)) for other in others]
    write(record, args.out.with_stem(f"{args.out.stem}-{args.seed}"))
