"""The page that is made from a study's JSON files: what was run is told, what was not is named.

Little is computed here, such as means: every number
comes from a file, which is named above its table. What was not shown is written as plainly as what was.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from autodropout.tables import Journal
from benchmarks.recording import markdown
from studies.pieces import minutes_of
from studies.report.figures import Record

NOT_RUN = "Not run, or not to its end: "
Stages = dict[str, tuple[str, Callable[[Mapping[Path, Record]], Iterator[str]]]]
"""By the names of files: a title, and what is told of them."""


def records(folder: Path, stage: str) -> dict[Path, Record]:
    """The JSON files of a stage, by their paths."""
    return {path: json.loads(path.read_text()) for path in sorted(folder.glob(f"{stage}*.json"))}


def cost(journals: Mapping[str, Path]) -> Iterator[str]:
    """What all of it took so far, also of stages that have no table yet."""
    rows: list[Sequence[object]] = []
    total = 0.0
    crowded = False
    for stage, path in journals.items():
        if not path.exists():
            continue
        journal = Journal(path)
        shared = any("beside other work" in str(note["what"]) for note in journal.notes)
        machines = dict.fromkeys(str(note["machine"]) for note in journal.notes)
        crowded |= shared
        took = minutes_of(journal)
        total += took
        rows.append(
            (stage, f"{len(journal.entries):,}", f"{'at most ' if shared else ''}{took:.1f}", ", ".join(machines))
        )
    rows.append(("all", None, f"{'at most ' if crowded else ''}{total:.1f}", None))
    yield from markdown(("stage", "trials", "minutes", "machine"), rows)
    yield "Minutes are of the machine: training, judging, compiling and capturing."
    if crowded:
        yield "Where jobs shared it, each is counted as if it had had it alone: it took less, at most so much."
    yield ""


def sections(stages: Stages, found: Mapping[str, Mapping[Path, Record]]) -> Iterator[str]:
    missing = []
    for stage, (title, told) in stages.items():
        if found[stage]:
            yield from (f"## {title}", "", *told(found[stage]))
        else:
            missing.append(title)
    if missing:
        yield from (f"{NOT_RUN}{'; '.join(missing)}.", "")


def write_page(docs: Path, study: str, title: str, lines: Sequence[str]) -> None:
    """All of a study's page, anew."""
    told = f"Made by `python -m studies.report {study}` from the files that are named."
    head = (f"# {title}: every table", "", f"{told} What it comes to is told in [results.md](results.md).", "")
    docs.mkdir(parents=True, exist_ok=True)
    target = docs / f"results-{study}.md"
    target.write_text("\n".join((*head, *lines)).rstrip("\n") + "\n")
    print(target)
