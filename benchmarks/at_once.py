"""Trainings that are compared, one by one and all at once: what `--together` saves (`recipes/at_once.py`).

    python benchmarks/at_once.py [--together 16] [--smoke] [--out results/at-once.json]

| measurement | what |
|---|---|
| one by one | seconds of a training under a policy by `fit`, as `tune-rate` runs it: not compiled below 10,000 steps |
| at once | seconds of the machine for each of `--together` trainings in one crowd, once that is compiled |
| compiling | seconds that the first crowd takes more than the second |

The small Transformer-XL of the recipe `ptb-small`, and a WRN-28-2 on random images, in bfloat16, some hundreds of steps
without an evaluation in between. A crowd pays from as many steps on as make up for compiling it.
"""

import time
from dataclasses import replace
from pathlib import Path

import torch

from autodropout.recipes.at_once import fit_at_once
from autodropout.recipes.language import ptb_small
from autodropout.recipes.recipe import CrowdTraining
from autodropout.training.run import Run
from crowd import training as on_noise
from recording import Table, facts, options, write

STEPS = {"ptb-small": 400, "wrn-28-2": 400}
COLUMNS = ("one by one, s", "at once, s each", "times faster", "compiling, s")
RATE = 0.1


def trainings(smoke: bool) -> dict[str, CrowdTraining]:
    """Of so many steps, judged in the end."""
    found = {"ptb-small": ptb_small(STEPS["ptb-small"]), "wrn-28-2": on_noise("wrn-28-2", 128, 32)}
    if smoke:
        found = {name: training.smoke() for name, training in found.items()}
    steps = {name: 8 if smoke else STEPS[name] for name in found}
    return {name: replace(one, steps=steps[name], evaluate_every=steps[name]) for name, one in found.items()}


def measure(training: CrowdTraining, together: int, run: Run) -> dict[str, float]:
    """Seconds."""
    space = training.space()
    policies = [space.sample(seed) for seed in range(together)]

    def alone() -> float:
        start = time.perf_counter()
        training.fit(policies[0], RATE, 0, run)
        return time.perf_counter() - start

    def at_once() -> float:
        start = time.perf_counter()
        fit_at_once(training, policies, [RATE] * together, range(together), run)
        return time.perf_counter() - start

    alone()  # the first of all loads libraries and data
    lone, first, second = alone(), at_once(), at_once()
    return {
        "one_by_one": lone,
        "at_once": second / together,
        "faster": lone * together / second,
        "compiling": first - second,
    }


def main() -> None:
    parser = options(__doc__, None, "tiny models, 8 steps")
    parser.add_argument("--together", type=int, default=16)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    run = Run(device="cuda", precision="bfloat16") if cuda else Run(device="cpu")
    machine = torch.cuda.get_device_name() if cuda else None
    table, rows = Table(COLUMNS, 12, 17), []
    for name, training in trainings(args.smoke).items():
        row = measure(training, 2 if args.smoke else args.together, run)
        rows.append({"training": name, "steps": training.steps, "together": args.together, **row})
        table.row(name, dict(zip(COLUMNS, (f"{value:.2f}" for value in row.values()), strict=True)))
        record = facts("trainings one by one and at once", ("torch",), machine) | {"rows": rows}
        write(record, args.out or Path("out/at-once-smoke.json" if args.smoke else "results/at-once.json"))


if __name__ == "__main__":
    main()
