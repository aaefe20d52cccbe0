"""The race's two policies once more, for the length that suits Dropout best: until here they have been trained for one.

    python -m studies.ptb longer [--smoke]

`race.py` chose them and their rates at one length, and stands them beside classical methods of that length. At
every other length that `lengths.py` has of a classical method, their rates are tuned by climbing (`climbing.py`),
from what they were, in proportion to the steps; then they are trained with the seeds of those methods. The test text is
read here; what it said before has decided nothing.
"""

import argparse

from autodropout.tables import Entry
from benchmarks.recording import write
from studies.pieces import Child
from studies.ptb.climbing import best_of_each, climb, nearest, told
from studies.ptb.finer import Tried, Try, means
from studies.ptb.lengths import compared
from studies.ptb.race import FINAL, classical
from studies.ptb.study import Piece

TUNING_SEED = 9_000_000  # the first of those that no other stage has
TUNING_SEEDS = 8  # two policies at three rates fill a crowd


def study(piece: Piece, args: argparse.Namespace) -> None:
    chosen = {entry.trial.method: entry.trial for entry in piece.entries("race") if entry.trial.phase == FINAL}
    if not chosen:
        raise SystemExit(
            f"{args.folder / 'race.jsonl'} has no final trainings: run {piece.command.format('race')} first"
        )
    tokens = {method: trial.tokens for method, trial in chosen.items()}
    raced_for = {trial.steps for trial in chosen.values()}
    peers = [entry for entry in classical(piece) if entry.trial.steps not in raced_for]
    if not peers:
        raise SystemExit("no classical method had a final training of another length than the race: nothing to do")
    seeds = sorted({entry.trial.seed for entry in peers})
    tuning = range(TUNING_SEED, TUNING_SEED + (args.tuning_seeds if args.smoke else TUNING_SEEDS))
    tried: Tried = {}
    found: dict[int, list[Entry]] = {}
    for steps in sorted({entry.trial.steps for entry in peers}, reverse=True):
        starts = [Try(method, nearest(t.rate * steps / t.steps), steps) for method, t in chosen.items()]
        here = climb(piece, args.longer_training, tokens, starts, tuning)
        children = [
            Child(one.method, 0, tokens[one.method], one.rate, seed)
            for one in best_of_each(means(here)).values()
            for seed in seeds
        ]
        found[steps] = piece.train("longer", args.longer_training, piece.asked(steps), children, test=True)
        found[steps] += [entry for entry in peers if entry.trial.steps == steps]
        tried |= here
    record = piece.record(f"{args.longer_training}, the policies of race.json at other lengths")
    record["by_length"] = {f"{steps:,}": compared(piece, entries, len(found)) for steps, entries in found.items()}
    write(record | {"tried": told(piece, tried)}, args.out)
