"""The study of CIFAR-10 with 4,000 labels, stage by stage: the stages are those that all studies have.

    python -m studies.cifar candidates    where regularization pays at all
    python -m studies.cifar proxy         which training is worth searching with, and at which rate
    python -m studies.cifar search        the controller against random search
    python -m studies.cifar finalists     the best of each method, trained again with new seeds, then longer
    python -m studies.cifar honest        the final table; the test images are seen here, once

    python -m studies.cifar search finalists --minutes 9      both in one process, which compiles once

Options come after the stages, and are the same for all; `studies/__init__.py` says how a study is run in pieces, and
what is made of it afterwards.
"""

import argparse
from collections.abc import Callable, Sequence

from studies import finalists, honest, search
from studies.cifar.study import DEFAULTS, TRAININGS, Piece, compare_proxies, look_first
from studies.in_turn import in_turn
from studies.pieces import study_options

STAGES: dict[str, Callable[[Piece, argparse.Namespace], None]] = {
    "candidates": look_first,
    "proxy": compare_proxies,
    "search": search.study,
    "finalists": finalists.study,
    "honest": honest.study,
}


def run(stage: str, args: argparse.Namespace) -> None:
    STAGES[stage](Piece(args, stage), args)


def main(argv: Sequence[str] | None = None) -> None:
    in_turn(study_options(__doc__, STAGES, argv, TRAININGS, DEFAULTS), run)


if __name__ == "__main__":
    main()
