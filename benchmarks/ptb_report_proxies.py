"""The parts of docs/results.md that come before a search: learning rates, first looks, proxies (see ptb_report.py)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ptb_figures import Record
from recording import averaged, decimals, interval, markdown, named

WORTH = 5.0  # seed deviations that regularization has to be worth


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
        stops = ", ".join(f"{step:,}" for step in row["none_best_at"])
        best = f"{decimals(row['peers'][row['best_peer']])}, {row['best_peer']}"
        line = (row["training"], f"{row['steps']:,}", averaged(row["none"]), stops, best)
        shown.append((*line, decimals(row["best_random"])))
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


def orders(files: Mapping[Path, Record]) -> Iterator[str]:
    yield "### Whose order of policies is whose"
    yield ""
    for path, record in files.items():
        yield f'`{path.name}`: {record["what"]}; "shared": with the number of sites that drop whole tokens.'
        yield ""
        names = [row["training"] for row in record["rows"]]
        shown = []
        for number, row in enumerate(record["rows"], start=1):
            cells = (decimals(row["with"][name]["estimate"]) if name in row["with"] else None for name in names)
            shown.append((f"{number}. {row['training']}", decimals(row["shared"]), *cells))
        yield from markdown(("training", "shared", *(str(number + 1) for number in range(len(names)))), shown)


def passed(row: Mapping[str, Any]) -> bool:
    worth: float = row["gain_in_deviations"]
    return worth >= WORTH
