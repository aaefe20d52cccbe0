"""Whose order of policies is whose? Spearman's correlations between all trainings that have had the same policies.

    python -m studies.ptb orders [--folder results/ptb]      (nothing is trained)

Of the journal of `proxy.py`: every training, length, rate and seed under which all of its random policies were
trained. Beside each, the correlation with how many of a policy's sites share a draw along channels, which is to drop
most: where it is positive a training wants more than the rate gives, where it is negative, less.
"""

import argparse

from autodropout.tables.statistics import bootstrap, spearman
from benchmarks.recording import Table, write
from studies.pieces import reward
from studies.ptb.study import Piece, random_policies
from studies.ptb.trainings import SPACE, Tokens


def shared(tokens: Tokens) -> int:
    """How many sites drop whole tokens."""
    return sum(pattern.share_c and not pattern.is_none for pattern in SPACE.decode(tokens).sites.values())


def orders(piece: Piece, count: int) -> dict[str, list[float]]:
    """Rewards of the first so many random policies, by what they were trained with."""
    found: dict[tuple[str, int, float, int], dict[int, float]] = {}
    for trial in (entry.trial for entry in piece.journal.entries if entry.trial.method == "random"):
        key = (trial.training, trial.steps, trial.rate, trial.seed)
        found.setdefault(key, {})[trial.number] = reward(trial)
    return {
        f"{name}, {steps:,} steps at {rate:g}, seed {seed}": [of[number] for number in range(count)]
        for (name, steps, rate, seed), of in found.items()
        if set(range(count)) <= set(of)
    }


def study(piece: Piece, args: argparse.Namespace) -> None:
    count = random_policies(piece)
    found = orders(piece, count)
    dropping = [shared(child.tokens) for child in piece.policies(count, args.rate, 0)]
    columns = ("shared", *(str(number) for number in range(1, len(found) + 1)))
    table, rows = Table(columns, 56, 8), []
    for number, (name, rewards) in enumerate(found.items(), start=1):
        with_others = {
            other: bootstrap(spearman, rewards, of)._asdict() for other, of in found.items() if other != name
        }
        row = {"training": name, "shared": spearman(rewards, dropping), "with": with_others}
        rows.append(row)
        shown = [with_others[other]["estimate"] if other != name else None for other in found]
        cells = ["" if value is None else f"{value:.2f}" for value in (row["shared"], *shown)]
        table.row(f"{number}. {name}", dict(zip(columns, cells, strict=True)))
    record = piece.record(f"rank correlations over {count} random policies, with 95% bootstrap intervals")
    write(record | {"rows": rows}, args.out)
