"""The part of docs/results.md that is about CIFAR-10 with 4,000 labels: `python -m studies.report cifar`.

What is told of its stages is what is told of Penn Treebank's.
"""

from functools import partial
from pathlib import Path

from studies.report.figures import figures
from studies.report.page import Stages, cost, records, sections, write_page
from studies.report.proxies import candidates, proxies
from studies.report.searches import finalists, searches
from studies.report.tables import honest

STAGES: Stages = {
    "honest": ("The final table", partial(honest, study="cifar")),
    "search": ("The controller against random search", partial(searches, study="cifar")),
    "finalists": ("The best of each method, with new seeds", finalists),
    "proxy": ("Which training is worth searching with", proxies),
    "candidates": ("Where regularization pays at all", candidates),
}


def write(folder: Path, docs: Path) -> None:
    found = {stage: records(folder, stage) for stage in STAGES}
    journals = {stage: folder / f"{stage}.jsonl" for stage in STAGES}
    lines = ["## CIFAR-10 with 4,000 labels", "", *sections(STAGES, found)]
    lines += ["### What was run on CIFAR-10, and what it cost", "", *cost(journals)]
    write_page(docs, "cifar", lines)
    figures(found, docs, "cifar")
