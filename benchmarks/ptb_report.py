"""The part of docs/results.md that is about Penn Treebank, and its figures, from the study's files alone.

    python benchmarks/ptb_report.py [--folder results/ptb] [--simulated FILE] [--translated FOLDER] [--docs docs]

Whatever stages have been run are in it (`ptb_study.py`); what is missing is said to be missing. What stands in the page
outside of the two marks is kept. Little is computed here, such as means: every number comes from a file, which is named
above its table. What was not shown is written as plainly as what was.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from autodropout.tables import Journal
from autodropout.tables.statistics import seed_spread
from pieces import minutes_of
from ptb_figures import Record, figures
from ptb_report_proxies import candidates, descents, orders, proxies
from ptb_report_tables import (
    at_lengths,
    climbed,
    final,
    finer,
    honest,
    longer,
    mended,
    raced,
    retuned,
    translated,
)
from ptb_study import perplexity
from ptb_table import UNIT
from recording import averaged, decimals, markdown, named, units_of

TITLE = "# Results\n\n"
EARLIER = (64, 128, 256)  # policies after which simulated searches are looked at, too
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


def twice(journals: Mapping[str, Path]) -> Iterator[str]:
    """What a seed does not fix: children that were trained more than once with one, in whatever crowds.

    But not by other code: those of `ptb_mended.py` have a table of their own.
    """
    runs: dict[tuple[object, ...], list[float]] = {}
    paths = [path for stage, path in journals.items() if stage != "mended" and path.exists()]
    for entry in (entry for path in paths for entry in Journal(path).entries):
        trial = entry.trial
        if trial.value is not None:
            child = (trial.tokens, trial.rate, trial.seed, trial.training, trial.steps)
            runs.setdefault(child, []).append(perplexity(trial.value))
    if repeated := [values for values in runs.values() if len(values) > 1]:
        deviation = seed_spread(repeated).deviation
        yield f"{len(repeated)} children were trained twice with one seed: perplexities deviate by {deviation:.2f}."
        yield ""


def searches(files: Mapping[Path, Record], study: str) -> Iterator[str]:
    units = units_of(files.values())
    yield (
        f"Of single seeds, by validation {units}; one search of each method, so another might end elsewhere. Bands in "
        "the figure: quartiles of each 16 policies; 95% by bootstrap over rounds of policies."
    )
    yield ""
    head = ("method", "policies", "best", "mean of the last 64", "diverged", "minutes", "as good as random's best")
    for path, record in files.items():
        yield f"`{path.name}`: {record['what']}."
        yield ""
        shown = []
        for row in record["rows"]:
            took = "never" if row["reached"] is None else "{} policies, {:.1f} minutes".format(*row["reached"])
            line = (row["method"], row["trials"], decimals(row["best"]), decimals(row["last"]))
            shown.append((*line, row["diverged"], f"{row['minutes']:.1f}", took))
        yield from markdown(head, shown)
    yield f"![what each method proposed, and the best so far]({study}-search.png)"
    yield ""


def sites(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield (
            f"`{path.name}`: {record['what']}: their median perplexity where the site is unused / drops values / drops "
            f"whole tokens; then how many of each method's last {record['last']} policies do so."
        )
        yield ""
        methods = list(record["rows"][0]["last"])
        shown = [
            (
                *(row["site"], " / ".join(map(decimals, row["random"].values()))),
                *(" / ".join(map(str, row["last"][method].values())) for method in methods),
            )
            for row in record["rows"]
        ]
        yield from markdown(("site", "random policies", *(f"last of {method}" for method in methods)), shown)


def finalists(files: Mapping[Path, Record]) -> Iterator[str]:
    yield f"{named(files)}. What a policy lost from the search to new seeds was luck."
    yield ""
    for record in files.values():
        first = record["methods"][0]["method"]
        head = ("method", "policies", "in the search", "new seeds, mean of policies", f"from {first}", "p")
        shown = []
        for row in record["methods"]:
            apart, p = (None, None) if row["p"] is None else (f"{row['difference']:+.2f}", f"{row['p']:.4f}")
            again = averaged(row["again"], error=True)
            shown.append((row["method"], row["policies"], decimals(row["in_search"]), again, apart, p))
        yield from markdown(head, shown)
        yield (
            "Mean ± standard error (n). p: of all ways to exchange policies between the two methods, the share whose "
            "means lie as far apart."
        )
        yield ""
        rows = [row for row in record["rows"] if row["longer"]]
        line = [
            (
                row["policy"],
                f"{row['rate']:g}",
                decimals(row["search"]),
                averaged(row["again"], error=True),
                f"{row['longer_rate']:g}",
                averaged(row["longer"], error=True),
            )
            for row in rows
        ]
        yield from markdown(
            ("policy", "rate", "in the search", "new seeds", "rate there", "in the final training"), line
        )


def simulated(path: Path) -> Iterator[str]:
    title = "Searches replayed on the table of trials"
    if not path.exists():
        yield from (f"{NOT_RUN}{title}.", "")
        return
    yield from (f"### {title}", "")
    record = json.loads(path.read_text())
    held = record["surrogate"]["held_out"]
    rows = [(kind, f"{h['error']:.5f}", f"{h['correlation']:.2f}") for kind, h in held.items()]
    noise, deviation = record["surrogate"]["noise"], record["surrogate"]["deviation"]
    yield (
        f"`{path.name}`: {record['what']}. Errors are of rewards, {UNIT}: they deviate by {deviation:.5f}, between "
        f"seeds of one policy by {noise:.5f}. What a search takes is the policy that looked best to it, by its true "
        "perplexity."
    )
    yield ""
    yield from markdown(("surrogate", "held-out error", "rank correlation"), rows)
    shown = [
        (
            row["proposer"],
            *(f"{perplexity(row['curve'][trials - 1]):.2f}" for trials in EARLIER if trials < len(row["curve"])),
            _mean(row["best"]),
            _mean(row["confirmed"]),
            _mean(row["last"]),
            row["trials_to_random"] or "never",
        )
        for row in record["proposers"]
    ]
    trials = len(record["proposers"][0]["curve"])
    taken = (f"takes after {number}" for number in (*(earlier for earlier in EARLIER if earlier < trials), trials))
    head = ("proposer", *taken, "of its 10 best, by 5 new seeds", "mean of its last 64", "policies until random's best")
    yield from markdown(head, shown)
    yield "As many trainings, of many policies or of many seeds of each:"
    yield ""
    shown = [(r["repeats"], r["policies"], _mean(r["random"]), _mean(r["controller"])) for r in record["more_seeds"]]
    yield from markdown(("seeds a policy", "policies", "random", "controller"), shown)
    yield (
        "Early stopping of a random search over the table's own rows, with a quarter of the steps that all of them "
        "took; what it takes is told by other seeds than it saw. A stacked crowd gains nothing by it: it takes as long "
        "with fewer."
    )
    yield ""
    shown = [
        (r["halving"], _mean(r["best"]), f"{r['begun']:.0f}", f"{r['finished']:.0f}") for r in record["early_stopping"]
    ]
    yield from markdown(("early stopping", "what it takes", "begun", "finished"), shown)


def _mean(found: Mapping[str, float]) -> str:
    """Of rewards, as a perplexity; its error to first order."""
    shown = perplexity(found["mean"])
    return f"{shown:.2f} ± {shown * found['error'] / found['mean']:.2f}"


def sections(stages: Stages, found: Mapping[str, Mapping[Path, Record]]) -> Iterator[str]:
    missing = []
    for stage, (title, told) in stages.items():
        if found[stage]:
            yield from (f"### {title}", "", *told(found[stage]))
        else:
            missing.append(title)
    if missing:
        yield from (f"{NOT_RUN}{'; '.join(missing)}.", "")


def page(before: str, script: str, lines: Sequence[str]) -> str:
    """The page with the part between a script's marks exchanged; at its end, where there are none yet."""
    begin, end = (f"<!-- {script}: {mark} -->" for mark in ("begin", "end"))
    part = "\n".join((begin, "", *lines, end))
    if begin in before and end in before:
        return before.partition(begin)[0] + part + before.partition(end)[2]
    return (before or TITLE).rstrip("\n") + "\n\n" + part + "\n"


def write_page(docs: Path, script: str, lines: Sequence[str]) -> None:
    docs.mkdir(parents=True, exist_ok=True)
    target = docs / "results.md"
    target.write_text(page(target.read_text() if target.exists() else "", script, lines))
    print(target)


# What was found comes first, how it was looked for after it.
STAGES: Stages = {
    "honest": ("The final table", partial(honest, study="ptb")),
    "finer": ("Rates and lengths between", finer),
    "retuned": ("The final table, tuned more finely", retuned),
    "mended": ("Did the data race of the kernels matter?", mended),
    "bracketed": ("The final table, every rate surrounded", climbed),
    "lengths": ("The same methods, each at both lengths", at_lengths),
    "race": ("All ten best policies of two searches", raced),
    "longer": ("The best of them at the other length", longer),
    "transfer": ("Earlier policies on WikiText-2", climbed),
    "wikitext2": ("The same, with Penn Treebank's length", final),
    "multi30k": ("Earlier policies on Multi30k, German to English", translated),
    "search": ("The controller against random search", partial(searches, study="ptb")),
    "sites": ("What the searches have learned", sites),
    "finalists": ("The best of each method, with new seeds", finalists),
    "proxy": ("Which training is worth searching with", proxies),
    "orders": ("Whose order of policies is whose", orders),
    "candidates": ("Where regularization pays at all", candidates),
    "descent": ("Learning rates at which children learn", descents),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("results/ptb"))
    parser.add_argument("--simulated", type=Path, default=Path("results/simulate.json"))
    parser.add_argument("--translated", type=Path, default=Path("results/multi30k"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    args = parser.parse_args()
    found = {stage: records(args.folder, stage) for stage in STAGES}
    found["multi30k"] = records(args.translated, "multi30k")
    others = ("orders", "sites", "wikitext2", "multi30k")  # have other stages' journals; the last is no part of it
    journals = {stage: args.folder / f"{stage}.jsonl" for stage in STAGES if stage not in others}
    lines = ["## Penn Treebank", "", *sections(STAGES, found)]
    lines += simulated(args.simulated)
    lines += ["### What was run, and what it cost", "", *cost(journals), *twice(journals)]
    write_page(args.docs, "ptb_report.py", lines)
    later = [
        record for stage in ("retuned", "bracketed", "lengths", "race", "longer") for record in found[stage].values()
    ]
    figures(found, args.docs, "ptb", later)


if __name__ == "__main__":
    main()
