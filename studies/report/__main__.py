"""The page of a study, docs/results-STUDY.md, and its figures, from the study's files alone.

    python -m studies.report ptb [--folder results/ptb] [--simulated FILE] [--translated FOLDER] [--docs docs]
    python -m studies.report cifar [--folder results/cifar] [--docs docs]
    python -m studies.report digits [--folder results/digits] [--docs docs]

Whatever stages have been run are in it; what is missing is said to be missing.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from studies.report import images, ptb


def main(argv: Sequence[str] | None = None) -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies.report", description=__doc__, formatter_class=plain)
    studies = parser.add_subparsers(dest="study", required=True)
    for name in ("ptb", *images.TITLES):
        add = studies.add_parser(name).add_argument
        add("--folder", type=Path, default=Path("results") / name, help="journals and tables")
        add("--docs", type=Path, default=Path("docs"), help="of the page and its figures")
        if name == "ptb":
            add("--simulated", type=Path, default=Path("results/simulate.json"), help="what studies.simulate wrote")
            add("--translated", type=Path, default=Path("results/multi30k"), help="the folder of studies.multi30k")
    args = parser.parse_args(argv)
    if args.study == "ptb":
        ptb.write(args.folder, args.simulated, args.translated, args.docs)
    else:
        images.write(args.study, args.folder, args.docs)


if __name__ == "__main__":
    main()
