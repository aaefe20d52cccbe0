"""The part of docs/results.md that is about Penn Treebank, and its figures, from the study's JSON files alone.

    python benchmarks/ptb_report.py [--folder results/ptb] [--simulated results/simulate.json] [--docs docs]

Whatever stages have been run are in it (`ptb_study.py`); what is missing is said to be missing. What stands in the page
outside of the two marks is kept. Nothing is computed here but means: every number is one of a file's, which is named
above its table. What was not shown is written as plainly as what was.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptb_figures import Record, figures
from recording import averaged, decimals, interval

BEGIN, END = "<!-- ptb_report.py: begin -->", "<!-- ptb_report.py: end -->"
TITLE = "# Results\n\n"
WORTH = 5.0  # seed deviations that regularization has to be worth


def records(folder: Path, stage: str) -> dict[Path, Record]:
    """The JSON files of a stage, by their paths."""
    return {path: json.loads(path.read_text()) for path in sorted(folder.glob(f"{stage}*.json"))}


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |" for line in lines] + [""]


def cost(found: Mapping[str, Mapping[Path, Record]]) -> Iterator[str]:
    """What all of it took. Files of one stage are of one journal: its last state is that of the most trials."""
    yield "### What was run, and what it cost"
    yield ""
    rows: list[Sequence[object]] = []
    total = 0.0
    for stage, files in found.items():
        if not files:
            rows.append((stage, "not run yet", None, None))
            continue
        last = max(files.values(), key=lambda record: record["trials"])
        total += last["minutes"]
        rows.append((stage, f"{last['trials']:,}", f"{last['minutes']:.1f}", last["machine"]))
    rows.append(("all", None, f"{total:.1f}", None))
    yield from markdown(("stage", "trials", "minutes", "machine"), rows)
    yield "Minutes are of the machine: training, judging, compiling and capturing."
    yield ""


def descents(files: Mapping[Path, Record]) -> Iterator[str]:
    yield "### Learning rates at which children learn"
    yield ""
    for path, record in files.items():
        known = f"{record['by_frequency']:.0f}"
        yield f"`{path.name}`: {record['what']}. Who has learned is below half of {known}, what word frequencies give."
        yield ""
        shown = []
        for row in record["rows"]:
            medians = (row[kind][(len(row[kind]) - 1) // 2] for kind in ("none", "classical", "random"))
            learned = f"{row['learned']} of {row['children']}"
            shown.append((f"{row['lr']:g}", row["warmup"], learned, *map(decimals, medians)))
        head = ("learning rate", "warm-up, steps", "have learned", "none, median", "classical", "random policies")
        yield from markdown(head, shown)


def candidates(files: Mapping[Path, Record]) -> Iterator[str]:
    yield "### Where regularization pays at all"
    yield ""
    yield f"{named(files)}. Validation perplexity: 4 children without a policy, 7 classical ones, 5 random policies."
    yield ""
    shown = []
    for row in (row for record in files.values() for row in record["rows"]):
        stops = ", ".join(f"{int(step):,}" for step in row["none_best_at"])
        best = f"{decimals(row['peers'][row['best_peer']])}, {row['best_peer']}"
        random = decimals(min((value for value in row["random"] if value is not None), default=None))
        shown.append((row["training"], f"{row['steps']:,}", averaged(row["none"]), stops, best, random))
    head = ("training", "steps", "none", "which was best after steps", "best classical of 7", "best random of 5")
    yield from markdown(head, shown)


def proxies(files: Mapping[Path, Record]) -> Iterator[str]:
    yield "### Which training is worth searching with"
    yield ""
    yield f"{named(files)}. Validation perplexity, mean ± deviation (n); Spearman's correlation with 95% intervals."
    yield ""
    rows = [row for record in files.values() for row in record["rows"]]
    shown = []
    for record in files.values():
        for row in record["rows"]:
            line: tuple[str | None, ...] = (row["training"], f"{row['steps']:,}", f"{row['seconds']:.2f}")
            line += (averaged(row["none"]), f"{interval(row['longer'])}, {row['policies']} policies")
            if "best_peer" in row:
                gain = f"{row['gain_in_deviations']:.1f}" + ("" if passed(row) else ": **too little**")
                best = f"{averaged(row['peers'][row['best_peer']])}, {row['best_peer']}"
                line += (interval(row["two_seeds"]), best, gain)
            else:
                line += (None, None, None)
            shown.append(line)
    head = (
        "training",
        "steps",
        "seconds",
        "none",
        "with the longer",
        "two seeds",
        "best classical",
        "gain, deviations",
    )
    yield from markdown(head, shown)
    failed = [f"{row['training']} at {row['steps']:,}" for row in rows if "best_peer" in row and not passed(row)]
    yield f"Proxies that failed, by less than {WORTH:g} deviations: {'; '.join(failed) or 'none'}."
    yield ""
    for record in files.values():
        long = record["longer"]
        peers = ", ".join(f"{peer} {decimals(value)}" for peer, value in long["peers"].items())
        yield (
            f"The longer one of {record['rows'][-1]['training']}: {long['training']}, {long['steps']:,} steps, "
            f"{long['seconds']:.2f} s a child, policies at {long['rate']:g}: {averaged(long['random'])}; "
            f"none {averaged(long['none'])}; {peers}."
        )
        yield ""
    shown = [
        (
            *(row["training"], f"{row['steps']:,}", f"{rate['rate']:g}", averaged(rate["random"])),
            *(f"{rate['deviation_of_seeds']:.1f}", f"{rate['better_than_none']:.0%}"),
            interval(rate["with_sites_used"]),
        )
        for row in rows
        for rate in row.get("rates", ())
    ]
    head = ("training", "steps", "rate", "random policies", "deviation, in seeds'", "better than none", "with sites")
    yield from markdown(head, shown)


def passed(row: Mapping[str, Any]) -> bool:
    worth: float = row["gain_in_deviations"]
    return worth >= WORTH


def searches(files: Mapping[Path, Record]) -> Iterator[str]:
    yield "### The controller against random search"
    yield ""
    yield f"{named(files)}. Perplexities of single seeds; one search of each method, so another might end elsewhere."
    yield ""
    head = (
        "search",
        "method",
        "policies",
        "best",
        "mean of the last 64",
        "diverged",
        "minutes",
        "as good as random's best",
    )
    shown = []
    for record in files.values():
        for row in record["rows"]:
            took = "never" if row["reached"] is None else "{} policies, {:.1f} minutes".format(*row["reached"])
            line = (record["what"], row["method"], row["trials"], decimals(row["best"]), decimals(row["last"]))
            shown.append((*line, row["diverged"], f"{row['minutes']:.1f}", took))
    yield from markdown(head, shown)
    yield "![the best policy so far](ptb-search.png)"
    yield ""


def finalists(files: Mapping[Path, Record]) -> Iterator[str]:
    yield "### The best of each method, with new seeds"
    yield ""
    yield f"{named(files)}. What a policy lost from the search to new seeds was luck."
    yield ""
    for record in files.values():
        head = ("method", "policies", "in the search", "new seeds, mean of all", "less than the first's", "p")
        shown = []
        for row in record["methods"]:
            less = averaged(row["difference"], error=True) if row["p"] is not None else None
            p = None if row["p"] is None else f"{row['p']:.3f}"
            again = averaged(row["again"], error=True)
            shown.append((row["method"], row["policies"], decimals(row["in_search"]), again, less, p))
        yield from markdown(head, shown)
        rows = [row for row in record["rows"] if row["longer"]]
        line = [
            (
                row["policy"],
                row["rate"],
                decimals(row["search"]),
                averaged(row["again"], error=True),
                averaged(row["longer"]),
            )
            for row in rows
        ]
        yield from markdown(("policy", "rate", "in the search", "new seeds", "longer"), line)


def honest(files: Mapping[Path, Record]) -> Iterator[str]:
    yield "### The final table"
    yield ""
    yield from final(files)
    yield "![test perplexity of each method](ptb-honest.png)"
    yield ""


def transfer(files: Mapping[Path, Record]) -> Iterator[str]:
    yield "### The same policies on WikiText-2"
    yield ""
    yield from final(files)


def final(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield f"`{path.name}`: {record['what']}. Mean ± standard error (n); differences are paired, with 95% intervals."
        yield ""
        for metric in ("test_perplexity", "validation_perplexity"):
            tables = {key.partition(", from ")[2]: t for key, t in record["tables"].items() if key.startswith(metric)}
            shown = []
            for row in next(iter(tables.values())):
                mean = f"{row['mean']:.2f}" + (
                    "" if row["standard_error"] is None else f" ± {row['standard_error']:.2f}"
                )
                others = [_difference(row["method"], first, of) for first, of in tables.items()]
                shown.append((row["method"], f"{row['rate']:g}", f"{mean} ({len(row['values'])})", *others))
            yield from markdown(("method", "rate", metric.replace("_", " "), *(f"from {n}" for n in tables)), shown)
        for claim in sorted(record["claims"], key=lambda claim: claim["metric"] != "test_perplexity"):
            yield _claim(claim)
        yield ""
        yield "Policies were searched, chosen and tuned by the validation text: only the test text tells their gain."
        yield ""
        if record["at_the_edge"]:
            yield f"The best rate was at the edge of those tried for: {', '.join(record['at_the_edge'])}."
        if record["diverged"]:
            lost = ", ".join(f"{method} (seed {seed})" for method, seed in record["diverged"])
            yield f"Diverged, hence not in the table: {lost}."
        yield ""


def _difference(method: str, first: str, rows: Sequence[Mapping[str, Any]]) -> str:
    row = next((row for row in rows if row["method"] == method), None)
    if row is None or method == first:
        return ""
    return f"{row['difference']:+.2f}" + ("" if row["half_interval"] is None else f" ± {row['half_interval']:.2f}")


def _claim(claim: Mapping[str, Any]) -> str:
    metric = claim["metric"].replace("_", " ")
    if not claim["n"]:
        return f"- {metric}: {claim['method']} and {claim['than']} have no seed in common."
    word = "is **better** than" if claim["holds"] else "is **not shown** to be better than"
    half = "" if claim["half_interval"] is None else f" ± {claim['half_interval']:.2f}"
    return (
        f"- {metric}: the {claim['method']} {word} {claim['than']}: {claim['difference']:+.2f}{half}, "
        f"n = {claim['n']}, p = {claim['p']:.4f} by sign flips, {claim['p_for_all_claims']:.4f} for both claims."
    )


def simulated(path: Path) -> Iterator[str]:
    yield "### Searches replayed on the table of trials"
    yield ""
    if not path.exists():
        yield "Not run yet."
        yield ""
        return
    record = json.loads(path.read_text())
    held = record["surrogate"]["held_out"]
    rows = [(kind, f"{h['error']:.5f}", f"{h['correlation']:.2f}") for kind, h in held.items()]
    noise, deviation = record["surrogate"]["noise"], record["surrogate"]["deviation"]
    yield f"`{path.name}`. Rewards deviate by {deviation:.5f}, between seeds of one policy by {noise:.5f}."
    yield ""
    yield from markdown(("surrogate", "held-out error", "rank correlation"), rows)
    shown = [
        (row["proposer"], _mean(row["best"]), _mean(row["last"]), row["trials_to_random"] or "never")
        for row in record["proposers"]
    ]
    yield from markdown(("proposer", "reward of what it takes", "last 64", "policies until random's best"), shown)
    shown = [(r["repeats"], r["policies"], _mean(r["random"]), _mean(r["controller"])) for r in record["more_seeds"]]
    yield from markdown(("seeds a policy", "policies", "random", "controller"), shown)
    shown = [
        (r["halving"], _mean(r["best"]), f"{r['begun']:.0f}", f"{r['finished']:.0f}") for r in record["early_stopping"]
    ]
    yield from markdown(("early stopping", "reward of what it takes", "begun", "finished"), shown)


def _mean(found: Mapping[str, float]) -> str:
    return f"{found['mean']:.5f} ± {found['error']:.5f}"


def named(files: Mapping[Path, Record]) -> str:
    return ", ".join(f"`{path.name}`" for path in files)


def page(before: str, lines: Sequence[str]) -> str:
    """The page with the part between the marks exchanged; at its end, where there are none yet."""
    part = "\n".join((BEGIN, "", *lines, END))
    if BEGIN in before and END in before:
        return before.partition(BEGIN)[0] + part + before.partition(END)[2]
    return (before or TITLE).rstrip("\n") + "\n\n" + part + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("results/ptb"))
    parser.add_argument("--simulated", type=Path, default=Path("results/simulate.json"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    args = parser.parse_args()
    stages = {
        "descent": descents,
        "candidates": candidates,
        "proxy": proxies,
        "search": searches,
        "finalists": finalists,
        "honest": honest,
        "transfer": transfer,
    }
    found = {stage: records(args.folder, stage) for stage in stages}
    lines = ["## Penn Treebank", "", *cost(found)]
    for stage, told in stages.items():
        lines += told(found[stage]) if found[stage] else [f"### {stage.capitalize()}", "", "Not run yet.", ""]
    lines += simulated(args.simulated)
    args.docs.mkdir(parents=True, exist_ok=True)
    target = args.docs / "results.md"
    target.write_text(page(target.read_text() if target.exists() else "", lines))
    figures(found, args.docs)
    print(target)


if __name__ == "__main__":
    main()
