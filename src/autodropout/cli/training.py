"""How the commands that train do it: where, with which progress, and how the results are told."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autodropout.cli.shell import is_first_rank, look_for_data, print_json

if TYPE_CHECKING:
    import torch

    from autodropout.recipes.comparison import Row, Summary, Variant
    from autodropout.recipes.recipe import Training
    from autodropout.training.run import Run

COMPILED_FROM = 10_000  # steps: compiling takes minutes, which the milliseconds that it saves of each must make up for


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how the trainings of one command run."""

    out: Path
    data: Path | None
    device: str | None
    bfloat16: bool
    compile: bool | None  # None: where it pays
    tensorboard: bool = False
    test: bool = False

    def run(self, training: "Training") -> "Run":
        from autodropout.training.run import Run

        look_for_data(self.data)
        run = Run(
            folder=self.out,
            device=self.device,
            precision="bfloat16" if self.bfloat16 else "float32",
            tensorboard=self.tensorboard,
            test=self.test,
            show=True,
        )
        _check_device(run.where)
        return replace(run, compile=compiles_unasked(training, run.where) if self.compile is None else self.compile)


def _check_device(device: "torch.device") -> None:
    """Raise ValueError where there is none of that name here, or none that trainings know how to use."""
    import torch

    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: trainings run on cpu or cuda")
    there = torch.cuda.device_count()
    if device.type == "cuda" and not there:
        raise ValueError(f"--device {device}: torch {torch.__version__} finds no GPU here")
    if device.type == "cuda" and (device.index or 0) >= there:
        raise ValueError(f"--device {device}: the GPUs here are cuda:0 to cuda:{there - 1}")


def compiles_unasked(training: "Training", device: "torch.device") -> bool:
    """Whether compiling pays: what it saves of each step of a ConvNet on a GPU must make up for the time it takes."""
    from autodropout.training.images import ImageTraining

    alone = os.environ.get("WORLD_SIZE", "1") == "1"  # as torchrun sets it
    on_gpu = device.type == "cuda"
    return alone and on_gpu and isinstance(training, ImageTraining) and training.steps >= COMPILED_FROM


def train_all(
    training: "Training",
    variants: "Sequence[Variant]",
    seeds: Sequence[int],
    place: Place,
    together: int = 1,
) -> "list[Row]":
    """Every variant with every seed, telling each result as it comes. Empty on ranks that others speak for."""
    import torch

    from autodropout.recipes.after import check_fit
    from autodropout.recipes.comparison import compare

    run = place.run(training)
    if any(variant.regularizer is not None for variant in variants):
        space = training.space()
        for variant in variants:
            check_fit(variant.regularizer, space)

    def tell(row: "Row") -> None:
        metrics = "diverged"
        if row.scores is not None:
            metrics = ", ".join(f"{name} {value:.5g}" for name, value in row.scores.metrics.items())
        before = " (finished before)" if row.was_finished else ""
        typer.echo(f"{row.variant.name}, seed {row.seed}{before}: {metrics}", err=True)

    first = is_first_rank()
    try:
        rows = compare(training, variants, seeds, place.out, run, tell if first else lambda row: None, together)
    except KeyboardInterrupt:
        if together > 1:  # a training alone says itself how it goes on
            typer.echo("interrupted; the same command reads what is finished, and begins the rest anew", err=True)
        raise
    except torch.OutOfMemoryError:
        fewer = "" if together == 1 else f", or fewer of them at once than --together {together}"
        raise ValueError(f"{run.where} has too little memory for this training: it takes a larger GPU{fewer}") from None
    return rows if first else []


def train_and_tell(
    training: "Training",
    variants: "Sequence[Variant]",
    seeds: Sequence[int],
    place: Place,
    as_json: bool,
    together: int = 1,
    choose: bool = False,
    smoke: bool = False,
) -> None:
    """Train, then a table of the scores and of what was tested, or JSON. `choose`: say which rate is best. `smoke`: say
    that the scores mean nothing."""
    from autodropout.recipes.comparison import summaries, table

    rows = train_all(training, variants, seeds, place, together)
    if not rows:
        return
    steady = [summary for summary in summaries(rows) if not summary.diverged]
    best = _best_rates(steady) if choose else []
    if as_json:
        chosen = {"best": best[0].name if best else None} if choose else {}
        print_json(as_data(rows, place) | chosen | ({"smoke": True} if smoke else {}))
        return
    typer.echo(table(rows))
    if best:
        typer.echo(f"best: {_rates_in_words(best, variants)}")
    known = [row.scores.metrics for row in rows if row.scores is not None]
    for metric in (name for name in known[0] if name.startswith("test")):
        if all(metric in metrics for metrics in known):  # crowds count no top-5 accuracy
            typer.echo(f"\n{table(rows, metric)}")
    if smoke:
        typer.echo("a smoke test: it shows that this runs, and its scores mean nothing")
    typer.echo(f"{'checkpoints, logs and scores' if together == 1 else 'scores'}: {place.out}")


def _best_rates(steady: "Sequence[Summary]") -> "list[Variant]":
    """The variants with the highest mean, by rate: of equals the lowest rate is chosen."""
    most = max((summary.mean for summary in steady), default=math.nan)
    equal = [summary.variant for summary in steady if math.isclose(summary.mean, most, rel_tol=1e-12)]
    return sorted(equal, key=lambda variant: variant.rate)


def _rates_in_words(best: "Sequence[Variant]", tried: "Sequence[Variant]") -> str:
    """Which rates are best, and that beyond those tried there may be better ones."""
    order = sorted(tried, key=lambda variant: variant.rate)
    lowest, highest = order[0].rate, order[-1].rate
    said = best[0].name
    if len(best) > 1:
        first = order.index(best[0])
        in_a_row = len(best) > 2 and order[first : first + len(best)] == list(best)
        rates = [f"{variant.rate:g}" for variant in best]
        which = f"{rates[0]} to {rates[-1]}" if in_a_row else f"{', '.join(rates[:-1])} and {rates[-1]}"
        said = f"rates {which}, equal; {rates[0]} is the lowest"
    below = f"below {lowest:g}" if best[0].rate == lowest > 0.0 else ""
    above = f"above {highest:g}" if best[-1].rate == highest < 1.0 else ""
    beyond = " and ".join(filter(None, (below, above)))
    return f"{said}; rates {beyond} were not tried" if beyond else said


def as_data(rows: "Sequence[Row]", place: Place) -> dict[str, Any]:
    """As JSON data; a training that diverged has no reward."""
    keys = [{"variant": row.variant.name, "rate": row.variant.rate, "seed": row.seed} for row in rows]
    scores = [
        {"reward": row.scores and row.scores.reward, "metrics": dict(row.scores.metrics) if row.scores else {}}
        for row in rows
    ]
    return {"rows": [one | other for one, other in zip(keys, scores, strict=True)], "folder": str(place.out)}
