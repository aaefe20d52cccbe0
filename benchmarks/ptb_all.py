"""Several stages of the Penn Treebank study in one process: what was compiled for one serves the next.

    python benchmarks/ptb_all.py search finalists honest --minutes 9      (see ptb_study.py)

`in_turn.py` says what becomes of options, minutes and the exit code.
"""

import ptb_bracketed
import ptb_finalists
import ptb_finer
import ptb_honest
import ptb_lengths
import ptb_longer
import ptb_mended
import ptb_proxy
import ptb_race
import ptb_retuned
import ptb_search
import ptb_transfer
from in_turn import in_turn

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
    "longer": ptb_longer.main,
    "transfer": ptb_transfer.main,
}


def main() -> None:
    in_turn(__doc__, STAGES)


if __name__ == "__main__":
    main()
