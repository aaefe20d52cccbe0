"""Were the classical methods of the final table tuned finely enough? The rates between, by validation text alone.

    python benchmarks/ptb_finer.py [--smoke]      (see ptb_study.py)

Classical methods, at their usual sites and at all, that came near the best of them in the tuning of `ptb_honest.py` are
trained once more: at the rates halfway to the neighbours of their best one, as long as that, with as many seeds of the
final table as make one job. Policies are not, so that a difference to them can only shrink. The test text is not read:
the final table stays as it is.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ptb_study
from autodropout.tables import Entry
from comparing import tables
from pieces import Child
from ptb_honest import FINAL_SEED, OURS
from ptb_study import study_options
from recording import write

NEAR = 1.02  # times the perplexity of the best


def between(rate: float, tried: Sequence[float]) -> tuple[float, float]:
    """Halfway to the next rates; below the first, to nothing, and as far above the last."""
    rates = [0.0, *sorted(set(tried))]
    place = rates.index(rate)
    below = (rates[place - 1] + rate) / 2
    above = (rate + rates[place + 1]) / 2 if place + 1 < len(rates) else 2 * rate - below
    return round(below, 6), round(above, 6)


def near(tuning: dict[str, list[dict[str, Any]]], peers: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of each classical method that came near the best its best setting."""
    tried = [(statistics.fmean(of["scores"]), peer, of) for peer in peers for of in tuning[peer] if all(of["scores"])]
    tried.sort(key=lambda one: one[0])
    found: dict[str, dict[str, Any]] = {}
    for score, peer, of in tried:
        if score < NEAR * tried[0][0]:
            found.setdefault(peer, of)
    return found


def with_rate(entry: Entry) -> Entry:
    """In its method's name: methods are compared at several rates."""
    return entry._replace(trial=replace(entry.trial, method=f"{entry.trial.method} at {entry.trial.rate:g}"))


def main(argv: Sequence[str] | None = None) -> None:
    args = study_options(__doc__, "finer", argv)
    piece = ptb_study.Piece(args, "finer")
    source = args.folder / "honest.json"
    if not source.exists():
        raise SystemExit(f"{source} is not there, which has the tuning: run ptb_honest.py first")
    tuning = json.loads(source.read_text())["tuning"]
    chosen = near(tuning, list(piece.peers))
    seeds = max(2, args.together // (2 * len(chosen)))
    name, found = args.longer_training, []
    for steps in sorted({of["steps"] for of in chosen.values()}):
        children = [
            Child(peer, 0, piece.peers[peer], rate, FINAL_SEED + seed)
            for peer, of in chosen.items()
            if of["steps"] == steps
            for rate in between(of["rate"], [tried["rate"] for tried in tuning[peer]])
            for seed in range(seeds)
        ]
        found += piece.train("finer", name, steps, children)
    same = {child.trial.seed for child in found}
    final = [e for e in piece.entries("honest") if e.trial.phase == "final" and e.trial.seed in same]
    compared = [e for e in final if e.trial.method == OURS or e.trial.method in chosen] + found
    record = piece.record(f"{name}: classical methods at rates between those of the final table, {seeds} of its seeds")
    (ours,) = {with_rate(entry).trial.method for entry in final if entry.trial.method == OURS}
    metric = f"validation {piece.unit}"
    record["tables"] = tables([with_rate(entry) for entry in compared], (ours,), (metric,), piece.shown)
    write(record, args.out)


if __name__ == "__main__":
    main()
