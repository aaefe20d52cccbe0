"""The final table once more: every method tuned until its best rate is surrounded, by kernels without a data race.

    python -m studies.ptb bracketed [--smoke]

`finer.py` tried few rates at each length, and of some methods the best was the first or the last of them. Here the
methods and the lengths of `retuned.py` are tuned by climbing (`climbing.py`), starting where they were best before,
or one further where that was at the edge. Then each is trained as it was tuned, with seeds that nothing was chosen by.
The test text is read for a third time; what it said before has decided nothing here. Claims are those of
`retuned.py`.
"""

import argparse
from collections.abc import Mapping

from benchmarks.recording import write
from studies.ptb.climbing import SCALE, climbed_table, nearest
from studies.ptb.finer import Try, by_try, compared, means
from studies.ptb.retuned import SEEDS, best_tries
from studies.ptb.study import Piece

TRIES = 4  # seeds of each try: three rates of four methods fill a crowd


def start(method: str, steps: int, before: Mapping[Try, float]) -> Try:
    """Where a method was best, of this length; one further, where nothing was tried beyond."""
    rates = sorted(one.rate for one in before if (one.method, one.steps) == (method, steps))
    if not rates:
        nearer = min((one.steps for one in before if one.method == method), key=lambda other: abs(other - steps))
        return start(method, nearer, before)._replace(steps=steps)
    best = max(rates, key=lambda rate: before[Try(method, rate, steps)])
    place = SCALE.index(nearest(best)) + (best == rates[-1]) - (best == rates[0])
    return Try(method, SCALE[min(max(place, 0), len(SCALE) - 1)], steps)


def study(piece: Piece, args: argparse.Namespace) -> None:
    entries = compared(piece, piece.entries("finer"))
    tokens = {entry.trial.method: entry.trial.tokens for entry in entries}
    tuning = [entry for entry in piece.entries("honest") if entry.trial.phase == "tuning"]
    before, chosen = means(by_try([*entries, *tuning])), best_tries(entries)
    lengths = sorted({one.steps for one in chosen})
    starts = [start(one.method, steps, before) for steps in lengths for one in chosen]
    text = args.longer_training
    write(climbed_table(piece, args, "bracketed", text, tokens, starts, tries=TRIES, seeds=SEEDS), args.out)
