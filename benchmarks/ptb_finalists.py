"""The best policies of each method, trained again with new seeds, so that luck falls out; then longer.

    python benchmarks/ptb_finalists.py --steps 4000 --rate 0.1 [--seed 0] [--smoke]      (see ptb_study.py)

1. Of each method in the journal of the search the 10 policies with the best rewards, 5 new seeds each, beside no policy
   and the classical methods at the best rate that `ptb_proxy.py` saw, with the same seeds.
2. The 3 best of them by their new mean, for each method, and the others again: trained 4 times longer, the same seeds.

The difference between a policy's reward in the search and its mean over new seeds is what was luck.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from autodropout.tables import Entry
from autodropout.tables.surrogate import active
from ptb_study import NONE, SPACE, Child, Piece, Tokens, families, minutes, parsed, perplexity, study_options
from ptb_study import values as rewards
from recording import Table, facts, write

FIRST_SEED = 1_000_000  # of those that no search uses
LONGER = 4


def distinct(entries: Sequence[Entry], count: int) -> list[Entry]:
    """The best entries, of which no two do the same: tokens without effect do not make another policy."""
    found: dict[Tokens, Entry] = {}
    for entry in sorted(entries, key=lambda entry: -(entry.trial.value or 0.0)):
        works = active(SPACE, [entry.trial.tokens])[0]
        effect = tuple(token if works[place] else -1 for place, token in enumerate(entry.trial.tokens))
        found.setdefault(effect, entry)
    return list(found.values())[:count]


def peers(piece: Piece, training: str, steps: int, seeds: range) -> list[Child]:
    """No policy, and each classical method at the rate that was best for it at this length."""
    seen = [
        entry
        for entry in piece.entries("proxy")
        if entry.trial.training == training and entry.trial.steps == piece.training(training, steps).steps
    ]
    children = [Child("none", 0, NONE, 0.0, seed) for seed in seeds]
    for name, tokens in families().items():
        by_rate: dict[float, list[float]] = {}
        for entry in seen:
            if entry.trial.method == name:
                by_rate.setdefault(entry.trial.rate, []).append(entry.trial.value or 0.0)
        if not by_rate:
            raise SystemExit(f"ptb_proxy.py has not tried {name} with {training} at {steps} steps: run it first")
        rate = max(by_rate, key=lambda rate: statistics.fmean(by_rate[rate]))
        children += [Child(name, 0, tokens, rate, seed) for seed in seeds]
    return children


def grouped(children: Sequence[Child], found: Sequence[Entry]) -> dict[tuple[str, int], list[float]]:
    """Rewards by method and number, over seeds."""
    groups: dict[tuple[str, int], list[float]] = {}
    for child, value in zip(children, rewards(found), strict=True):
        groups.setdefault((child.method, child.number), []).append(value)
    return groups


def main() -> None:
    parser = study_options(__doc__, "finalists")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0, help="of the searches")
    args = parsed(parser)
    piece = Piece(args, "finalists")
    top, kept, count = (2, 1, 2) if args.smoke else (10, 3, 5)
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    others = peers(piece, args.training, args.steps, seeds)
    steps = piece.training(args.training, args.steps).steps
    searched = [
        entry
        for entry in piece.entries("search")
        if entry.trial.phase == f"search {args.seed}" and entry.trial.rate == args.rate
        if (entry.trial.training, entry.trial.steps) == (args.training, steps)
    ]
    if not searched:
        raise SystemExit(f"ptb_search.py has not searched with {args.training}, {steps} steps, rate {args.rate} yet")
    methods = list(dict.fromkeys(entry.trial.method for entry in searched))
    chosen = {m: distinct([entry for entry in searched if entry.trial.method == m], top) for m in methods}
    lucky = {(m, entry.trial.number): entry.trial for m in methods for entry in chosen[m]}
    children = [Child(m, number, t.tokens, args.rate, seed) for (m, number), t in lucky.items() for seed in seeds]
    again = grouped([*children, *others], piece.train("finalists", args.training, args.steps, [*children, *others]))
    best = {
        (method, number)
        for method in methods
        for _, number in sorted(
            (key for key in again if key in lucky and key[0] == method), key=lambda key: -statistics.fmean(again[key])
        )[:kept]
    }
    longer = [child for child in children if (child.method, child.number) in best] + others
    long = grouped(longer, piece.train("finalists, longer", args.training, LONGER * args.steps, longer))
    table = Table(("in the search", f"{count} new seeds", "4x longer"), 36, 24)
    rows: list[dict[str, Any]] = []
    for key, found in sorted(again.items(), key=lambda item: -statistics.fmean(item[1])):
        method, number = key
        seen = perplexity(lucky[key].value or 0.0) if key in lucky else None
        name = f"{method} {number}" if key in lucky else method
        rows.append(
            {"policy": name, "search": seen, "again": _perplexities(found), "longer": _perplexities(long.get(key, []))}
        )
        table.row(
            name,
            {
                "in the search": None if seen is None else f"{seen:.2f}",
                f"{count} new seeds": _shown(found),
                "4x longer": _shown(long[key]) if key in long else None,
            },
        )
    print(f"\nall trials of this journal: {minutes(piece.journal.entries):.1f} minutes")
    what = (
        f"finalists on Penn Treebank: {args.training}, {args.steps} steps and {LONGER} times as many, rate {args.rate}"
    )
    write(facts(what, ("torch",), piece.machine) | {"rows": rows}, args.out.with_stem(f"{args.out.stem}-{args.seed}"))


def _perplexities(found: Sequence[float]) -> list[float]:
    return [perplexity(value) for value in found]


def _shown(found: Sequence[float]) -> str:
    """Mean ± standard error."""
    values = _perplexities(found)
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{error}"


if __name__ == "__main__":
    main()
