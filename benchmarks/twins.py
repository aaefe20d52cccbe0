"""Do twins stay together? Children with one policy and one seed in one crowd, and the same crowd once more.

    python benchmarks/twins.py [--steps 300] [--out results/ptb/twins.json] [--smoke]

A child's weights, text and masks follow from its seed, and no kernel of a step adds in an order that is left to chance.
So twins should have the same weights, to the bit, whichever slots they are in and however often they are trained. Where
they have not, this says from which step on, and which parameters were the first to differ.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autodropout.training.language_crowd import Crowd
from autodropout.training.run import Run
from ptb_trainings import SPACE, TRAININGS
from recording import facts, options, write

SHOWN = (1, 2, 3, 5, 10, 20, 50, 100, 200, 300, 500, 1_000, 2_000, 3_000)


def apart(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The distance of two children's weights, of the norm of one."""
    distance = torch.stack([(a - b).double().square().sum() for a, b in zip(one, other, strict=True)]).sum().sqrt()
    return float(distance / torch.stack([a.double().square().sum() for a in one]).sum().sqrt())


def main() -> None:
    parser = options(__doc__, "results/ptb/twins.json", "a tiny model, on the CPU")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--rate", type=float, default=0.05)
    args = parser.parse_args()
    training = TRAININGS["half"](3_000)
    run = Run(precision="bfloat16")
    if args.smoke:
        training, args.steps, args.pairs = training.smoke(), 4, 1
        run = Run(device="cpu", precision="float32")
    crowd = Crowd(training, run, 2 * args.pairs)
    policies = [SPACE.sample(number % args.pairs) for number in range(2 * args.pairs)]
    seeds = [number % args.pairs for number in range(2 * args.pairs)]
    weights = crowd.stack.weights
    rows: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    ends: list[list[Tensor]] = []
    with crowd.lane.active():
        for again in range(2):
            crowd.begin(policies, args.rate, seeds)
            for step in range(1, args.steps + 1):
                crowd.train_step()
                if again or (first and step not in SHOWN):
                    continue
                crowd.lane.wait()
                torch.cuda.synchronize() if run.where.type == "cuda" else None
                differ = [name for name, w in weights.items() if not torch.equal(w[: args.pairs], w[args.pairs :])]
                if differ and not first:
                    first = {"step": step, "parameters": differ}
                    print(f"the first to differ, in step {step}: {', '.join(differ[:12])}", flush=True)
                if step in SHOWN:
                    far = [
                        apart([w[one] for w in weights.values()], [w[one + args.pairs] for w in weights.values()])
                        for one in range(args.pairs)
                    ]
                    rows.append({"step": step, "apart": far})
                    print(f"step {step:5}: " + ", ".join(f"{value:.2e}" for value in far), flush=True)
            crowd.lane.wait()
            ends.append([w.detach().clone() for w in weights.values()])
    same = [all(torch.equal(a[i], b[i]) for a, b in zip(*ends, strict=True)) for i in range(2 * args.pairs)]
    print(f"the same in a second run: {sum(same)} of {len(same)}")
    machine = torch.cuda.get_device_name() if run.where.type == "cuda" else None
    record = facts("twins in a crowd", ("torch",), machine)
    write(record | {"first": first, "rows": rows, "same_in_a_second_run": same}, args.out)


if __name__ == "__main__":
    main()
