"""Do the policies of Penn Treebank help on another text? The final table again, on half of WikiText-2.

    python benchmarks/ptb_transfer.py [--longer-steps 12000] [--smoke]      (see ptb_study.py)

The methods are those of `ptb_honest.py`, policies among them, as they are in its JSON file. Nothing is searched anew:
rates are tuned and all methods trained as there. Half of the text, which has a million words, overfits in as many steps
as Penn Treebank does; the vocabulary is all of WikiText-2's, 33,278 words.
"""

import json
from collections.abc import Sequence

from ptb_honest import Methods, final_table
from ptb_study import Piece, study_options
from ptb_trainings import families
from recording import write

TEXT = "wikitext-2"


def main(argv: Sequence[str] | None = None) -> None:
    args = study_options(__doc__, "transfer", argv)
    piece = Piece(args, "transfer")
    source = args.folder / "honest.json"
    if not source.exists():
        raise SystemExit(f"{source} is not there, which has the methods: run ptb_honest.py first")
    methods: Methods = {name: tuple(tokens) for name, tokens in json.loads(source.read_text())["policies"].items()}
    peers = {name: tokens for name, tokens in methods.items() if name in families()}
    policies = {name: tokens for name, tokens in methods.items() if name.startswith("policy of ")}
    write(final_table(piece, args, TEXT, args.longer_steps, peers, policies), args.out)


if __name__ == "__main__":
    main()
