"""The parts of a page that compare final trainings, here and on other texts."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.recording import averaged, markdown, unit_of
from studies.honest import LEVEL
from studies.report.figures import Record


def honest(files: Mapping[Path, Record], study: str) -> Iterator[str]:
    yield from final(files)
    yield f"![test scores of each method]({study}-honest.png)"
    yield ""


def retuned(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield f"`{path.name}`: {record['what']}. Mean ± standard error (n); differences are paired, with 95% intervals."
        yield ""
        yield from _both_metrics(record, unit_of(record))


def at_lengths(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield f"`{path.name}`: {record['what']}. Mean ± standard error (n); differences are paired, with 95% intervals."
        yield ""
        for steps, of in record["by_length"].items():
            yield f"After {steps} steps:"
            yield ""
            yield from _both_metrics(of, unit_of(record))


def longer(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield from _tried(f"`{path.name}`, tuning:", record["tried"])
        yield from at_lengths({path: record})


def mended(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield f"`{path.name}`: {record['what']}. Mean ± standard error (n); differences are paired, with 95% intervals."
        yield ""
        rows = []
        for name, (before, *others) in record["tables"].items():
            for row in others if name.endswith("with the race") else ():
                told = (f"{_mean(one)} ({len(one['values'])})" for one in (before, row))
                rows.append((row["method"], *told, _difference(row["method"], before["method"], [before, row])))
        yield from markdown(("method", "validation perplexity with the data race", "without", "difference"), rows)


def final(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield from retuned({path: record})
        yield "Policies were searched, chosen and tuned by validation: only the test tells their gain."
        yield ""
        yield from _edges(record)
        yield from _lengths(record)
        if record["diverged"]:
            lost = ", ".join(f"{method} (seed {seed})" for method, seed in record["diverged"])
            yield f"Diverged, hence not in the table: {lost}."
        yield ""


def finer(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield from _tried(f"`{path.name}`: {record['what']}.", record["tables"])


def climbed(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield from retuned({path: record})
        yield from _tried("What was tried before.", record["tried"])


def raced(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield (
            f"`{path.name}`, a contest of policies: {record['what']}. Validation {unit_of(record)} by rate, mean ± "
            "standard error (n); a policy is worth its mean at its best rate."
        )
        yield ""
        first = record["methods"][0]["method"]
        rows = []
        for row in record["methods"]:
            apart, p = (None, None) if row["p"] is None else (f"{row['difference']:+.2f}", f"{row['p']:.4f}")
            rows.append((row["method"], row["policies"], averaged(row["again"], error=True), apart, p))
        yield from markdown(("method", "policies", "mean of their worths", f"from {first}", "p"), rows)
        yield from _by_rate(record["rows"])
        yield "The best of each method with new seeds, by which one of each was chosen, and its rate:"
        yield ""
        yield from _by_rate(record["best"])
        chosen = (f"{one['method']} {one['number']} at {one['rate']:g}" for one in record["chosen"])
        yield f"Chosen: {', '.join(chosen)}. Trained once more, with seeds that nothing was chosen by:"
        yield ""
        yield from _both_metrics(record, unit_of(record))
        yield from _edges(record)


def _by_rate(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    rates = sorted({rate for row in rows for rate in row["scores"]}, key=float)
    shown = [
        (
            f"{row['method']} {row['number']}",
            *(averaged(row["scores"][rate], error=True) if rate in row["scores"] else None for rate in rates),
        )
        for row in rows
    ]
    return markdown(("policy", *(f"at {rate}" for rate in rates)), shown)


def _tried(what: str, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """A line for each method, in a cell the rates of one length; what it was tuned to is among them."""
    (name, rows), *_ = tables.items()
    metric, _, first = name.partition(", from ")
    seeds = max(len(row["values"]) for row in rows)
    yield (
        f"{what} {metric.capitalize()} by rate, mean ± standard error of {seeds} seeds, "
        "less what diverged; **bold**: a method's best, and its paired difference with a 95% interval."
    )
    yield ""
    methods: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        method, _, setting = row["method"].rpartition(" at ")
        length = setting.partition(", ")[2]
        methods.setdefault(method, {}).setdefault(length, []).append(row)
    lengths = sorted({length for by in methods.values() for length in by}, key=lambda told: (len(told), told))
    shown = []
    for method, by in methods.items():
        best = min((row for of in by.values() for row in of), key=lambda row: row["mean"])
        cells = (
            "<br>".join(_at_rate(row, bold=row is best) for row in sorted(by.get(length, []), key=_rate))
            for length in lengths
        )
        shown.append((method, *cells, _difference(best["method"], first, rows)))
    yield from markdown(("method", *lengths, f"its best, from {first}"), shown)


def _rate(row: Mapping[str, Any]) -> float:
    return float(row["rate"])


def _at_rate(row: Mapping[str, Any], bold: bool) -> str:
    return f"{row['rate']:g}: " + (f"**{_mean(row)}**" if bold else _mean(row))


def _mean(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.2f}" + ("" if row["standard_error"] is None else f" ± {row['standard_error']:.2f}")


def translated(files: Mapping[Path, Record]) -> Iterator[str]:
    for path, record in files.items():
        yield (
            f"`{path.name}`: {record['what']}, {record['steps']:,} steps. Mean ± standard error (n) of sacreBLEU; "
            "differences are paired, with 95% intervals."
        )
        yield ""
        for metric in ("test BLEU", "validation BLEU"):
            yield from _compared(record, metric)
        yield from _edges(record)


def _edges(record: Record) -> Iterator[str]:
    if record["at_the_edge"]:
        yield f"The best rate was at the edge of those tried for: {'; '.join(record['at_the_edge'])}."
        yield ""


def _lengths(record: Record) -> Iterator[str]:
    """Which ones were tried."""
    tried = sorted({of["steps"] for by in record["tuning"].values() for of in by})
    yield f"Lengths tried, in steps: {', '.join(f'{steps:,}' for steps in tried)}."
    for method, mean in record["none_lengths"].items():
        if method not in record["lengths"]:
            yield f"Tested but not in the table: {method}, validation {unit_of(record)} {mean:.2f}."
    yield ""


def _both_metrics(record: Record, unit: str) -> Iterator[str]:
    """And what is claimed of them."""
    for metric in (f"test {unit}", f"validation {unit}"):
        yield from _compared(record, metric)
    yield from map(_claim, record["claims"])
    yield ""


def _compared(record: Record, metric: str) -> list[str]:
    """Methods by a metric, and their differences from some of them."""
    tables = {key.partition(", from ")[2]: t for key, t in record["tables"].items() if key.startswith(metric)}
    lengths = record.get("lengths")
    shown = []
    for row in next(iter(tables.values())):
        others = [_difference(row["method"], first, of) for first, of in tables.items()]
        setting = f"{row['rate']:g}" + (f", {lengths[row['method']]:,} steps" if lengths else "")
        shown.append((row["method"], setting, f"{_mean(row)} ({len(row['values'])})", *others))
    return markdown(("method", "rate", metric, *(f"from {name}" for name in tables)), shown)


def _difference(method: str, first: str, rows: Sequence[Mapping[str, Any]]) -> str:
    row = next((row for row in rows if row["method"] == method), None)
    if row is None or method == first:
        return ""
    return f"{row['difference']:+.2f}" + ("" if row["half_interval"] is None else f" ± {row['half_interval']:.2f}")


def _claim(claim: Mapping[str, Any]) -> str:
    metric = claim["metric"]
    if not claim["n"]:
        return f"- {metric}: {claim['method']} and {claim['than']} have no seed in common."
    word = "is **better** than" if claim["holds"] else "is **not shown** to be better than"
    if claim["difference"] > 0 and claim["p_for_all_claims"] < LEVEL:
        word = "is **worse** than"
    half = "" if claim["half_interval"] is None else f" ± {claim['half_interval']:.2f}"
    return (
        f"- {metric}: the {claim['method']} {word} {claim['than']}: {claim['difference']:+.2f}{half}, "
        f"n = {claim['n']}, p {_p(claim['p'])} by sign flips, p {_p(claim['p_for_all_claims'])} for all claims."
    )


def _p(value: float) -> str:
    return f"= {value:.3f}" if value >= 0.001 else "< 0.001"
