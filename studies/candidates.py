"""Where does regularization pay at all? Sixteen children each of several trainings, before one gets a table of its own.

    python -m studies.ptb candidates --rate 0.1 [--candidates small:6000 tiny:8000] [--smoke]      (and studies.cifar)

For each training and length 4 children without a policy, 7 under classical methods and 5 under random policies: too few
to say by how much, enough to see whether. Where children are best before their end, they learn the data by heart, and a
reward that is the best of a curve is one of stopping early: the step of the best reading is in the table.
"""

import argparse
from collections.abc import Collection, Sequence
from typing import Any

from autodropout.tables import Entry
from benchmarks.recording import Table, averaged, decimals, write
from studies.pieces import Child, Piece, reward

COLUMNS = ("none", "none best at", "best classical", "random, best")


def candidate(text: str, trainings: Collection[str]) -> tuple[str, int]:
    name, _, steps = text.rpartition(":")
    if name not in trainings or not steps.isdigit():
        like = f"{next(iter(trainings))}:6000"
        raise SystemExit(f"a candidate is a training and its steps, like {like}, got {text!r}")
    return name, int(steps)


def best_reading(entry: Entry) -> int:
    """After how many steps a child was best."""
    return max(entry.trial.curve, key=lambda reading: reading[1])[0]


def judge(piece: Piece, name: str, steps: int, children: Sequence[Child], entries: Sequence[Entry]) -> dict[str, Any]:
    found = {child: entry.trial for child, entry in zip(children, entries, strict=True)}
    peers = {child: reward(trial) for child, trial in found.items() if child.method in piece.peers}
    best = max(peers, key=lambda child: peers[child])
    of = {m: [reward(trial) for child, trial in found.items() if child.method == m] for m in ("none", "random")}
    return {
        "training": name,
        "steps": steps,
        "none": piece.scores(of["none"]),
        "none_best_at": sorted({best_reading(e) for e in entries if e.trial.method == "none" and reward(e.trial)}),
        "peers": {f"{child.method} at {child.rate:g}": piece.scores([value])[0] for child, value in peers.items()},
        "best_peer": f"{best.method} at {best.rate:g}",
        "random": piece.scores(of["random"]),
        "best_random": piece.scores([max(of["random"])])[0],
    }


def study(
    piece: Piece,
    args: argparse.Namespace,
    usual: Sequence[str],
    classical: Sequence[tuple[str, float]],
    trainings: Collection[str],
) -> None:
    """A job of 16 for each candidate, as many of them random policies as there is room for; then the table."""
    candidates = [candidate(text, trainings) for text in args.candidates or usual[: 2 if args.smoke else None]]
    piece.together = 16
    table, rows = Table(COLUMNS, 40, 20), []
    for name, steps in candidates:
        children = piece.nothing(4) + [Child(method, 0, piece.peers[method], rate, 0) for method, rate in classical]
        children += piece.policies(12 - len(classical), args.rate, 0)
        entries = piece.train("candidates", name, steps, children)
        row = judge(piece, name, piece.training(name, steps).steps, children, entries)
        rows.append(row)
        stops = ", ".join(f"{step:,}" for step in row["none_best_at"])
        shown = (averaged(row["none"]), stops, decimals(row["peers"][row["best_peer"]]), decimals(row["best_random"]))
        table.row(f"{name}, {row['steps']:,} steps", dict(zip(COLUMNS, shown, strict=True)))
        print(f"    best: {row['best_peer']}")
    print(f"\nall trials of this journal: {piece.minutes:.1f} minutes")
    record = piece.record(f"trainings that may be worth searching with, random policies at {args.rate:g}")
    write(record | {"rows": rows}, args.out)
