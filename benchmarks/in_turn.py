"""Several stages of a study in one process: what was compiled for one serves the next.

All options but the stages are handed on to every stage; `--minutes` are those of all together. It ends with exit code 3
where a stage has, and the same command again goes on there: a stage that is done only prints its tables again. The
options of a stage are told by `STAGE --help`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence


def in_turn(
    description: str | None, stages: Mapping[str, Callable[[Sequence[str]], None]], argv: Sequence[str] | None = None
) -> None:
    parser = argparse.ArgumentParser(
        description=description,
        epilog="All other options are handed on to each stage; STAGE --help tells them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stages", nargs="+", choices=stages)
    parser.add_argument("--minutes", type=float, default=8.0, help="of wall time for this piece")
    given = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(given) and given[0] in stages:
        stages[given[0]](["--help"])
    args, others = parser.parse_known_args(given)
    ends = time.monotonic() + 60 * args.minutes
    for stage in args.stages:
        print(f"\n== {stage}", flush=True)
        stages[stage]([*others, "--minutes", f"{(ends - time.monotonic()) / 60:.3f}"])
