"""What has a search learned? Site by site: what helps random policies, and what the last policies of each method do.

    python -m studies.ptb sites [--seed 0] [--folder results/ptb]      (nothing is trained)

Of the journal of `search.py`. A site is unused, drops single values, or drops whole tokens (a draw is shared along
channels). For each of the three: the median perplexity of the random policies that do so, whatever they do elsewhere;
and how many of a method's last 64 policies do.
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from autodropout.spaces import TRANSFORMER_SITES
from autodropout.tables import TableTrial
from benchmarks.recording import Table, decimals, write
from studies.pieces import reward
from studies.ptb.study import Piece, perplexities
from studies.ptb.trainings import SPACE
from studies.search import searched

LAST = 64
KINDS = ("unused", "values", "whole tokens")


def kind(trial: TableTrial, site: str) -> str:
    pattern = SPACE.decode(trial.tokens).sites[site]
    return "unused" if pattern.is_none else "whole tokens" if pattern.share_c else "values"


def median(trials: Sequence[TableTrial]) -> float | None:
    return perplexities([statistics.median(map(reward, trials))])[0] if trials else None


def study(piece: Piece, args: argparse.Namespace) -> None:
    by_method = {method: [entry.trial for entry in entries] for method, entries in searched(piece, args).items()}
    if "random" not in by_method or not all(by_method.values()):
        raise SystemExit(
            f"{piece.journal.path} has no search {args.seed} of all methods, random among them: run "
            f"{piece.command.format('search')} first"
        )
    table, rows = Table(("random, perplexity", *by_method), 26, 24), []
    print("unused / values / whole tokens")
    for site in TRANSFORMER_SITES:
        row: dict[str, Any] = {"site": site}
        row["random"] = {of: median([t for t in by_method["random"] if kind(t, site) == of]) for of in KINDS}
        row["last"] = {
            method: {of: sum(kind(trial, site) == of for trial in trials[-LAST:]) for of in KINDS}
            for method, trials in by_method.items()
        }
        rows.append(row)
        shown = [" / ".join(decimals(row["random"][of]) for of in KINDS)]
        shown += [" / ".join(str(row["last"][method][of]) for of in KINDS) for method in by_method]
        table.row(site, dict(zip(("random, perplexity", *by_method), shown, strict=True)))
    what = f"what the policies of search {args.seed} do at each site, {len(by_method['random'])} random ones"
    record = piece.record(what) | {"last": min(LAST, *map(len, by_method.values())), "rows": rows}
    write(record, args.out.with_stem(f"{args.out.stem}-{args.seed}"))
