"""The page of a study of images: `python -m studies.report cifar`, or digits.

What is told of its stages is what is told of Penn Treebank's.
"""

from functools import partial
from pathlib import Path

from studies.report.figures import figures
from studies.report.page import Stages, cost, records, sections, write_page
from studies.report.proxies import candidates, proxies
from studies.report.searches import finalists, searches
from studies.report.tables import honest, retuned

TITLES = {"cifar": "CIFAR-10 with 4,000 labels", "digits": "Digits on noise"}


def write(study: str, folder: Path, docs: Path) -> None:
    later: Stages = {"again": ("A later search, beside the same methods", retuned)}
    first: Stages = {"candidates": ("Where regularization pays at all", candidates)}
    stages: Stages = {
        "honest": ("The final table", partial(honest, study=study)),
        **(later if study == "digits" else {}),
        "search": ("The controller against random search", partial(searches, study=study)),
        "finalists": ("The best of each method, with new seeds", finalists),
        "proxy": ("Which training is worth searching with", proxies),
        **(first if study == "cifar" else {}),  # of digits there is one training only
    }
    found = {stage: records(folder, stage) for stage in stages}
    journals = {stage: folder / f"{stage}.jsonl" for stage in stages}
    lines = [*sections(stages, found), "## What was run, and what it cost", "", *cost(journals)]
    write_page(docs, study, TITLES[study], lines)
    figures(found, docs, study, found.get("again", {}).values())
