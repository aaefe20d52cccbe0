"""The study of the default problem, digits on noise, stage by stage: the stages are those that all studies have.

    python -m studies.digits proxy        whether its training is worth searching with, and at which rate
    python -m studies.digits search       the controller against random search
    python -m studies.digits finalists    the best of each method, trained again with new seeds, then longer
    python -m studies.digits honest       the final table; the test images are seen here for the first time
    python -m studies.digits again        policies of a later search, beside the methods of that table

    python -m studies.digits proxy search finalists honest --minutes 90      all of it, on two CPU cores

Options come after the stages, and are the same for all; `studies/__init__.py` says how a study is run in pieces, and
what is made of it afterwards.
"""

import argparse
from collections.abc import Callable, Sequence

from studies import finalists, honest, search
from studies.digits import again
from studies.digits.study import DEFAULTS, TRAININGS, Piece, compare_proxies
from studies.in_turn import in_turn
from studies.pieces import study_options

STAGES: dict[str, Callable[[Piece, argparse.Namespace], None]] = {
    "proxy": compare_proxies,
    "search": search.study,
    "finalists": finalists.study,
    "honest": honest.study,
    "again": again.study,
}


def run(stage: str, args: argparse.Namespace) -> None:
    STAGES[stage](Piece(args, stage), args)


def main(argv: Sequence[str] | None = None) -> None:
    in_turn(study_options(__doc__, STAGES, argv, TRAININGS, DEFAULTS), run)


if __name__ == "__main__":
    main()
