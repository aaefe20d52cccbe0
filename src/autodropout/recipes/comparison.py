"""Several regularizers on one training, several seeds each: what tuning a rate, ablating a policy and every table are.

    rows = compare(training, [Variant("none", None, 0.0), Variant("policy", policy, 0.3)], seeds=range(5), folder=...)
    print(table(rows))

Each training has a folder of its own, with its checkpoints and, at its end, its scores: what was interrupted goes on,
what is finished is read. Seeds are paired: every variant is trained with the same ones, so a difference between two
variants is the mean over seeds of their differences, and its interval is Student's.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autodropout.recipes.recipe import Training
from autodropout.spaces.atomic import write_atomically
from autodropout.training.distributed import ranks, world
from autodropout.training.run import Regularizer, Run, Scores, identity

_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's two-sided 95% quantiles for 1, 2, ... 15 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A name in a table, and what stands behind it."""

    name: str
    regularizer: Regularizer
    rate: float

    def __post_init__(self) -> None:
        if not self.name or not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"a variant has a name and a rate in [0, 1], got {self.name!r} and {self.rate}")


@dataclass(frozen=True, slots=True)
class Row:
    """One variant trained with one seed."""

    variant: Variant
    seed: int
    scores: Scores
    was_finished: bool = field(default=False, compare=False)  # before: its scores were read, not trained for


def compare(
    training: Training,
    variants: Sequence[Variant],
    seeds: Iterable[int],
    folder: Path,
    run: Run | None = None,
    watch: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Train each variant with each seed, seeds outermost: cut short, all variants have almost equally many."""
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise ValueError(f"two variants have one name: {', '.join(names)}")
    run = run or Run()
    rows = []
    with ranks(run.where):  # under torchrun one group serves all trainings: a second one would not come about
        for seed in seeds:
            for variant in variants:
                rows.append(_once(training, variant, seed, folder, run))
                watch(rows[-1])
    return rows


def _once(training: Training, variant: Variant, seed: int, folder: Path, run: Run) -> Row:
    """One training; its scores are read, if it is finished already."""
    where = folder / _folder_name(training, variant) / f"seed-{seed}"
    finished = where / "scores.json"
    if finished.exists():
        try:
            found = json.loads(finished.read_text())
            scores = Scores(found["reward"], found["metrics"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{finished} is damaged: remove it to have the training judged again") from None
        if not run.test or any(name.startswith("test") for name in scores.metrics):
            return Row(variant, seed, scores, was_finished=True)
    scores = training.fit(variant.regularizer, variant.rate, seed, replace(run, folder=where))
    if world().writes:
        content = {"variant": variant.name, "rate": variant.rate, "seed": seed, "reward": scores.reward}
        write_atomically(finished, json.dumps(content | {"metrics": dict(scores.metrics)}, indent=1).encode())
    return Row(variant, seed, scores)


def _folder_name(training: Training, variant: Variant) -> str:
    """The variant's name, for people, and a digest of all that its scores depend on."""
    said = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in variant.name)
    everything = json.dumps(identity(training, variant.regularizer, variant.rate, seed=0), sort_keys=True)
    return f"{said}-{hashlib.sha256(everything.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class Summary:
    """A variant over its seeds, and its paired difference from the first variant."""

    variant: Variant
    values: tuple[float, ...]
    mean: float
    error: float | None  # standard error; None with one seed
    difference: float
    interval: float | None  # half of the difference's 95% interval; None with one seed, or for the first variant


def summaries(rows: Sequence[Row], metric: str | None = None) -> list[Summary]:
    """One a variant, in the order of their first rows: of the reward, or of one of the trainings' metrics."""
    by_variant: dict[str, dict[int, float]] = {}
    variants = {row.variant.name: row.variant for row in rows}
    for row in rows:
        value = row.scores.reward if metric is None else row.scores.metrics[metric]
        by_variant.setdefault(row.variant.name, {})[row.seed] = value
    first = next(iter(by_variant.values()), {})
    found = []
    for name, values in by_variant.items():
        differences = [value - first[seed] for seed, value in values.items() if seed in first]
        spread = None if values is first else _error(differences)
        found.append(
            Summary(
                variants[name],
                tuple(values.values()),
                statistics.fmean(values.values()),
                _error(list(values.values())),
                statistics.fmean(differences),
                None if spread is None else spread * _quantile(len(differences) - 1),
            )
        )
    return found


def table(rows: Sequence[Row], metric: str | None = None) -> str:
    """For a terminal: mean, its standard error, n, the difference from the first variant with its 95% interval."""
    found = summaries(rows, metric)
    width = max(len("variant"), *(len(summary.variant.name) for summary in found))
    compared = f"{'from the first':>20}" if len(found) > 1 else ""
    lines = [f"{'variant':{width}}  {'rate':>5}  {metric or 'reward':>21}  {'n':>3}  {compared}".rstrip()]
    for place, summary in enumerate(found):
        mean = f"{summary.mean:.4f}" + ("" if summary.error is None else f" ± {summary.error:.4f}")
        difference = ""
        if place:
            difference = f"{summary.difference:+.4f}"
            difference += "" if summary.interval is None else f" ± {summary.interval:.4f}"
        name, rate = summary.variant.name, summary.variant.rate
        lines.append(f"{name:{width}}  {rate:>5.2f}  {mean:>21}  {len(summary.values):>3}  {difference:>20}".rstrip())
    return "\n".join(lines)


def _error(values: list[float]) -> float | None:
    """The standard error of a mean; unknown with one value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _quantile(freedom: int) -> float:
    """Beyond the table, the normal quantile with the first two corrections of its expansion."""
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.3723 / freedom + 2.8225 / freedom**2
