"""Children on one GPU: what a step of each takes, alone and in crowds, under no policy and under the costliest.

    python benchmarks/crowd.py [--models wrn-28-2 wrn-28-10 resnet50] [--smoke] [--out results/crowd-cuda.json]

| measurement | what |
|---|---|
| wrn-28-2 | batch 128, 16 to 1 children at once: ms a child-step; memory of the largest crowd |
| wrn-28-10, resnet50 | batch 128 at 32, batch 256 at 224: one child, worst policy against none |
| first step | from a new job of 8 warm slots (policies, seeds) to the end of its first step |

All of it is `training/image_crowd.py`, as a search runs it: bfloat16, channels_last, compiled, the whole step in a CUDA
graph, images picked and augmented on the device, SGD, moving average. Images are random numbers, which cost what
photographs cost. "Worst" has a pattern on every site, drawn for each channel, tiled, rotated and sheared.
"""

import gc
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import autodropout as ad
from autodropout.data import Labelled, Splits
from autodropout.training import Cosine, ImageTraining, Pictures, Run, Sgd
from autodropout.training.image_crowd import Crowd
from recording import Table, facts, options, write
from training import full_policy

CROWDS = (16, 12, 10, 8, 6, 4, 1)  # the largest first: to make more slots later is to compile once more
CHILDREN = {"wrn-28-2": (128, 32), "wrn-28-10": (128, 32), "resnet50": (256, 224)}  # batch, resolution
RATE = 0.2
ROUNDS, STEPS = 7, 40
WARM_JOBS, WARM_CHILDREN = 5, 8


@dataclass(frozen=True, kw_only=True)
class OnNoise(ImageTraining):
    """A training on random images."""

    images: int = 2_048

    def load(self) -> Splits:
        kind, draw = self.pictures.kind, torch.Generator().manual_seed(0)
        shape = (self.images, kind.channels, kind.size, kind.size)
        images = torch.randint(256, shape, dtype=torch.uint8, generator=draw)
        some = Labelled(images, torch.randint(kind.classes, (self.images,), generator=draw))
        return Splits(some, some[:200], some[:0])


def training(model: str, batch: int, resolution: int) -> OnNoise:
    large = resolution > 32
    pictures = Pictures(name="imagenet" if large else "cifar10", train=2_048, validation=200)
    return OnNoise(
        model=model,
        pictures=pictures,
        resolution=resolution,
        steps=4_000,
        batch=batch,
        optimizer=Sgd(lr=0.03),
        schedule=Cosine(),
        augmentation="imagenet" if large else "standard",
        average=0.999,
    )


def child_steps(crowd: Crowd, policies: Sequence[ad.Policy | None], rounds: int, steps: int) -> dict[str, float]:
    """Milliseconds a child-step, median over rounds, and their spread; and the memory that was needed."""
    cuda = crowd.run.where.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    crowd.begin(policies, RATE, range(len(policies)))
    crowd.advance(steps)
    crowd.wait()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        crowd.advance(steps)
        crowd.wait()
        times.append(1000 * (time.perf_counter() - start) / steps / len(policies))
    losses = [float(slot.losses()[-1]) for slot in crowd.active]
    assert all(loss == loss for loss in losses), f"diverged: {losses}"
    return {
        "children": len(policies),
        "ms": round(statistics.median(times), 4),
        "low": round(min(times), 4),
        "high": round(max(times), 4),
        "n": rounds,
        "reserved_gib": round(torch.cuda.memory_reserved() / 2**30, 2) if cuda else 0.0,
    }


def first_steps(crowd: Crowd, jobs: int) -> dict[str, float]:
    """Seconds from a new job to the end of its first step, with slots that are warm."""
    space, children = crowd.training.space(), min(WARM_CHILDREN, len(crowd.slots[None]))
    times = []
    for job in range(jobs):
        policies = [space.sample(seed=job * children + child) for child in range(children)]
        start = time.perf_counter()
        crowd.begin(policies, RATE, [100 * job + child for child in range(children)])
        crowd.advance(1)
        crowd.wait()
        times.append(time.perf_counter() - start)
    return {
        "children": children,
        "seconds": round(statistics.median(times), 4),
        "high": round(max(times), 4),
        "n": jobs,
    }


def crowds(
    child: ImageTraining, run: Run, sizes: Sequence[int], rounds: int = ROUNDS, steps: int = STEPS
) -> Iterator[dict[str, float | str]]:
    """Each size of crowd, without policies and with the worst; and, for the latter, a new job's first step."""
    worst = full_policy(child.space())
    for policy in (None, worst):
        crowd = Crowd(child, run, dropping=policy is not None)
        named = {"model": child.model, "batch": child.batch, "policy": "none" if policy is None else "worst"}
        for size in sizes:
            start = time.perf_counter()
            figures = child_steps(crowd, [policy] * size, rounds, steps)
            yield {**named, **figures, "cold_s": round(time.perf_counter() - start, 1)}
        if policy is not None:
            yield {**named, "policy": "new", **first_steps(crowd, WARM_JOBS)}
        del crowd
        gc.collect()
        if run.where.type == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # as a search's workers have it
    parser = options(__doc__, "results/crowd-cuda.json", "tiny models on the CPU")
    parser.add_argument("--models", nargs="+", choices=tuple(CHILDREN), default=tuple(CHILDREN))
    given = parser.parse_args()
    if given.smoke:
        run = Run(device="cpu")
        tiny = replace(training("wrn-10-1", 4, 32), images=64)
        chosen: list[tuple[ImageTraining, tuple[int, ...]]] = [(tiny, (2, 1))]
        rounds, steps = 2, 2
    else:
        run = Run(device="cuda", precision="bfloat16", compile=True)
        chosen = [(training(name, *CHILDREN[name]), CROWDS if name == "wrn-28-2" else (1,)) for name in given.models]
        rounds, steps = ROUNDS, STEPS
    machine = torch.cuda.get_device_name() if run.where.type == "cuda" else None
    record = facts("child-steps in crowds", ["torch"], machine)
    table = Table(("children", "policy", "ms", "seconds", "reserved_gib", "cold_s"), label=12, width=14)
    record["rows"] = []
    for child, sizes in chosen:
        for row in crowds(child, run, sizes, rounds, steps):
            table.row(str(row["model"]), dict.fromkeys(("ms", "seconds", "reserved_gib", "cold_s")) | row)
            record["rows"].append(row)
            if not given.smoke or given.out != Path("results/crowd-cuda.json"):
                write(record, given.out)  # after each row: a figure that was paid for is not lost


if __name__ == "__main__":
    main()
