"""Several stages of a study in one process: what was compiled for one serves the next.

All options are those of every stage; `--minutes` are those of all together. It ends with exit code 3 where a stage has,
and the same command again goes on there: a stage that is done only prints its tables again.
"""

import argparse
import time
from collections.abc import Callable


def in_turn(args: argparse.Namespace, run: Callable[[str, argparse.Namespace], None]) -> None:
    """`run` gets each stage's name, and the options with what is left of the minutes and the stage's own JSON file."""
    ends = time.monotonic() + 60 * args.minutes
    for stage in args.stages:
        print(f"\n== {stage}", flush=True)
        left = (ends - time.monotonic()) / 60
        out = args.out or args.folder / f"{stage}.json"
        run(stage, argparse.Namespace(**vars(args) | {"minutes": left, "out": out}))
