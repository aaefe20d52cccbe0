"""All trials of the Penn Treebank study as the table that comes with the package.

    python -m studies.ptb.table [--folder results/ptb] [--to src/autodropout/tables/ptb-txl.parquet]

Reads the journals of the study on Penn Treebank, whichever are there. The table holds every trial, also those that
diverged and those of trainings that turned out not to be worth searching with.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from autodropout import __version__
from autodropout.tables import Journal, Table, table
from benchmarks.recording import facts

JOURNALS = (
    *("descent", "candidates", "proxy", "search", "finalists", "honest"),
    *("finer", "retuned", "mended", "bracketed", "lengths", "race", "longer"),
)
UNIT = "80 / perplexity"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("results/ptb"))
    parser.add_argument("--to", type=Path, default=Path("src/autodropout/tables/ptb-txl.parquet"))
    args = parser.parse_args(argv)
    paths = [args.folder / f"{name}.jsonl" for name in JOURNALS]
    journals = [Journal(path) for path in paths if path.exists()]
    about = facts("trials of small Transformer-XLs on Penn Treebank under dropout policies", ("torch",))
    kept = {name: about[name] for name in ("what", "date", "commit", "versions")}
    kept["scores"] = f"{UNIT}, of the validation and the test text of Penn Treebank"
    kept["versions"] |= {"autodropout": __version__}
    kept["trained"] = [note for journal in journals for note in journal.notes]  # where, when, with which versions
    Table.of(args.to.stem, journals, kept).save(args.to)
    print(f"{table(args.to)}\n{args.to}: {args.to.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
