"""The parts of a page that tell of searches: real ones, what they learned, their best, and simulated ones."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.recording import averaged, decimals, markdown, named, units_of
from studies.ptb.study import perplexity
from studies.ptb.table import UNIT
from studies.report.figures import Record
from studies.report.page import NOT_RUN

EARLIER = (64, 128, 256)  # policies after which simulated searches are looked at, too


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
        yield from markdown(("policy", "rate", "in the search", "new seeds", "rate there", "trained longer"), line)


def simulated(path: Path) -> Iterator[str]:
    title = "Searches replayed on the table of trials"
    if not path.exists():
        yield from (f"{NOT_RUN}{title}.", "")
        return
    yield from (f"## {title}", "")
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
