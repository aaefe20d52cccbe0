"""Do the policies of Penn Treebank help on another text? The final table again, on half of WikiText-2.

    python -m studies.ptb transfer [--smoke]

The methods: none, the classical one that was best on Penn Treebank, and the policies of random search and of our
controller, as they are in the JSON file of `honest.py`. Nothing is searched anew: rates and lengths are tuned, by
climbing (`climbing.py`), and each method is trained as it was tuned, with new seeds. Half of the text has a million
words; the vocabulary is all of WikiText-2's, 33,278 words.

At first there was one length, the 6,000 steps that suit Penn Treebank (`wikitext2-6000.json`; the journal has its
trials). Here "none", stopped after 3,000, was better than everything trained for 6,000: that table compared ways to
overfit. So the lengths are shorter ones, and since a shorter training wants less noise, rates begin in proportion. The
test text is read for a second time.
"""

import argparse
import json

from benchmarks.recording import write
from studies.honest import OURS, RANDOM
from studies.ptb.climbing import climbed_table, nearest
from studies.ptb.finer import Try
from studies.ptb.study import Piece

TEXT = "wikitext-2"
LENGTHS = (2_000, 3_000, 4_000)
SEEDS = 12  # of each method, of which four fill a crowd
TRIES, REACH = 3, 2  # seeds of each try: none, and five rates of three methods, fill one, too


def study(piece: Piece, args: argparse.Namespace) -> None:
    source = args.folder / "honest.json"
    if not source.exists():
        raise SystemExit(f"{source} is not there, which has the methods: run {piece.command.format('honest')} first")
    found = json.loads(source.read_text())
    methods = ("none", found["best_classical"], RANDOM, OURS)
    tokens = {name: tuple(found["policies"][name]) for name in methods}
    paces = {name: found["rates"].get(name, 0.0) / found["lengths"][name] for name in methods}  # of noise, by length
    lengths = [piece.training(TEXT, steps).steps for steps in LENGTHS]
    starts = [Try(name, nearest(paces[name] * steps), steps) for steps in lengths for name in methods]
    record = climbed_table(piece, args, "moved", TEXT, tokens, starts, tries=TRIES, seeds=SEEDS, reach=REACH)
    write(record, args.out)
