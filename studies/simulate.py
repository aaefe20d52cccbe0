"""Searches replayed on a table of trials, in minutes on a CPU: what should the next search on a GPU look like?

    python -m studies.simulate [--table ptb-txl] [--training half] [--steps 3000] [--rate 0.05] [--smoke]

1. The surrogate: three regressions on the table's rows, their held-out error and rank correlation.
2. Proposers on the surrogate, the same number of trials and the same noise for each; then the ten best of each search
   once more, with five new seeds, as `autodropout confirm` does.
3. More policies, or more seeds for each policy: the same number of children.
4. Early stopping, on the recorded curves of the table's own rows: the same number of training steps.

Values are true ones, as `autodropout.tables.simulator` means it, of the policy that a search would take; mean and
standard error over `--seeds` searches. On the surrogate they are what it expects, without noise. On the table's rows
they are means over seeds other than the one that the search saw. A row that was trained with one seed has no others:
its value is the very reward that was the best of many, and too good. The table of early stopping says in how many
searches there were others, the file in which share: `held_out`. A smoke test has a made-up table.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from autodropout.controller import FAST, PROPOSERS, Controller, make_proposer
from autodropout.search.halving import Halving
from autodropout.search.protocols import Proposer
from autodropout.spaces import Space, TransformerSpace
from autodropout.tables import Entry, Rows, Smooth, Surrogate, Table, TableTrial, confirm, replay_stopping, simulate
from autodropout.tables import table as opened
from benchmarks.recording import Table as Printed
from benchmarks.recording import facts, options, write

CHILDREN = 512
SEARCHES: dict[str, Callable[[Space, int], Proposer]] = {name: partial(make_proposer, name) for name in PROPOSERS} | {
    f"controller, Adam {rate:g}": lambda space, seed, rate=rate: Controller(
        space, seed, replace(FAST, learning_rate=rate)
    )
    for rate in (1e-3, 1e-2)
}


def made_up(policies: int = 200) -> Table:
    """For a smoke test: sizes matter, noise is small, curves rise to their values."""
    space = TransformerSpace()
    effects = np.random.default_rng(0).normal(size=len(space.tokens))
    entries = []
    for number in range(policies):
        tokens = space.encode(space.sample(number))
        worth = 0.7 + 0.01 * float(effects @ np.array(tokens) / 10)
        for seed in range(2):
            value = worth + 0.002 * float(np.random.default_rng([number, seed]).normal())
            curve = tuple((step, value * step / 80) for step in range(10, 81, 10))
            found = TableTrial(
                phase="search",
                method="random",
                number=number,
                tokens=tokens,
                rate=0.1,
                seed=seed,
                training="made up",
                steps=80,
                value=value,
                curve=curve,
            )
            entries.append(Entry(found))
    return Table("made up", space, {"made up": {}}, entries)


def mean_and_error(values: Sequence[float]) -> dict[str, float]:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "error": error}


def shown(found: dict[str, float]) -> str:
    return f"{found['mean']:.5f} ± {found['error']:.5f}"


def proposers(world: Smooth, children: int, seeds: int) -> list[dict[str, Any]]:
    rows = []
    print(f"\nproposers, {children} policies, one seed each, on the surrogate")
    table = Printed(("best", "best, confirmed", "last 64", "as good as random"), 28, 24)
    goal = 0.0
    for name, make in sorted(SEARCHES.items(), key=lambda item: item[0] != "random"):
        if name == "tpe" and children > 512:
            continue  # its cost for a proposal grows with what it has seen
        found = [simulate(make(world.surrogate.space, seed), world, children, seed=seed) for seed in range(seeds)]
        best = mean_and_error([search.best for search in found])
        goal = goal or best["mean"]
        confirmed = mean_and_error([confirm(search, world, seed=seed) for seed, search in enumerate(found)])
        last = mean_and_error([float(search.true[-64:].mean()) for search in found])
        curve = np.mean([search.incumbents for search in found], axis=0)
        took = int(np.argmax(curve >= goal)) + 1 if (curve >= goal).any() else None
        row = {"proposer": name, "best": best, "confirmed": confirmed, "last": last}
        rows.append(row | {"trials_to_random": took, "curve": curve.tolist()})
        said = "never" if took is None else f"after {took} trials"
        cells = {"best": best, "best, confirmed": confirmed, "last 64": last}
        table.row(name, {what: shown(of) for what, of in cells.items()} | {"as good as random": said})
    return rows


def more_seeds(world: Smooth, children: int, seeds: int) -> list[dict[str, Any]]:
    rows = []
    print(f"\n{children} children: many policies, or many seeds of each; on the surrogate")
    table = Printed(("policies", "best, random", "best, controller"), 28, 24)
    for repeats in (1, 2, 4, 8):
        policies = children // repeats
        row: dict[str, Any] = {"repeats": repeats, "policies": policies}
        for name in ("random", "controller"):
            found = [
                simulate(make_proposer(name, world.surrogate.space, s), world, policies, repeats=repeats, seed=s).best
                for s in range(seeds)
            ]
            row[name] = mean_and_error(found)
        rows.append(row)
        best = {f"best, {name}": shown(row[name]) for name in ("random", "controller")}
        table.row(f"{repeats} seeds each", {"policies": policies} | best)
    return rows


def stopping(rows: Rows, steps: int, seeds: int) -> list[dict[str, Any]]:
    budget = steps * len(rows) // 4
    first = max(1, steps // 8)
    judges: dict[str, Callable[[], Halving] | None] = {"none": None}
    judges |= {f"factor {factor}": partial(Halving, first, factor) for factor in (2, 3, 4)}
    found = []
    print(f"\nearly stopping, random search over the table's {len(rows)} rows, {budget:,} steps")
    single = sum(len(trials) == 1 for trials in rows.trials.values())
    print(f"best: by seeds the search did not see; {single} rows have none, whose value is the reward itself, too good")
    table = Printed(("best", "by other seeds", "begun", "finished"), 28, 24)
    for name, judge in judges.items():
        runs = [replay_stopping(rows, budget, judge, seed=seed) for seed in range(seeds)]
        best = mean_and_error([run.best for run in runs])
        held_out = sum(run.held_out for run in runs)
        begun, finished = (statistics.fmean(getattr(run, what) for run in runs) for what in ("started", "finished"))
        row = {"halving": name, "first_rung": first, "best": best, "begun": begun, "finished": finished}
        found.append(row | {"held_out": held_out / len(runs)})
        said = {"by other seeds": f"{held_out} of {len(runs)}", "begun": f"{begun:.0f}", "finished": f"{finished:.0f}"}
        table.row(name, {"best": shown(best)} | said)
    return found


def main() -> None:
    parser = options(__doc__, "results/simulate.json", smoke="a made-up table and short searches")
    parser.add_argument("--table", default="ptb-txl", help="a bundled table's name, or a file")
    parser.add_argument("--training", default="half", help="which of the table's trainings")
    parser.add_argument("--steps", type=int, default=3_000, help="which of its lengths")
    parser.add_argument("--rate", type=float, default=0.05, help="of the policies")
    parser.add_argument("--seeds", type=int, default=10, help="searches of each kind")
    args: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(1)
    if args.smoke:
        table, args.seeds, children = made_up(), 2, 64
        args.training, args.steps, args.rate = "made up", 80, 0.1
    else:
        table, children = opened(args.table), CHILDREN
    # Of one rate alone: at others scores lie so far apart that a regression would mostly fit the rate.
    trials = [t for t in table.trials(steps=args.steps, training=args.training) if t.rate == args.rate]
    surrogate = Surrogate.fit(table.space, trials)
    print(f"{table.name}, {args.steps:,} steps at {args.rate:g}\n{surrogate}")
    world = Smooth(surrogate, args.rate)
    rows = Rows(table.space, trials)
    what = f"searches replayed on {table.name}, {args.steps} steps at {args.rate:g}"
    record = facts(what, ("torch", "numpy", "scikit-learn"))
    record["surrogate"] = {
        "taken": surrogate.kind,
        "rows": surrogate.rows,
        "noise": surrogate.noise,
        "deviation": surrogate.deviation,
        "held_out": {k: {"error": h.error, "correlation": h.correlation} for k, h in surrogate.held_out.items()},
    }
    record["proposers"] = proposers(world, children, args.seeds)
    record["more_seeds"] = more_seeds(world, children, args.seeds)
    record["early_stopping"] = stopping(rows, args.steps, 10 * args.seeds)
    if not args.smoke:
        write(record, args.out)


if __name__ == "__main__":
    main()
