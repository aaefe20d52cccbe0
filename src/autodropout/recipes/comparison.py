"""Several regularizers on one training, several seeds each: what tuning a rate, ablating a policy and every table are.

    rows = compare(training, [Variant("none", None, 0.0), Variant("policy", policy, 0.3)], seeds=range(5), folder=...)
    print(table(rows))

Each training has a folder of its own, with its checkpoints and, at its end, its scores: what was interrupted goes on,
what is finished is read. With `together=16` so many are trained at once on one GPU. Seeds are paired: every variant is
trained with the same ones, so a difference between two variants is the mean over seeds of their differences, and its
interval is Student's. A training that diverges is one of the results: it is told, and the others go on.
"""

import hashlib
import json
import logging
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autodropout.recipes.at_once import fit_at_once
from autodropout.recipes.recipe import CrowdTraining, Training
from autodropout.spaces.atomic import write_atomically
from autodropout.training.distributed import ranks, world
from autodropout.training.run import Regularizer, Run, Scores, identity

log = logging.getLogger("autodropout")

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
    scores: Scores | None  # None: it diverged
    was_finished: bool = field(default=False, compare=False)  # before: its scores were read, not trained for


@dataclass(frozen=True, slots=True)
class _Job:
    """One training, and its folder."""

    variant: Variant
    seed: int
    folder: Path


def compare(
    training: Training,
    variants: Sequence[Variant],
    seeds: Iterable[int],
    folder: Path,
    run: Run | None = None,
    watch: Callable[[Row], None] = lambda row: None,
    together: int = 1,
) -> list[Row]:
    """Train each variant with each seed, seeds outermost: cut short, all variants have almost equally many.

    Args:
        training: what is trained.
        variants: under different names; differences will be from the first.
        seeds: of each variant.
        folder: where each training has a folder.
        run: where and how.
        watch: called with each row as it comes.
        together: how many to train at once on one device, where the training can (`fit_many`). Those leave their
            scores and nothing else: no weights and no checkpoint, so a crowd that was cut short begins anew.

    Raises:
        FloatingPointError: all have diverged. One that has is not trained again, unless its scores are removed.
    """
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise ValueError(f"two variants have one name: {', '.join(names)}")
    if together < 1:
        raise ValueError(f"at least 1 is trained at once, got together={together}")
    run = run or Run()
    jobs = [
        _Job(variant, seed, folder / _folder_name(training, variant) / f"seed-{seed}")
        for seed in seeds
        for variant in variants
    ]
    rows: dict[tuple[str, int], Row] = {}

    def keep(row: Row) -> None:
        rows[row.variant.name, row.seed] = row
        watch(row)

    with ranks(run.where):  # under torchrun one group serves all trainings: a second one would not come about
        for row in (_finished(job, run) for job in jobs):
            if row is not None:
                keep(row)
        left = [job for job in jobs if (job.variant.name, job.seed) not in rows]
        many, alone = _divided(training, left, together)
        for first in range(0, len(many), together):
            for row in _at_once(training, many[first : first + together], run):
                keep(row)
        for job in alone:
            keep(_alone(training, job, run))
    if rows and all(row.scores is None for row in rows.values()):
        raise FloatingPointError(f"all have diverged: {', '.join(names)}; they are tried again once {folder} is gone")
    return [rows[job.variant.name, job.seed] for job in jobs]


def _divided(training: Training, jobs: Sequence[_Job], together: int) -> tuple[list[_Job], list[_Job]]:
    """Jobs that can be trained at once, be it one that is left over; and those that cannot."""
    possible = together > 1 and getattr(training, "crowds", False)
    many: list[_Job] = []
    alone: list[_Job] = []
    for job in jobs:
        crowded = possible and training.crowded(job.variant.regularizer)  # type: ignore[attr-defined]
        (many if crowded else alone).append(job)
    return many, alone


def _finished(job: _Job, run: Run) -> Row | None:
    """What an earlier call has found; None where there is nothing, or not all that `run` asks for."""
    scores = job.folder / "scores.json"
    if not scores.exists():
        return None
    try:
        data = json.loads(scores.read_text())
        if data["reward"] is None:
            return Row(job.variant, job.seed, None, was_finished=True)
        found = Scores(data["reward"], data["metrics"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{scores} is damaged: remove it to have the training judged again") from None
    if run.test and not any(name.startswith("test") for name in found.metrics):
        return None
    return Row(job.variant, job.seed, found, was_finished=True)


def _alone(training: Training, job: _Job, run: Run) -> Row:
    try:
        scores = training.fit(job.variant.regularizer, job.variant.rate, job.seed, replace(run, folder=job.folder))
    except FloatingPointError as error:
        log.warning("%s, seed %d diverged: %s", job.variant.name, job.seed, error)
        return _scored(job, None)
    return _scored(job, scores)


def _at_once(training: Training, jobs: Sequence[_Job], run: Run) -> list[Row]:
    """One crowd. All of its scores are kept before anybody is told of one."""
    crowd: CrowdTraining = training  # type: ignore[assignment]  # `_divided` has asked
    rates, seeds = [job.variant.rate for job in jobs], [job.seed for job in jobs]
    found = fit_at_once(crowd, [job.variant.regularizer for job in jobs], rates, seeds, run)
    return [_scored(job, scores) for job, scores in zip(jobs, found, strict=True)]


def _scored(job: _Job, scores: Scores | None) -> Row:
    """Scores, or that there are none, are on the disk when this returns."""
    if world().writes:
        job.folder.mkdir(parents=True, exist_ok=True)
        content = {"variant": job.variant.name, "rate": job.variant.rate, "seed": job.seed}
        content |= {"reward": scores and scores.reward, "metrics": dict(scores.metrics) if scores else {}}
        write_atomically(job.folder / "scores.json", json.dumps(content, indent=1).encode())
    return Row(job.variant, job.seed, scores)


def _folder_name(training: Training, variant: Variant) -> str:
    """The variant's name, for people, and a digest of all that its scores depend on."""
    said = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in variant.name)
    everything = json.dumps(identity(training, variant.regularizer, variant.rate, seed=0), sort_keys=True)
    return f"{said}-{hashlib.sha256(everything.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class Summary:
    """A variant over its seeds, and its paired difference from the first variant; nan where there is no value."""

    variant: Variant
    values: tuple[float, ...]  # of those that did not diverge
    mean: float
    error: float | None  # standard error; None with one seed
    difference: float
    interval: float | None  # half of the difference's 95% interval; None with one seed, or for the first variant
    diverged: int = 0  # of its seeds


def summaries(rows: Sequence[Row], metric: str | None = None) -> list[Summary]:
    """One a variant, in the order of their first rows: of the reward, or of one of the trainings' metrics."""
    by_variant: dict[str, dict[int, float]] = {}
    variants = {row.variant.name: row.variant for row in rows}
    diverged = Counter(row.variant.name for row in rows if row.scores is None)
    for row in rows:
        values = by_variant.setdefault(row.variant.name, {})
        if row.scores is not None:
            values[row.seed] = row.scores.reward if metric is None else row.scores.metrics[metric]
    first = next(iter(by_variant.values()), {})
    found = []
    for name, values in by_variant.items():
        differences = [value - first[seed] for seed, value in values.items() if seed in first]
        spread = None if values is first else _error(differences)
        found.append(
            Summary(
                variants[name],
                tuple(values.values()),
                _mean(list(values.values())),
                _error(list(values.values())),
                _mean(differences),
                None if spread is None else spread * _quantile(len(differences) - 1),
                diverged[name],
            )
        )
    return found


def table(rows: Sequence[Row], metric: str | None = None, *, rated: bool = True) -> str:
    """For a terminal: mean ± its standard error, n, the difference from the first variant ± half its 95% interval.

    Without a column of rates where they are not `rated`.
    """
    found = summaries(rows, metric)
    heads = [f"{metric or 'score'} ± s.e.", "n"]
    if len(found) > 1:
        heads.append(f"minus {found[0].variant.name}, ± 95%")
    lines = [("variant", *(("rate",) if rated else ()), *heads)]
    for place, summary in enumerate(found):
        mean = _with_spread(f"{summary.mean:.4f}", summary.error) if summary.values else "diverged"
        count = f"{len(summary.values)}" + (f" of {len(summary.values) + summary.diverged}" if summary.diverged else "")
        apart = "" if not place or math.isnan(summary.difference) else f"{summary.difference:+.4f}"
        cells = (mean, count, _with_spread(apart, summary.interval))[: len(heads)]
        rate = (f"{summary.variant.rate:g}",) if rated else ()
        lines.append((summary.variant.name, *rate, *cells))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{'>' if place else '<'}{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _with_spread(value: str, spread: float | None) -> str:
    return value if spread is None else f"{value} ± {spread:.4f}"


def _mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _error(values: list[float]) -> float | None:
    """The standard error of a mean; unknown with one value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _quantile(freedom: int) -> float:
    """Beyond the table, the normal quantile with the first two corrections of its expansion."""
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.3723 / freedom + 2.8225 / freedom**2
