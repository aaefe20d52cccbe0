"""The final table on 4,000 images of CIFAR-10, as `ptb_honest.py` has it; the test images are kept for the end.

    python benchmarks/cifar_honest.py [--final-seeds 8] [--smoke]

Options, trainings and baselines are those of `cifar_study.py`.
"""

from collections.abc import Sequence

from cifar_study import Piece, study_options
from ptb_honest import study


def main(argv: Sequence[str] | None = None) -> None:
    args = study_options(__doc__, "honest", argv)
    study(Piece(args, "honest"), args)


if __name__ == "__main__":
    main()
