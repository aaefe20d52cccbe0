"""What is trained in the study of CIFAR-10 with 4,000 labels: it asks of images what Penn Treebank's asks of text.

4,000 images with labels to learn from and 10,000 other training images to be judged by. It is supervised; the paper's
experiment of that name is not.
"""

import argparse
from collections.abc import Callable

from autodropout.layers import baseline
from autodropout.training import Cosine, ImageTraining, Pictures, Sgd
from studies import candidates, images, pieces, proxy

IMAGES, JUDGES = 4_000, 10_000
READINGS = 5
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
POLICY_RATES = (0.1, 0.2, 0.4, 0.6)
SEARCH_RATES = (0.2, 0.4, 0.6)  # at 0.1 the best of five policies is worth a third of what Dropout is
CANDIDATES = (
    *("wrn-16-1, as they are:2500", "wrn-16-2, as they are:2500", "wrn-28-2, as they are:2500"),
    *("wrn-16-2:9000", "wrn-28-2:9000"),
)
CLASSICAL = (
    *(("dropout", 0.1), ("dropout", 0.3), ("dropblock", 0.05), ("dropblock", 0.1), ("spatial_dropout", 0.1)),
    *(("stochastic_depth", 0.1), ("stochastic_depth", 0.3)),
)
DEFAULTS = pieces.Defaults(
    study="cifar",
    together=16,  # of a WRN-28-2; more are not faster
    smoke_together=16,
    training="wrn-16-2, as they are",  # the cheapest in which regularization pays at once
    steps=2_500,
    rate=0.2,
    longer_training="wrn-16-2, as they are",
    longer_steps=10_000,
    longer_rate=0.2,
    methods=["random", "controller"],
    longer_methods=["random", "controller"],
    trials=128,
    final_steps=[10_000],
    none_steps=[],
    tuning_seeds=1,
    final_seeds=8,
)


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


class Piece(images.Piece):
    """Of this study."""

    command, subject = "python -m studies.cifar {}", "CIFAR-10 with 4,000 labels"
    space, peers = SPACE, dict.fromkeys(BASELINES, (0,) * len(SPACE.tokens))
    trainings, baselines_by_name, rates, policy_rates = TRAININGS, BASELINES, RATES, POLICY_RATES


def look_first(piece: Piece, args: argparse.Namespace) -> None:
    candidates.study(piece, args, CANDIDATES, CLASSICAL, TRAININGS)


def compare_proxies(piece: Piece, args: argparse.Namespace) -> None:
    proxy.study(piece, args, 4 if args.smoke else 32, SEARCH_RATES)
