"""The parts of a page that come before a search: learning rates, first looks, proxies."""

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.recording import averaged, decimals, interval, markdown, named, units_of
from studies.report.figures import Record

WORTH = 5.0  # seed deviations that regularization has to be worth


def descents(files: Mapping[Path, Record]) -> Iterator[str]:
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
    units = units_of(files.values())
    yield f"{named(files)}. Validation {units}: 4 children without a policy, 7 classical ones, 5 random policies."
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
    units = units_of(files.values())
    yield f"{named(files)}. Validation {units}, mean ± deviation (n); Spearman's correlation with 95% intervals."
    yield "Seconds are of the fastest job, which for some trainings shared the GPU with others."
    yield ""
    rows = [row for record in files.values() for row in record["rows"]]
    shown = []
    for record in files.values():
        longer = record["longer"]
        for row in record["rows"]:
            line: tuple[str | None, ...] = (row["training"], f"{row['steps']:,}", f"{record['rate']:g}")
            line += (f"{row['seconds']:.2f}", averaged(row["none"]), f"{longer['steps']:,} at {longer['rate']:g}")
            line += (f"{interval(row['longer'])}, {row['policies']} policies",)
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
        "rate",
        "seconds",
        "none",
        "longer",
        "correlation with it",
        "two seeds",
        "best classical",
        "gain, deviations",
    )
    yield from markdown(head, shown)
    failed = [f"{row['training']} at {row['steps']:,}" for row in rows if "best_peer" in row and not passed(row)]
    yield f"Proxies that failed, by less than {WORTH:g} deviations: {'; '.join(failed) or 'none'}."
    yield ""
    finals = {json.dumps(record["longer"], sort_keys=True): record["longer"] for record in files.values()}
    for final in finals.values():
        yield from _longer(final, units)
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
    yield from markdown(head, list(dict.fromkeys(shown)))  # a proxy for several longer ones has one of each


def _longer(long: Mapping[str, Any], unit: str) -> Iterator[str]:
    """What a proxy stands for: one row for each classical method, a column for each rate."""
    yield f"The longer one is {long['training']}, {long['steps']:,} steps; {unit} after it:"
    yield ""
    by_method: dict[str, dict[str, float | None]] = {}
    for peer, value in long["peers"].items():
        method, _, rate = peer.rpartition(" at ")
        by_method.setdefault(method, {})[rate] = value
    rates = list(dict.fromkeys(rate for of in by_method.values() for rate in of))
    scores = [value for value in long["random"] if value is not None]
    policies = {f"{long['rate']:g}": f"{statistics.median(scores):.2f}, best {min(scores):.2f}"} if scores else {}
    shown: list[tuple[object, ...]] = [("none", averaged(long["none"]), *(None for _ in rates))]
    shown += [(method, None, *(decimals(of.get(rate)) for rate in rates)) for method, of in by_method.items()]
    shown.append((f"{len(scores)} random policies, median", None, *(policies.get(rate) for rate in rates)))
    yield from markdown(("method", "without", *(f"at {rate}" for rate in rates)), shown)


def orders(files: Mapping[Path, Record]) -> Iterator[str]:
    """A column for each of the longest trainings; all others are in the file."""
    for path, record in files.items():
        yield (
            f"`{path.name}`: {record['what']}. First with the number of sites that drop whole tokens: where it is "
            "positive a training wants more than its rate gives, where it is negative, less. The file has every pair."
        )
        yield ""
        names = [row["training"] for row in record["rows"]]
        most = max(map(_steps, names))
        final = [name for name in names if _steps(name) == most]
        shown = []
        for row in record["rows"]:
            cells = (interval(row["with"][name]) if name in row["with"] else None for name in final)
            shown.append((row["training"], decimals(row["shared"]), *cells))
        yield from markdown(("training", "with whole tokens", *(f"with {name}" for name in final)), shown)


def _steps(name: str) -> int:
    """Of a training as orders.json calls it: `small, 12,000 steps at 0.1, seed 0`."""
    return int(name.partition(" steps at ")[0].rpartition(" ")[2].replace(",", ""))


def passed(row: Mapping[str, Any]) -> bool:
    worth: float = row["gain_in_deviations"]
    return worth >= WORTH
