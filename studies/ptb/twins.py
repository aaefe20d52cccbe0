"""Do twins stay together? Children with one policy and one seed in one crowd, and the same crowd once more.

    python -m studies.ptb.twins [--steps 300] [--out results/ptb/twins.json] [--smoke]

A child's weights, text and masks follow from its seed, and no kernel of a step leaves the order of its sums to chance.
So twins should have the same weights, to the bit, whichever slots they are in and however often they are trained. Where
they do not, this says from which step on, which parameters were the first to differ, and how far apart twins come.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from autodropout.spaces import Policy
from autodropout.training.language_crowd import Crowd
from autodropout.training.run import Run
from benchmarks.recording import facts, options, write
from studies.ptb.trainings import SPACE, TRAININGS

RATE = 0.05
SHOWN = (1, 2, 3, 5, 10, 20, 50, 100, 200, 300, 500, 1_000, 2_000, 3_000)  # steps


def apart(weights: dict[str, Tensor], one: int, other: int) -> float:
    """The distance of two children's weights, in norms of one."""
    distance = sum(float((weight[one] - weight[other]).double().square().sum()) for weight in weights.values())
    norm = sum(float(weight[one].double().square().sum()) for weight in weights.values())
    return (distance / norm) ** 0.5


def trained(crowd: Crowd, pairs: int, steps: int) -> Iterator[int]:
    """Every step, when it is done; child i has its twin in slot i + pairs."""
    policies: list[Policy] = [SPACE.sample(number) for number in range(pairs)]
    crowd.begin(2 * policies, RATE, 2 * list(range(pairs)))
    for step in range(1, steps + 1):
        crowd.train_step()
        crowd.lane.wait()
        yield step


def main() -> None:
    parser = options(__doc__, "results/ptb/twins.json", "a tiny model, on the CPU")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=6)
    args = parser.parse_args()
    training, run, pairs, steps = TRAININGS["half"](max(SHOWN)), Run(precision="bfloat16"), args.pairs, args.steps
    if args.smoke:
        training, run, pairs, steps = training.smoke(), Run(device="cpu"), 1, 3
    machine = torch.cuda.get_device_name() if run.where.type == "cuda" else None
    record: dict[str, Any] = facts("twins in a crowd", ("torch",), machine) | {"first": None, "rows": []}
    crowd = Crowd(training, run, 2 * pairs)
    weights = crowd.stack.weights
    with crowd.lane.active():
        for step in trained(crowd, pairs, steps):
            differ = [name for name, weight in weights.items() if not torch.equal(weight[:pairs], weight[pairs:])]
            if differ and record["first"] is None:
                record["first"] = {"step": step, "parameters": differ}
                print(f"the first to differ, in step {step}: {', '.join(differ[:8])}, {len(differ)} in all")
            if step in SHOWN:
                far = [apart(weights, one, one + pairs) for one in range(pairs)]
                record["rows"].append({"step": step, "apart": far})
                print(f"step {step:5}: " + ", ".join(f"{value:.1e}" for value in far), flush=True)
        first = {name: weight.detach().clone() for name, weight in weights.items()}
        for _ in trained(crowd, pairs, steps):
            pass
        same = [all(torch.equal(first[name][i], weights[name][i]) for name in weights) for i in range(2 * pairs)]
    print(f"the same in a second run: {sum(same)} of {len(same)}")
    if not args.smoke:
        write(record | {"same_in_a_second_run": same}, args.out)


if __name__ == "__main__":
    main()
