"""The controller against random search on 4,000 images of CIFAR-10, as `ptb_search.py` has it.

    python benchmarks/cifar_search.py [--trials 128] [--seed 0] [--smoke]

Options, trainings and baselines are those of `cifar_study.py`.
"""

from collections.abc import Sequence

from cifar_study import Piece, study_options
from ptb_search import study


def main(argv: Sequence[str] | None = None) -> None:
    args = study_options(__doc__, "search", argv)
    study(Piece(args, "search"), args)


if __name__ == "__main__":
    main()
