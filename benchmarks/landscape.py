"""Does a proposer learn? Every proposer on a synthetic landscape, paired seeds, against uniform random search.

    python benchmarks/landscape.py [--smoke] [--seeds 20] [--few 4] [--out results/landscape.json]

Rows that are in the file already are kept: a run that was cut short goes on.

The landscape, one per seed: three ConvNet groups, 24 tokens. Value = a main effect of each token (standard normal per
value, weighted 3, 1, 1, 1.5, 1, .5, .4, .4 in token order within each group) + 0.7 x 30 pairwise tables (standard
normal) between positions drawn at random, scaled so that random policies have mean .75 and deviation .02. A trial's
reward has noise of deviation .004.

The study: C trials in flight; their durations are exponential, so the next 16 to finish are any 16 of them. Those make
an update, and 16 new ones are proposed. At C = 16 that is the synchronous loop; at larger C a trial comes back
about C/16 updates late. The last C trials are proposed before the rest has been learned from.

Judged without noise: `best` is the true value of the policy with the best noisy reward, `last` the mean of the last 64
proposals; random's best decile starts near .776. Gains over random are paired by seed, with their standard error.
"""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from autodropout.controller import FAST, PAPER, PROPOSERS, Controller, Settings, Weighting, make_proposer
from autodropout.search.protocols import Proposer, Scored
from autodropout.spaces import ConvSpace
from recording import facts, options, write

SPACE = ConvSpace(groups=((32, 32), (16, 16), (8, 8)))
CHOICES = np.array([len(token.values) for token in SPACE.tokens])
MAIN_WEIGHTS = (3, 1, 1, 1.5, 1, 0.5, 0.4, 0.4) * len(SPACE.groups)
PAIRS, PAIR_WEIGHT = 30, 0.7
MEAN, DEVIATION, NOISE = 0.75, 0.02, 0.004
MINIBATCH = 16
LAST = 64

Factory = Callable[[int], Proposer]


class Landscape:
    """The true value of every policy, and the noisy reward of every trial."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        draw = np.random.default_rng([seed, 1])
        positions = len(CHOICES)
        self._main = [weight * draw.standard_normal(count) for weight, count in zip(MAIN_WEIGHTS, CHOICES, strict=True)]
        self._pairs = []
        for _ in range(PAIRS):
            first, second = sorted(draw.choice(positions, 2, replace=False))
            table = PAIR_WEIGHT * draw.standard_normal((CHOICES[first], CHOICES[second]))
            self._pairs.append((first, second, table))
        anywhere = (draw.random((20_000, positions)) * CHOICES).astype(int)
        raw = self._raw(anywhere)
        self._mean, self._deviation = raw.mean(), raw.std()
        self.best_decile = float(np.quantile(self.value(anywhere), 0.9))

    def value(self, tokens: np.ndarray) -> np.ndarray:
        """(N, T) -> (N,), without noise."""
        return MEAN + DEVIATION * (self._raw(tokens) - self._mean) / self._deviation

    def noise(self, trials: int) -> np.ndarray:
        """What is added to the value of trials 0, 1, ...: the same for every proposer."""
        return NOISE * np.random.default_rng([self._seed, 2]).standard_normal(trials)

    def _raw(self, tokens: np.ndarray) -> np.ndarray:
        main = sum(effect[tokens[:, position]] for position, effect in enumerate(self._main))
        return main + sum(table[tokens[:, first], tokens[:, second]] for first, second, table in self._pairs)


class Outcome(NamedTuple):
    best: float  # true value of the policy with the best noisy reward
    last: float  # mean true value of the last proposals
    best_decile: float  # where the best tenth of random policies begins
    updates: list[dict[str, float]]


def simulate(proposer: Proposer, seed: int, capacity: int, trials: int) -> Outcome:
    """One study; a function of its arguments."""
    assert trials % MINIBATCH == 0
    assert capacity >= MINIBATCH
    landscape = Landscape(seed)
    order = np.random.default_rng([seed, 3])
    noise = landscape.noise(trials)
    tokens = np.zeros((trials, len(CHOICES)), dtype=int)
    flying: list[Scored] = []
    updates = []
    proposed = 0
    while len(updates) * MINIBATCH < trials:
        numbers = range(proposed, min(trials, proposed + capacity - len(flying)))
        for number, proposal in zip(numbers, proposer.propose(numbers), strict=True):
            tokens[number] = proposal.tokens
            reward = float(landscape.value(tokens[[number]])[0] + noise[number])
            flying.append(Scored(number, proposal.tokens, proposal.log_prob, proposal.version, reward))
        proposed += len(numbers)
        finished = set(order.choice(len(flying), MINIBATCH, replace=False).tolist())
        updates.append(proposer.update([trial for place, trial in enumerate(flying) if place in finished]))
        flying = [trial for place, trial in enumerate(flying) if place not in finished]
    values = landscape.value(tokens)
    best = float(values[np.argmax(values + noise)])
    return Outcome(best, float(values[-LAST:].mean()), landscape.best_decile, updates)


def named(name: str) -> Factory:
    return lambda seed: make_proposer(name, SPACE, seed)


def learning_by(settings: Settings) -> Factory:
    return lambda seed: Controller(SPACE, seed, settings)


class Case(NamedTuple):
    capacity: int
    trials: int
    label: str
    make: Factory
    few: bool = False  # fewer seeds are enough


def cases() -> list[Case]:
    """The proposers at four sizes of study; then weights and learning rates where trials come back late."""
    found = []
    for capacity, trials in ((16, 512), (128, 2048), (16, 4096), (256, 4096)):
        for name in PROPOSERS:
            if name != "tpe" or trials <= 512:  # its cost per proposal grows with what it has seen
                few = (name == "controller" and trials == 4096) or capacity == 256 or name == "tpe"
                found.append(Case(capacity, trials, name, named(name), few))
    for capacity, trials, base, settings in (
        (128, 2048, "paper", PAPER),
        (128, 2048, "fast", FAST),
        (256, 4096, "fast", FAST),
    ):
        for rate in (3.5e-4, 3e-3):
            for weighting in Weighting:
                label = f"{base}, Adam {rate:g}, weights {weighting.value}"
                make = learning_by(replace(settings, learning_rate=rate, weighting=weighting))
                found.append(Case(capacity, trials, label, make, few=True))
    return found


def judge(case: Case, seeds: range) -> dict[str, Any]:
    """One row: the case on every seed, paired with random search on the same."""
    start = time.perf_counter()
    outcomes = [simulate(case.make(seed), seed, case.capacity, case.trials) for seed in seeds]
    seconds = (time.perf_counter() - start) / len(seeds)
    random = [simulate(make_proposer("random", SPACE, seed), seed, case.capacity, case.trials) for seed in seeds]
    row = {
        "C": case.capacity,
        "trials": case.trials,
        "proposer": case.label,
        "n": len(seeds),
        "best": spread([outcome.best for outcome in outcomes]),
        "last": spread([outcome.last for outcome in outcomes]),
        "gain": spread([ours.best - theirs.best for ours, theirs in zip(outcomes, random, strict=True)]),
        "last_above_decile": spread([outcome.last - outcome.best_decile for outcome in outcomes]),
        "seconds_per_study": round(seconds, 2),
    }
    for name in ("lag", "effective_size", "clip_share"):
        if name in outcomes[0].updates[0]:
            row[name] = round(float(np.mean([[u[name] for u in outcome.updates] for outcome in outcomes])), 3)
    if "entropy" in outcomes[0].updates[-1]:
        row["entropy_at_end"] = round(float(np.mean([outcome.updates[-1]["entropy"] for outcome in outcomes])), 2)
    return row


def spread(values: list[float]) -> dict[str, Any]:
    error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return {"mean": round(float(np.mean(values)), 5), "error": round(error, 5), "values": [round(v, 5) for v in values]}


def main() -> None:
    parser = options(__doc__, "results/landscape.json", smoke="two seeds and 64 trials of each case")
    parser.add_argument("--seeds", type=int, default=20, help="for the proposers")
    parser.add_argument(
        "--few", type=int, default=4, help="seeds for weights and learning rates, and the longest studies"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    what = "proposers on synthetic landscapes, judged by noiseless value; errors are standard errors"
    record = facts(what, ("torch", "numpy"), f"{platform.machine()}, 1 thread") | {"rows": []}
    if args.out.exists() and not args.smoke:
        record["rows"] = json.loads(args.out.read_text())["rows"]
    known = {(row["C"], row["trials"], row["proposer"]) for row in record["rows"]}
    print(f"{'C':>5}{'trials':>7}  {'proposer':44}{'n':>3}{'best':>8}{'gain over random':>19}{'last 64':>9}{'s':>7}")
    for case in cases():
        if (case.capacity, case.trials, case.label) in known:
            continue
        if args.smoke:
            case = case._replace(capacity=min(case.capacity, 32), trials=64)
        row = judge(case, range(2 if args.smoke else args.few if case.few else args.seeds))
        record["rows"].append(row)
        gain = f"{row['gain']['mean']:+.4f} ± {row['gain']['error']:.4f}"
        print(
            f"{row['C']:>5}{row['trials']:>7}  {row['proposer']:44}{row['n']:>3}{row['best']['mean']:>8.4f}"
            f"{gain:>19}{row['last']['mean']:>9.4f}{row['seconds_per_study']:>7.1f}",
            flush=True,
        )
        if not args.smoke:
            write(record, args.out)  # after each row: a long run may be cut short
    print(f"\neach seed's values: {args.out}")


if __name__ == "__main__":
    main()
