"""Did the data race matter? The children of `retuned.py` once more, same seeds, by code that no longer has it.

    python -m studies.ptb mended [--smoke]

Up to that stage all children of this study were trained by kernels that torch 2.11 had compiled with a data race
(`patterns/read_back.py`, `twins.py`): now and then some rows of a gradient were wrong. It hit all methods alike. By
the validation text alone: each method against itself, and the methods among each other.
"""

import argparse
from dataclasses import replace

from autodropout.tables import Entry
from benchmarks.recording import write
from studies.comparing import tables
from studies.honest import RANDOM
from studies.pieces import Child
from studies.ptb.study import Piece

BEFORE = "{}, with the race"


def study(piece: Piece, args: argparse.Namespace) -> None:
    before = piece.entries("retuned")
    found: list[Entry] = []
    for steps in sorted({entry.trial.steps for entry in before}, reverse=True):
        trials = [entry.trial for entry in before if entry.trial.steps == steps]
        children = [Child(t.method, t.number, t.tokens, t.rate, t.seed) for t in trials]
        found += piece.train("mended", args.longer_training, piece.asked(steps), children)
    metrics = (f"validation {piece.unit}",)
    record = piece.record(f"{args.longer_training}, the children of retuned.json by code without the race")
    record["tables"] = tables(found, (RANDOM,), metrics, piece.shown)
    for method in dict.fromkeys(entry.trial.method for entry in before):
        named = BEFORE.format(method)
        old = [Entry(replace(e.trial, method=named), None) for e in before if e.trial.method == method]
        mended = [entry for entry in found if entry.trial.method == method]
        record["tables"] |= tables([*old, *mended], (named,), metrics, piece.shown)
    write(record, args.out)
