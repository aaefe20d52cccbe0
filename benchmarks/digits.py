"""Is the default problem worth a search? Digits under no policy and under random policies, several seeds each.

    python benchmarks/digits.py [--smoke] [--out results/digits.json]

What the recipe `digits` claims: policies differ by more than chance. `between` is the deviation between policies with
the seeds' share taken out: the variance of the means less that of one seed divided by the number of seeds.
"""

import statistics

import torch

from autodropout import recipes
from autodropout.training.run import Run
from recording import facts, options, write


def main() -> None:
    parser = options(__doc__, "results/digits.json", "one policy and two seeds, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    recipe = recipes.get("digits")
    policies, seeds, bare = (1, 2, 2) if args.smoke else (16, 3, 6)

    def score(policy: object, seed: int) -> float:
        return recipe.proxy.fit(policy, recipe.rate, seed, Run(device="cpu")).reward

    none = [score(None, seed) for seed in range(bare)]
    print(f"no policy: {statistics.fmean(none):.4f}, deviation {statistics.stdev(none):.4f}", flush=True)
    rows = []
    for number in range(policies):
        policy = recipe.space().sample(number)
        rows.append([score(policy, seed) for seed in range(seeds)])
        print(f"policy {number}: {statistics.fmean(rows[-1]):.4f}", flush=True)
    if args.smoke:
        return
    means = [statistics.fmean(row) for row in rows]
    within = statistics.fmean(statistics.variance(row) for row in rows)
    between = max(0.0, statistics.variance(means) - within / seeds) ** 0.5
    record = facts(f"digits, rate {recipe.rate}: {policies} random policies, {seeds} seeds each", ["torch"])
    record |= {
        "none": none,
        "policies": rows,
        "mean": statistics.fmean(means),
        "lowest": min(means),
        "highest": max(means),
        "within": within**0.5,
        "between": between,
    }
    write(record, args.out)
    print({name: value for name, value in record.items() if name not in ("none", "policies")})


if __name__ == "__main__":
    main()
