"""The policies of the final table as files that come with the package, each with where it is from and what it is worth.

    python benchmarks/ptb_policies.py [--folder results/ptb] [--to src/autodropout/policies]

`ad.load("ptb-controller")` then gives what our controller found, `ad.load("ptb-controller-paper")` what the paper's
setting of it did, `ad.load("ptb-random")` random search. The rate in a file is the one that was tuned for it on Penn
Treebank: for another model or text it is a first guess. Rate and worth are those of the last table that has the policy.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from autodropout.spaces import Provenance
from autodropout.tables import Journal
from autodropout.training.language import REWARD
from ptb_trainings import SPACE, Tokens

SEARCHED = "policy of "  # what methods of the table begin with that a search has found
TABLES = ("bracketed", "retuned", "honest")  # the last first


def number_of(folder: Path, searcher: str, tokens: Tokens) -> tuple[str, int]:
    """The search, and the trial of it, that a finalist comes from."""
    for entry in Journal(folder / "search.jsonl").entries:
        if entry.trial.method == searcher and entry.trial.tokens == tokens:
            return entry.trial.phase, entry.trial.number
    raise SystemExit(f"{folder / 'search.jsonl'} has no trial of {searcher} with the tokens {tokens}")


def rows_of(record: dict[str, Any], metric: str) -> dict[str, dict[str, Any]]:
    """By method."""
    table = next(rows for name, rows in record["tables"].items() if name.startswith(metric))
    return {row["method"]: row for row in table}


def last_table(folder: Path, method: str) -> dict[str, Any]:
    paths = (folder / f"{name}.json" for name in TABLES)
    records = (json.loads(path.read_text()) for path in paths if path.exists())
    return next(record for record in records if method in rows_of(record, "test perplexity"))


def said(record: dict[str, Any], method: str) -> str:
    """What it is worth, beside what it was compared with."""
    worth = []
    for metric in ("test perplexity", "validation perplexity"):
        rows = rows_of(record, metric)
        of = {name: f"{rows[name]['mean']:.2f}" for name in (method, record["best_classical"], "none") if name in rows}
        others = ", ".join(f"{name} {value}" for name, value in of.items() if name != method)
        worth.append(f"{metric} {of[method]} over {len(rows[method]['values'])} seeds ({others})")
    return "; ".join(worth) + "; see docs/results.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("results/ptb"))
    parser.add_argument("--to", type=Path, default=Path("src/autodropout/policies"))
    args = parser.parse_args()
    source = args.folder / "honest.json"
    if not source.exists():
        raise SystemExit(f"{source} is not there, which has the policies: run ptb_honest.py first")
    policies = json.loads(source.read_text())["policies"]
    args.to.mkdir(parents=True, exist_ok=True)
    for method in (name for name in policies if name.startswith(SEARCHED)):
        searcher, tokens = method.removeprefix(SEARCHED), tuple(policies[method])
        search, number = number_of(args.folder, searcher, tokens)
        record = last_table(args.folder, method)
        row = rows_of(record, "validation perplexity")[method]
        provenance = Provenance(
            space=SPACE.describe(),
            study=f"ptb-txl, {search}, {searcher}",
            trial=number,
            score=statistics.fmean(REWARD / value for value in row["values"]),
            model="Transformer-XL of 4 layers of 256, the recipe ptb-small",
            data="Penn Treebank",
            rate=row["rate"],
            date=record["date"],
            software=record["trained"][-1]["versions"],
            note=f"after {record['lengths'][method]:,} steps: {said(record, method)}",
        )
        path = args.to / f"ptb-{searcher}.json"
        SPACE.decode(tokens, provenance).save(path)
        print(f"{path}: {provenance.note}")


if __name__ == "__main__":
    main()
