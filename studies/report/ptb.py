"""The page of Penn Treebank's study, and its figures: `python -m studies.report ptb`."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from autodropout.tables import Journal
from autodropout.tables.statistics import seed_spread
from studies.ptb.study import perplexity
from studies.report.figures import figures
from studies.report.page import Stages, cost, records, sections, write_page
from studies.report.proxies import candidates, descents, orders, proxies
from studies.report.searches import finalists, searches, simulated, sites
from studies.report.tables import (
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


def twice(journals: Mapping[str, Path]) -> Iterator[str]:
    """What a seed does not fix: children that were trained more than once with one, in whatever crowds.

    But not by other code: those of `ptb/mended.py` have a table of their own.
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


def write(folder: Path, simulations: Path, translations: Path, docs: Path) -> None:
    found = {stage: records(folder, stage) for stage in STAGES}
    found["multi30k"] = records(translations, "multi30k")
    others = ("orders", "sites", "wikitext2", "multi30k")  # have other stages' journals; the last is no part of it
    journals = {stage: folder / f"{stage}.jsonl" for stage in STAGES if stage not in others}
    lines = [*sections(STAGES, found), *simulated(simulations)]
    lines += ["## What was run, and what it cost", "", *cost(journals), *twice(journals)]
    write_page(docs, "ptb", "Penn Treebank", lines)
    later = [
        record for stage in ("retuned", "bracketed", "lengths", "race", "longer") for record in found[stage].values()
    ]
    figures(found, docs, "ptb", later)
