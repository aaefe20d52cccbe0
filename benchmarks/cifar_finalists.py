"""The best policies of each method on CIFAR-10 once more, with new seeds, then longer, as `ptb_finalists.py` has it.

    python benchmarks/cifar_finalists.py [--seed 0] [--smoke]

Options, trainings and baselines are those of `cifar_study.py`.
"""

from collections.abc import Sequence

from cifar_study import Piece, study_options
from ptb_finalists import study


def main(argv: Sequence[str] | None = None) -> None:
    args = study_options(__doc__, "finalists", argv)
    study(Piece(args, "finalists"), args)


if __name__ == "__main__":
    main()
