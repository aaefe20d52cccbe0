"""Several stages of the Penn Treebank study in one process: what was compiled for one serves the next.

    python benchmarks/ptb_all.py search finalists honest --minutes 9      (see ptb_study.py)

All options but the stages are handed on to every stage; `--minutes` are those of all together. It ends with exit code 3
where a stage has, and the same command again goes on there: a stage that is done only prints its tables again.
"""

import argparse
import time

import ptb_bracketed
import ptb_finalists
import ptb_finer
import ptb_honest
import ptb_lengths
import ptb_mended
import ptb_proxy
import ptb_race
import ptb_retuned
import ptb_search
import ptb_transfer

STAGES = {
    "proxy": ptb_proxy.main,
    "search": ptb_search.main,
    "finalists": ptb_finalists.main,
    "honest": ptb_honest.main,
    "finer": ptb_finer.main,
    "retuned": ptb_retuned.main,
    "mended": ptb_mended.main,
    "bracketed": ptb_bracketed.main,
    "lengths": ptb_lengths.main,
    "race": ptb_race.main,
    "transfer": ptb_transfer.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=STAGES)
    parser.add_argument("--minutes", type=float, default=8.0, help="of wall time for this piece")
    args, others = parser.parse_known_args()
    ends = time.monotonic() + 60 * args.minutes
    for stage in args.stages:
        print(f"\n== {stage}", flush=True)
        STAGES[stage]([*others, "--minutes", f"{(ends - time.monotonic()) / 60:.3f}"])


if __name__ == "__main__":
    main()
