"""The final table on Penn Treebank: every method with its rate tuned at the same budget, the test text read once.

    python benchmarks/ptb_honest.py --steps 16000 [--smoke]      (see ptb_study.py; these are the final steps)

The methods: none; Dropout, Variational Dropout and WordDropout, at their usual sites and at all; and for each method of
the search the policy that trained best when trained longer (`ptb_finalists.py`).
1. Each method's rate is chosen by validation perplexity, from the same rates with the same seeds.
2. Each method is trained at its rate with new seeds. The weights that read the validation text best read the test text.

Differences are paired by seed, with Student's 95% intervals: from no policy, and from the best classical method, which
is chosen by step 1. A test score that is in the journal is never computed again.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from autodropout.recipes.comparison import Row, Variant, summaries, table
from autodropout.tables import Entry
from autodropout.training.run import Scores
from ptb_study import NONE, Child, Piece, Tokens, families, minutes, parsed, perplexity, study_options
from ptb_study import values as rewards
from recording import facts, write

RATES = (0.03, 0.05, 0.1, 0.15, 0.2, 0.3)
TUNING_SEED, FINAL_SEED = 2_000_000, 3_000_000  # the first of each kind: no seed was used before
METRICS = ("validation_perplexity", "test_perplexity")


def winners(piece: Piece) -> dict[str, Tokens]:
    """The policy of each method of the search with the best mean when trained longer."""
    found: dict[str, dict[Tokens, list[float]]] = {}
    for entry in piece.entries("finalists"):
        trial = entry.trial
        if trial.phase == "finalists, longer" and trial.method != "none" and trial.method not in families():
            found.setdefault(trial.method, {}).setdefault(trial.tokens, []).append(trial.value or 0.0)
    if not found:
        raise SystemExit("there are no finalists that were trained longer: run ptb_finalists.py first")
    return {method: max(by, key=lambda tokens: statistics.fmean(by[tokens])) for method, by in found.items()}


def tuned(piece: Piece, name: str, steps: int, methods: dict[str, Tokens], seeds: int) -> dict[str, dict[float, float]]:
    """Mean reward of each method at each rate."""
    rates = RATES[:2] if piece.smoke else RATES
    children = [
        Child(method, 0, tokens, rate, TUNING_SEED + seed)
        for method, tokens in methods.items()
        for rate in rates
        for seed in range(seeds)
    ]
    found: dict[str, dict[float, list[float]]] = {}
    for child, value in zip(children, rewards(piece.train("tuning", name, steps, children)), strict=True):
        found.setdefault(child.method, {}).setdefault(child.rate, []).append(value)
    return {method: {rate: statistics.fmean(of) for rate, of in by.items()} for method, by in found.items()}


def rows_of(entries: Sequence[Entry], first: str) -> list[Row]:
    """The final trainings as a comparison has them, those of one method first; a diverged one has no place there."""
    rows = []
    for entry in sorted(entries, key=lambda entry: entry.trial.method != first):
        trial, test = entry
        if trial.value is not None and test is not None:
            metrics = dict(zip(METRICS, (perplexity(trial.value), perplexity(test)), strict=True))
            rows.append(Row(Variant(trial.method, None, trial.rate), trial.seed, Scores(trial.value, metrics)))
    return rows


def main() -> None:
    parser = study_options(__doc__, "honest")
    parser.set_defaults(steps=16_000)
    args = parsed(parser)
    piece = Piece(args, "honest")
    peers, policies = families(), {f"policy of {method}": tokens for method, tokens in winners(piece).items()}
    if args.smoke:
        peers = dict(list(peers.items())[:1])
    scores = tuned(piece, args.training, args.steps, peers | policies, seeds=1 if args.smoke else 3)
    rates = {method: max(by, key=lambda rate: by[rate]) for method, by in scores.items()}
    for method, by in scores.items():
        tried = ", ".join(f"{rate:g}: {perplexity(value):.2f}" for rate, value in by.items())
        print(f"{method:40}{tried}; taken: {rates[method]:g}")
    best_peer = max(peers, key=lambda method: scores[method][rates[method]])
    final = {"none": NONE} | peers | policies
    children = [
        Child(method, 0, tokens, rates.get(method, 0.0), FINAL_SEED + seed)
        for method, tokens in final.items()
        for seed in range(2 if args.smoke else 8)
    ]
    found = piece.train("final", args.training, args.steps, children, test=True)
    record: dict[str, Any] = facts(f"Penn Treebank, {args.training}, {args.steps} steps", ("torch",), piece.machine)
    record |= {"tuning": scores, "rates": rates, "best_classical": best_peer, "tables": {}}
    for metric in METRICS:
        for first in ("none", best_peer):
            rows = rows_of(found, first)
            print(f"\n{metric}, differences from {first}\n{table(rows, metric)}")
            record["tables"][f"{metric}, from {first}"] = [
                {
                    "method": summary.variant.name,
                    "rate": summary.variant.rate,
                    "values": summary.values,
                    "mean": summary.mean,
                    "standard_error": summary.error,
                    "difference": summary.difference,
                    "half_interval": summary.interval,
                }
                for summary in summaries(rows, metric)
            ]
    record["minutes"] = minutes(piece.journal.entries)
    write(record, args.out)
    print(f"\nall trials of this journal: {record['minutes']:.1f} minutes")


if __name__ == "__main__":
    main()
