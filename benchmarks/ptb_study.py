"""What the scripts of the Penn Treebank study share: options, the journal, and how children are trained.

    python benchmarks/ptb_descent.py      at which learning rate children learn, whatever their policy
    python benchmarks/ptb_candidates.py   where regularization pays at all: a few children of several trainings
    python benchmarks/ptb_proxy.py        which training is worth searching with, and at which rate
    python benchmarks/ptb_orders.py       whose order of policies is whose, among all that the last has trained
    python benchmarks/ptb_search.py       the controller, at the paper's setting and at ours, against random search
    python benchmarks/ptb_sites.py        what those have learned, site by site
    python benchmarks/ptb_finalists.py    the best of each method, trained again with new seeds, then longer
    python benchmarks/ptb_honest.py       the final table; the test text is read here, once
    python benchmarks/ptb_transfer.py     the same table on another text, with the policies of this one
    python benchmarks/multi30k.py         and a translator with the same policies
    python benchmarks/ptb_all.py STAGES   several of these in one process, which compiles once
    python benchmarks/ptb_policies.py     the policies of the final table as files of the package
    python benchmarks/ptb_table.py        all trials as one Parquet file
    python benchmarks/simulate.py         searches replayed on that table
    python benchmarks/ptb_report.py       docs/results.md and its figures, from the JSON files of all these

The first nine take the same options. Each that trains keeps a journal (`autodropout.tables.Journal`) in `--folder` and
goes on where it was: it ends by itself when the next job would not fit into `--minutes`, with exit code 3, and the same
command again does the rest. Carried from machine to machine, the journals are all there is: tables are computed from
them alone, printed, and written as JSON beside them; a command that finds nothing left to train does so anywhere.

A job trains `--together` children at once (`LanguageTraining.fit_many`), and takes as long with fewer of them. Hence
all scripts have crowds of 48, three methods' minibatches, which are compiled once, and numbers of children that fill
them. What it costs in steps of one child, for S steps of a child of the search and 2 S or 4 S of a final one:

    proxy 330 S;  search 1,536 S;  finalists 290 S;  final table, of which length is tuned, 980 S to 1,260 S

and for each job 8 readings of the validation text, as long as 160 steps by estimate. These scripts need torch and
numpy, and no database.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

import pieces
from autodropout.controller import PROPOSERS
from autodropout.spaces import Policy
from autodropout.training.language import REWARD, LanguageTraining
from pieces import Child
from ptb_trainings import KINDS, SPACE, TRAININGS, families
from recording import options

SMOKE_STEPS = 250  # a smoke test trains for so many times fewer
TOGETHER, SMOKE_TOGETHER = 48, 12
MOST_SEEDS = 20  # of the final table
MINIBATCH = 16  # policies that a method proposes at once
METHODS = ("random", "controller-paper", "controller")
RATES = (0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3)  # at many sites
USUAL_RATES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)  # at the few where classical methods are usual
PARTS = ("compared", "rates", "longer")


def random_policies(piece: "Piece") -> int:
    """How many are compared, so that jobs of 48 are full."""
    return 4 if piece.smoke else 34


class Piece(pieces.Piece):
    """Of language models."""

    study, subject, unit = "ptb", "Penn Treebank", "perplexity"
    space, peers = SPACE, families()

    def training(self, name: str, steps: int) -> LanguageTraining:
        training = TRAININGS[name](steps)
        if not self.smoke:
            return training
        steps = max(4, steps // SMOKE_STEPS)
        small = replace(training.smoke(), batch=2, segment=8, steps=steps, evaluate_every=max(1, steps // 2))
        return replace(small, evaluation_batch=2, evaluation_words=100, warmup=0)

    def regularizer(self, child: Child) -> Policy:
        return SPACE.decode(child.tokens)

    def shown(self, reward: float) -> float:
        return perplexity(reward)

    def rates_for(self, method: str) -> tuple[float, ...]:
        return USUAL_RATES if method in KINDS else RATES

    def prepare(self, training: LanguageTraining, job: Sequence[Child]) -> bool:
        return training.prepare_many(self.together, self.run)


def perplexity(reward: float) -> float:
    return REWARD / reward if reward else float("inf")


def perplexities(rewards: Sequence[float]) -> list[float | None]:
    """As JSON has them: None for a child that diverged."""
    return [perplexity(reward) if reward else None for reward in rewards]


def study_options(description: str | None, name: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The same for all scripts, so that one command line serves them all; `name` is that of the JSON file."""
    parser = options(
        description, None, "tiny models, few of them, on the CPU; in out/ptb-smoke unless --folder is given"
    )
    parser.add_argument("--folder", type=Path, default=None, help="journals and tables; results/ptb if not given")
    parser.add_argument("--minutes", type=float, default=8.0, help="of wall time for this piece")
    parser.add_argument("--together", type=int, default=None, help=f"children in one job; {TOGETHER} if not given")
    parser.add_argument("--training", choices=TRAININGS, default="half", help="of the search")
    parser.add_argument("--steps", type=int, default=3_000, help="of a child of the search")
    parser.add_argument("--rate", type=float, default=0.05, help="to search at")
    parser.add_argument("--longer-training", choices=TRAININGS, default="small", help="of the final ones")
    parser.add_argument("--longer-steps", type=int, default=6_000, help="of the final ones, before that is tuned")
    parser.add_argument("--longer-rate", type=float, default=0.05, help="of policies there, before it is tuned")
    parser.add_argument("--seed", type=int, default=0, help="of the searches")
    sizes = parser.add_argument_group("sizes, each a few minutes of a GPU")
    sizes.add_argument("--candidates", nargs="+", default=None, help="trainings and their steps: small:6000")
    sizes.add_argument("--lengths", type=float, nargs="*", default=[1 / 3, 1 / 2], help="of shorter ones, in --steps")
    sizes.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="of what is asked about a proxy")
    sizes.add_argument("--methods", nargs="+", choices=PROPOSERS, default=list(METHODS), help="of the search")
    sizes.add_argument("--trials", type=int, default=512, help="policies for each method")
    sizes.add_argument("--final-steps", type=int, nargs="+", default=[6_000, 12_000], help="to choose from")
    sizes.add_argument(
        "--none-steps", type=int, nargs="*", default=[3_000, 4_000], help="lengths to choose from without a policy"
    )
    sizes.add_argument("--tuning-seeds", type=int, default=2, help="for each method and rate of the final table")
    sizes.add_argument("--final-seeds", type=int, default=20, help="for each method of the final table")
    args = parser.parse_args(argv)
    if args.smoke:
        args.trials, args.tuning_seeds, args.final_seeds = 2 * MINIBATCH, 1, 2
    if not 1 <= args.final_seeds <= MOST_SEEDS:
        parser.error(f"--final-seeds must lie in 1 to {MOST_SEEDS}, which sign flips take, got {args.final_seeds}")
    if args.trials % MINIBATCH:
        parser.error(f"--trials must be a multiple of {MINIBATCH}, got {args.trials}")
    args.folder = args.folder or Path("out/ptb-smoke" if args.smoke else "results/ptb")
    args.together = args.together or (SMOKE_TOGETHER if args.smoke else TOGETHER)
    args.out = args.out or args.folder / f"{name}.json"
    torch.set_num_threads(1)
    return args
