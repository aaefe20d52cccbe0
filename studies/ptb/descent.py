"""At which learning rate do children learn, whatever their policy?

    python -m studies.ptb descent --training quarter --steps 1200 --rate 0.1 [--smoke]

A Transformer that normalizes after its sums, as Transformer-XL does, may stay where it knows how frequent words are and
nothing of their order: a reward from there says how lucky a child was, not how good its policy is. Hence 48 children
under each of some learning rates, with and without a warm-up: 8 without a policy, the classical methods and 34 random
policies at `--rate`. A child has learned where its perplexity is below half of what frequencies alone give.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from autodropout.training.language import LanguageTraining
from benchmarks.recording import Table, write
from studies import pieces
from studies.pieces import Child, rewards_of
from studies.ptb.study import Piece
from studies.ptb.trainings import TRAININGS

DESCENTS = ((1e-3, 0), (1e-3, 200), (5e-4, 0), (5e-4, 200), (3e-4, 0), (3e-4, 200))  # learning rate, warm-up
COLUMNS = ("have learned", "none", "classical", "random, median", "random, best")


def descending(name: str, lr: float, warmup: int, steps: int) -> LanguageTraining:
    """A training of the study with another learning rate, which falls as far."""
    training = TRAININGS[name](steps)
    floors = {part: getattr(training, part) * lr / training.lr for part in ("lr_after_cosine", "lr_constant")}
    return replace(training, lr=lr, warmup=warmup, **floors)


def by_frequency(training: LanguageTraining) -> float:
    """The validation text's perplexity by how often the training text has each word, and once more."""
    text = training.text()
    counts = torch.bincount(text.train, minlength=training.vocabulary).double() + 1.0
    return float((counts / counts.sum()).log()[text.validation].mean().neg().exp())


def judge(children: Sequence[Child], found: Sequence[float | None], frequencies: float) -> dict[str, Any]:
    """One row: perplexities by kind of child; one that diverged has learned nothing."""
    kinds: dict[str, list[float]] = {"none": [], "classical": [], "random": []}
    for child, perplexity in zip(children, found, strict=True):
        kind = "classical" if child.method in Piece.peers else child.method
        kinds[kind].append(float("inf") if perplexity is None else perplexity)
    everyone = [perplexity for of in kinds.values() for perplexity in of]
    learned = sum(perplexity < frequencies / 2 for perplexity in everyone)
    return {"learned": learned, "children": len(everyone), **{kind: sorted(of) for kind, of in kinds.items()}}


def median(values: Sequence[float]) -> float:
    return float(torch.tensor(values).median())


def study(piece: Piece, args: argparse.Namespace) -> None:
    children = piece.nothing(2) + piece.baselines(1, [args.rate])[:2] + piece.policies(2, args.rate, 0)
    if not piece.smoke:
        children = piece.nothing(8) + piece.baselines(1, [args.rate]) + piece.policies(34, args.rate, 0)
    frequencies = by_frequency(piece.training(args.training, args.steps))
    table, rows = Table(COLUMNS, 40, 16), []
    for lr, warmup in DESCENTS[:2] if piece.smoke else DESCENTS:
        name = f"{args.training}, learning rate {lr:g}, warm-up {warmup}"
        TRAININGS[name] = partial(descending, args.training, lr, warmup)
        if rows:
            pieces.Piece.ready = piece.crowd_of(name)  # the crowd of the row before serves this one, too
        found = rewards_of(piece.train("descent", name, args.steps, children))
        row = judge(children, piece.scores(found), frequencies)
        rows.append({"lr": lr, "warmup": warmup} | row)
        shown = [f"{row['learned']} of {row['children']}", *(median(row[k]) for k in ("none", "classical", "random"))]
        shown[1:] = [f"{value:.1f}" for value in (*shown[1:], row["random"][0])]
        table.row(name, dict(zip(COLUMNS, shown, strict=True)))
    print(f"\nby the frequencies of words: {frequencies:.1f}; medians of perplexities, the lower of the middle two")
    what = f"children at learning rates, {args.steps:,} steps, policies at {args.rate:g}; perplexities"
    write(piece.record(what) | {"by_frequency": frequencies, "rows": rows}, args.out)
