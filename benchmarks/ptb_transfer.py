"""Do the policies of Penn Treebank help on another text? The final table again, on half of WikiText-2.

    python benchmarks/ptb_transfer.py [--longer-steps 6000] [--smoke]      (see ptb_study.py)

The methods: none, the classical one that was best on Penn Treebank, and the policies of random search and of our
controller, as they are in the JSON file of `ptb_honest.py`. Nothing is searched anew: rates are tuned and all are
trained as there. Half of the text, which has a million words, overfits in as many steps as Penn Treebank does; the
vocabulary is all of WikiText-2's, 33,278 words.
"""

import json
from collections.abc import Sequence

from ptb_honest import OURS, RANDOM, Methods, final_table
from ptb_study import Piece, study_options
from recording import write

TEXT = "wikitext-2"
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
    args.final_seeds = min(args.final_seeds, SEEDS)
    write(final_table(piece, args, TEXT, [args.longer_steps], {best: methods[best]}, policies), args.out)


if __name__ == "__main__":
    main()
