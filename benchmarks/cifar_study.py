"""What the scripts of the CIFAR-10 study share. It asks of images what `ptb_study.py` asks of text, with its code.

    python benchmarks/cifar_candidates.py   where regularization pays at all: a few children of several trainings
    python benchmarks/cifar_proxy.py        which training is worth searching with, and at which rate
    python benchmarks/cifar_search.py       the controller against random search
    python benchmarks/cifar_finalists.py    the best of each method, trained again with new seeds, then longer
    python benchmarks/cifar_honest.py       the final table; the test images are seen here, once

4,000 images with labels to learn from and 10,000 other training images to be judged by. It is supervised; the paper's
experiment of that name is not. Everybody but the policies is a baseline of `autodropout.layers`, in a crowd with slots
of its own (`training/image_crowd.py`).

A reward is the accuracy in the end, not the best of a curve, so that nobody is rewarded for stopping early. Tables show
errors in percent.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

import pieces
from autodropout.controller import PROPOSERS
from autodropout.layers import baseline
from autodropout.training import Cosine, ImageTraining, Pictures, Sgd
from autodropout.training.run import Regularizer
from pieces import Child
from ptb_study import MINIBATCH
from recording import options

IMAGES, JUDGES = 4_000, 10_000
READINGS = 5
TOGETHER = 16  # of a WRN-28-2; more are not faster
SMOKE_STEPS = 500  # a smoke test trains for so many times fewer
BASELINES = {
    "dropout": baseline("dropout"),
    "dropblock": baseline("dropblock"),
    "spatial_dropout": baseline("spatial_dropout"),
    "stochastic_depth": baseline("stochastic_depth"),
}
RATES = {
    "dropout": (0.1, 0.2, 0.3, 0.4),
    "dropblock": (0.025, 0.05, 0.1, 0.2),
    "spatial_dropout": (0.025, 0.05, 0.1, 0.2),
    "stochastic_depth": (0.1, 0.2, 0.3, 0.5),
}
POLICY_RATES = (0.05, 0.1, 0.2, 0.4)
PARTS = ("compared", "rates", "longer")


def of(model: str, augmentation: str) -> Callable[[int], ImageTraining]:
    """SGD as UDA has it, a cosine to zero, and what is judged is an average over the last hundred steps or so."""

    def training(steps: int) -> ImageTraining:
        return ImageTraining(
            model=model,
            pictures=Pictures(name="cifar10", train=IMAGES, validation=JUDGES),
            resolution=32,
            steps=steps,
            batch=128,
            optimizer=Sgd(lr=0.06, momentum=0.9, weight_decay=5e-4, decay_all=True),
            schedule=Cosine(),
            augmentation=augmentation,
            average=0.99,
            evaluate_every=max(1, steps // READINGS),
        )

    return training


TRAININGS = {
    f"{model}{'' if augmentation == 'standard' else ', as they are'}": of(model, augmentation)
    for model in ("wrn-16-1", "wrn-16-2", "wrn-28-2")
    for augmentation in ("standard", "none")
}
SPACE = TRAININGS["wrn-28-2"](1).space()  # that of all of them, whose maps have the same sizes
NONE = (0,) * len(SPACE.tokens)


class Piece(pieces.Piece):
    """Of image classifiers."""

    study, subject, unit = "cifar", "CIFAR-10 with 4,000 labels", "error, %"
    space, peers = SPACE, dict.fromkeys(BASELINES, NONE)

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        super().__init__(args, name)
        self.run = replace(self.run, compile=self.run.where.type == "cuda")

    def training(self, name: str, steps: int) -> ImageTraining:
        training = TRAININGS[name](steps)
        if not self.smoke:
            return training
        steps = max(4, steps // SMOKE_STEPS)
        return replace(training.smoke(), steps=steps, evaluate_every=max(1, steps // 2))

    def regularizer(self, child: Child) -> Regularizer:
        return BASELINES[child.method] if child.method in BASELINES else SPACE.decode(child.tokens)

    def shown(self, reward: float) -> float:
        return 100 * (1 - reward)

    def rates_for(self, method: str) -> tuple[float, ...]:
        return RATES.get(method, POLICY_RATES)

    def crowd_of(self, name: str, steps: int) -> object:
        """A crowd of images knows its length."""
        return name, steps

    def prepare(self, training: ImageTraining, job: Sequence[Child]) -> bool:
        return training.prepare_many([self.regularizer(child) for child in job], self.run)


def study_options(description: str | None, name: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The same for all scripts; `name` is that of the JSON file."""
    parser = options(
        description, None, "tiny models, few of them, on the CPU; in out/cifar-smoke unless --folder is given"
    )
    parser.add_argument("--folder", type=Path, default=None, help="journals and tables; results/cifar if not given")
    parser.add_argument("--minutes", type=float, default=8.0, help="of wall time for this piece")
    parser.add_argument("--together", type=int, default=TOGETHER, help="children in one job")
    parser.add_argument("--training", choices=TRAININGS, default="wrn-28-2", help="of the search")
    parser.add_argument("--steps", type=int, default=2_500, help="of a child of the search")
    parser.add_argument("--rate", type=float, default=0.1, help="to search at")
    parser.add_argument("--longer-training", choices=TRAININGS, default="wrn-28-2", help="of the final ones")
    parser.add_argument("--longer-steps", type=int, default=10_000, help="of the final ones")
    parser.add_argument("--longer-rate", type=float, default=0.1, help="of policies there")
    parser.add_argument("--seed", type=int, default=0, help="of the searches")
    parser.add_argument("--candidates", nargs="+", default=None, help="trainings and their steps: wrn-28-2:9000")
    parser.add_argument("--lengths", type=float, nargs="*", default=[1 / 3, 1 / 2], help="of shorter ones, in --steps")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="of what is asked about a proxy")
    parser.add_argument(
        "--methods", nargs="+", choices=PROPOSERS, default=["random", "controller"], help="of the search"
    )
    parser.add_argument("--trials", type=int, default=128, help="policies for each method of the search")
    parser.add_argument("--final-steps", type=int, nargs="+", default=[10_000], help="to choose from")
    parser.add_argument("--none-steps", type=int, nargs="*", default=[], help="to choose from without a policy")
    parser.add_argument("--tuning-seeds", type=int, default=1, help="for each method and rate of the final table")
    parser.add_argument("--final-seeds", type=int, default=8, help="for each method of the final table")
    args = parser.parse_args(argv)
    if args.smoke:
        args.trials, args.final_seeds = 2 * MINIBATCH, 2
    if args.trials % MINIBATCH:
        parser.error(f"--trials must be a multiple of {MINIBATCH}, got {args.trials}")
    args.folder = args.folder or Path("out/cifar-smoke" if args.smoke else "results/cifar")
    args.out = args.out or args.folder / f"{name}.json"
    torch.set_num_threads(1)
    return args
