"""The study of Penn Treebank, stage by stage.

    python -m studies.ptb descent       at which learning rate children learn, whatever their policy
    python -m studies.ptb candidates    where regularization pays at all: a few children of several trainings
    python -m studies.ptb proxy         which training is worth searching with, and at which rate
    python -m studies.ptb orders        whose order of policies is whose, among all that the last has trained
    python -m studies.ptb search        the controller, at the paper's setting and at ours, random search and TPE
    python -m studies.ptb sites         what those have learned, site by site
    python -m studies.ptb finalists     the best of each method, trained again with new seeds, then longer
    python -m studies.ptb honest        the final table; the test text is read here, once
    python -m studies.ptb finer         whether rates and lengths between would have changed it
    python -m studies.ptb retuned       whether its differences stand when methods are tuned so finely
    python -m studies.ptb mended        and whether a data race in their kernels made any difference
    python -m studies.ptb bracketed     the table once more: no method's best rate is the first or last tried
    python -m studies.ptb lengths       and every method of it at both of its lengths
    python -m studies.ptb race          the ten best policies of two searches, all in the final training
    python -m studies.ptb longer        the best two of those at the other length, too
    python -m studies.ptb transfer      the same table on another text, with the policies of this one

    python -m studies.ptb search finalists honest --minutes 9      several in one process, which compiles once

Options come after the stages, and are the same for all; `studies/__init__.py` says how a study is run in pieces, and
what is made of it afterwards.
"""

import argparse
from collections.abc import Callable, Sequence

from studies import finalists, honest, search
from studies.in_turn import in_turn
from studies.pieces import study_options
from studies.ptb import (
    bracketed,
    descent,
    finer,
    lengths,
    longer,
    mended,
    orders,
    race,
    retuned,
    sites,
    transfer,
)
from studies.ptb.study import DEFAULTS, Piece, compare_proxies, look_first
from studies.ptb.trainings import TRAININGS

STAGES: dict[str, Callable[[Piece, argparse.Namespace], None]] = {
    "descent": descent.study,
    "candidates": look_first,
    "proxy": compare_proxies,
    "orders": orders.study,
    "search": search.study,
    "sites": sites.study,
    "finalists": finalists.study,
    "honest": honest.study,
    "finer": finer.study,
    "retuned": retuned.study,
    "mended": mended.study,
    "bracketed": bracketed.study,
    "lengths": lengths.study,
    "race": race.study,
    "longer": longer.study,
    "transfer": transfer.study,
}
JOURNALS = {"orders": "proxy", "sites": "search"}  # whose stages train nothing and read another's


def run(stage: str, args: argparse.Namespace) -> None:
    STAGES[stage](Piece(args, JOURNALS.get(stage, stage)), args)


def main(argv: Sequence[str] | None = None) -> None:
    in_turn(study_options(__doc__, STAGES, argv, TRAININGS, DEFAULTS), run)


if __name__ == "__main__":
    main()
