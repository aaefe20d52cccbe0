"""What the scripts of the Penn Treebank study share: options, the journal, and how children are trained.

    python benchmarks/ptb_descent.py      at which learning rate children learn, whatever their policy
    python benchmarks/ptb_candidates.py   where regularization pays at all: a few children of several trainings
    python benchmarks/ptb_proxy.py        which training is worth searching with, and at which rate
    python benchmarks/ptb_orders.py       whose order of policies is whose, among all that the last has trained
    python benchmarks/ptb_search.py       the controller, at the paper's setting and at ours, random search and TPE
    python benchmarks/ptb_sites.py        what those have learned, site by site
    python benchmarks/ptb_finalists.py    the best of each method, trained again with new seeds, then longer
    python benchmarks/ptb_honest.py       the final table; the test text is read here, once
    python benchmarks/ptb_finer.py        whether rates and lengths between would have changed it
    python benchmarks/ptb_retuned.py      whether its differences stand when methods are tuned so finely
    python benchmarks/ptb_mended.py       and whether a data race in their kernels made any difference
    python benchmarks/ptb_bracketed.py    the table once more: no method's best rate is the first or last tried
    python benchmarks/ptb_lengths.py      and every method of it at both of its lengths
    python benchmarks/ptb_race.py         the ten best policies of two searches, all in the final training
    python benchmarks/ptb_longer.py       the best two of those at the other length, too
    python benchmarks/ptb_transfer.py     the same table on another text, with the policies of this one
    python benchmarks/multi30k.py         and a translator with the same policies
    python benchmarks/ptb_all.py STAGES   several of these in one process, which compiles once
    python benchmarks/found_policies.py ptb   the policies of the final table as files of the package
    python benchmarks/ptb_table.py        all trials as one Parquet file
    python benchmarks/simulate.py         searches replayed on that table
    python benchmarks/ptb_report.py       docs/results.md and its figures, from the JSON files of all these

The first sixteen take the same options. Each that trains keeps a journal (`autodropout.tables.Journal`) in `--folder`
and goes on where it was: it ends by itself when the next job would not fit into `--minutes`, with exit code 3, and the
same command again does the rest. Carried from machine to machine, the journals are all there is: tables are computed
from them alone, printed, and written as JSON beside them; a command that finds nothing left to train does so anywhere.

A job trains `--together` children at once (`LanguageTraining.fit_many`), and takes as long with fewer of them. Hence
all scripts have crowds of 48, three methods' minibatches, which are compiled once, and numbers of children that fill
them. TPE, which `simulate.py` had in front, came after the others, alone (`--methods tpe`). What it costs in steps of
one child, for S steps of a child of the search and 2 S or 4 S of a final one:

    proxy 330 S;  search 2,048 S;  finalists 290 S;  final table, of which length is tuned, 980 S to 1,260 S

and for each job 8 readings of the validation text, as long as 160 steps by estimate. These scripts need torch and
numpy, that of the search Optuna for TPE, and no database.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import pieces
from autodropout.spaces import Policy
from autodropout.training.language import REWARD, LanguageTraining
from pieces import Child
from ptb_trainings import KINDS, SPACE, TRAININGS, families

SMOKE_STEPS = 250  # a smoke test trains for so many times fewer
DEFAULTS = pieces.Defaults(
    study="ptb",
    together=48,
    smoke_together=12,
    training="half",
    steps=3_000,
    rate=0.05,
    longer_training="small",
    longer_steps=6_000,
    longer_rate=0.05,
    methods=["random", "controller-paper", "controller", "tpe"],
    longer_methods=["random", "controller-paper", "controller"],
    trials=512,
    final_steps=[6_000, 12_000],
    none_steps=[3_000, 4_000],
    tuning_seeds=2,
    final_seeds=20,
)
RATES = (0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3)  # at many sites
USUAL_RATES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)  # at the few where classical methods are usual


def random_policies(piece: "Piece") -> int:
    """How many are compared, so that jobs of 48 are full."""
    return 4 if piece.smoke else 34


class Piece(pieces.Piece):
    """Of language models."""

    script, subject, unit = "ptb_{}.py", "Penn Treebank", "perplexity"
    space, peers = SPACE, families()

    def training(self, name: str, steps: int) -> LanguageTraining:
        training = TRAININGS[name](steps)
        if not self.smoke:
            return training
        steps = max(4, steps // SMOKE_STEPS)
        small = replace(training.smoke(), batch=2, segment=8, steps=steps, evaluate_every=max(1, steps // 2))
        return replace(small, evaluation_batch=2, evaluation_words=100, warmup=0)

    def asked(self, steps: int) -> int:
        """What to ask `training` for, to have so many steps: a smoke test's are fewer."""
        return steps * SMOKE_STEPS if self.smoke else steps

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
    return pieces.study_options(description, name, argv, TRAININGS, DEFAULTS)
