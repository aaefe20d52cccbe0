"""The policies of the final table as files that come with the package, each with where it is from and what it is worth.

    python benchmarks/ptb_policies.py [--folder results/ptb] [--to src/autodropout/policies]

`ad.load("ptb-controller")` then gives what our controller found, `ad.load("ptb-random")` what random search did. The
rate in a file is the one that was tuned for it on Penn Treebank: for another model or text it is a first guess.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from autodropout.spaces import Provenance
from autodropout.tables import Journal
from ptb_honest import OURS, RANDOM
from ptb_trainings import SPACE, Tokens

NAMES = {OURS: "ptb-controller", RANDOM: "ptb-random"}


def number_of(folder: Path, method: str, tokens: Tokens) -> tuple[str, int]:
    """The search, and the trial of it, that a finalist comes from."""
    for entry in Journal(folder / "search.jsonl").entries:
        if entry.trial.method == method.removeprefix("policy of ") and entry.trial.tokens == tokens:
            return entry.trial.phase, entry.trial.number
    raise SystemExit(f"{folder / 'search.jsonl'} has no trial with the {method}")


def said(record: dict[str, Any], method: str) -> str:
    """What it is worth, beside what it was compared with."""
    worth = []
    for metric in ("test perplexity", "validation perplexity"):
        rows = {row["method"]: row for row in record["tables"][f"{metric}, from none"]}
        of = {name: f"{rows[name]['mean']:.2f}" for name in (method, record["best_classical"], "none")}
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
    record = json.loads(source.read_text())
    args.to.mkdir(parents=True, exist_ok=True)
    for method, name in NAMES.items():
        tokens = tuple(record["policies"][method])
        search, number = number_of(args.folder, method, tokens)
        (row,) = (row for row in record["tables"]["validation perplexity, from none"] if row["method"] == method)
        provenance = Provenance(
            space=SPACE.describe(),
            study=f"ptb-txl, {search}, {method.removeprefix('policy of ')}",
            trial=number,
            score=row["mean"],
            model="Transformer-XL of 4 layers of 256, the recipe ptb-small",
            data="Penn Treebank",
            rate=record["rates"][method],
            date=record["date"],
            software=record["trained"][-1]["versions"],
            note=f"{record['what']}: {said(record, method)}",
        )
        SPACE.decode(tokens, provenance).save(args.to / f"{name}.json")
        print(f"{args.to / name}.json: {provenance.note}")


if __name__ == "__main__":
    main()
