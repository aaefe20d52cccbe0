"""Which training is worth searching with? What `ptb_proxy.py` asks, of 4,000 images of CIFAR-10.

    python benchmarks/cifar_proxy.py [--training wrn-28-2] [--steps 2500] [--smoke]

Options, trainings and baselines are those of `cifar_study.py`.
"""

from collections.abc import Sequence

from cifar_study import Piece, study_options
from ptb_proxy import study


def main(argv: Sequence[str] | None = None) -> None:
    args = study_options(__doc__, "proxy", argv)
    study(Piece(args, "proxy"), args, 4 if args.smoke else 32)


if __name__ == "__main__":
    main()
