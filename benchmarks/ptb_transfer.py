"""Do the policies of Penn Treebank help on another text? The final table again, on half of WikiText-2.

    python benchmarks/ptb_transfer.py [--smoke]      (see ptb_study.py)

The methods: none, the classical one that was best on Penn Treebank, and the policies of random search and of our
controller, as they are in the JSON file of `ptb_honest.py`. Nothing is searched anew: rates and lengths are tuned, and
all are trained as there. Half of the text has a million words; the vocabulary is all of WikiText-2's, 33,278 words.

At first there was one length, the 6,000 steps that suit Penn Treebank. Here "none", stopped after 3,000, is better than
everything trained for 6,000: that table compared ways to overfit, and shorter lengths were added. It had read the test
text already; of whoever is trained for 6,000 steps again, those readings stand.
"""

import json
from collections.abc import Sequence

from ptb_honest import OURS, RANDOM, Methods, final_table
from ptb_study import Piece, study_options
from recording import write

TEXT = "wikitext-2"
LENGTHS = (6_000, 4_000, 3_000)  # the first is that of no policy
NONE_LENGTHS = (2_000, 3_000, 4_000)  # and those that it may prefer
SEEDS = 12  # at most: four methods fill a job of 48


def main(argv: Sequence[str] | None = None) -> None:
    args = study_options(__doc__, "transfer", argv)
    piece = Piece(args, "transfer")
    source = args.folder / "honest.json"
    if not source.exists():
        raise SystemExit(f"{source} is not there, which has the methods: run ptb_honest.py first")
    found = json.loads(source.read_text())
    methods: Methods = {name: tuple(tokens) for name, tokens in found["policies"].items()}
    best = found["best_classical"]
    policies = {name: methods[name] for name in (RANDOM, OURS)}
    args.final_seeds, args.none_steps = min(args.final_seeds, SEEDS), NONE_LENGTHS
    write(final_table(piece, args, TEXT, LENGTHS, {best: methods[best]}, policies), args.out)


if __name__ == "__main__":
    main()
