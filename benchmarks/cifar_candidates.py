"""Where does regularization pay at all? Sixteen children each of several trainings on 4,000 images of CIFAR-10.

    python benchmarks/cifar_candidates.py [--candidates wrn-28-2:9000 ...] [--smoke]      (see cifar_study.py)

For each training and length 4 children without a policy, 7 under classical methods and 5 under random policies, as in
`ptb_candidates.py`: too few to say by how much, enough to see whether.
"""

from collections.abc import Sequence

from cifar_study import TRAININGS, Piece, study_options
from ptb_candidates import candidate, compare
from recording import write

CANDIDATES = (
    *("wrn-16-1, as they are:2500", "wrn-16-2, as they are:2500", "wrn-28-2, as they are:2500"),
    *("wrn-16-2:9000", "wrn-28-2:9000"),
)
CLASSICAL = (
    *(("dropout", 0.1), ("dropout", 0.3), ("dropblock", 0.05), ("dropblock", 0.1), ("spatial_dropout", 0.1)),
    *(("stochastic_depth", 0.1), ("stochastic_depth", 0.3)),
)


def main(argv: Sequence[str] | None = None) -> None:
    args = study_options(__doc__, "candidates", argv)
    texts = args.candidates or CANDIDATES[: 2 if args.smoke else None]
    candidates = [candidate(text, TRAININGS) for text in texts]
    write(compare(Piece(args, "candidates"), candidates, CLASSICAL, args.rate), args.out)


if __name__ == "__main__":
    main()
