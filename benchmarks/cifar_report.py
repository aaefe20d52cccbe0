"""The part of docs/results.md that is about CIFAR-10 with 4,000 labels, and its figures, from the study's files alone.

    python benchmarks/cifar_report.py [--folder results/cifar] [--docs docs]

`cifar_study.py` writes the files; what is told of them is what `ptb_report.py` tells of Penn Treebank's.
"""

import argparse
from functools import partial
from pathlib import Path

from ptb_figures import figures
from ptb_report import Stages, cost, finalists, records, searches, sections, write_page
from ptb_report_proxies import candidates, proxies
from ptb_report_tables import honest

STAGES: Stages = {
    "honest": ("The final table", partial(honest, study="cifar")),
    "search": ("The controller against random search", partial(searches, study="cifar")),
    "finalists": ("The best of each method, with new seeds", finalists),
    "proxy": ("Which training is worth searching with", proxies),
    "candidates": ("Where regularization pays at all", candidates),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("results/cifar"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    args = parser.parse_args()
    found = {stage: records(args.folder, stage) for stage in STAGES}
    journals = {stage: args.folder / f"{stage}.jsonl" for stage in STAGES}
    lines = ["## CIFAR-10 with 4,000 labels", "", *sections(STAGES, found)]
    lines += ["### What was run on CIFAR-10, and what it cost", "", *cost(journals)]
    write_page(args.docs, "cifar_report.py", lines)
    figures(found, args.docs, "cifar")


if __name__ == "__main__":
    main()
