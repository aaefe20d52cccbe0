"""What the scripts of the Penn Treebank study share: trainings, baselines, the journal, and how children are trained.

    python benchmarks/ptb_proxy.py        which training is worth searching with, and at which rate
    python benchmarks/ptb_search.py       the controller, at the paper's setting and at ours, against random search
    python benchmarks/ptb_finalists.py    the best of each method, trained again with new seeds, then longer
    python benchmarks/ptb_honest.py       the final table; the test text is read here, once
    python benchmarks/ptb_table.py        all trials as one Parquet file
    python benchmarks/simulate.py         searches replayed on that table

Each keeps a journal (`autodropout.tables.Journal`) in `--folder` and goes on where it was: it ends by itself when the
next job would not fit into `--minutes`, with exit code 3, and the same command again does the rest. A job trains
`--together` children at once (`LanguageTraining.fit_many`). Carried from machine to machine, the folder is all there
is. Tables are printed, and written as JSON beside the journals; they are computed from the journals alone.

What it costs with 4,000 steps for a child of the search and 16,000 for a final one, in millions of steps of one child:
2.1 for the proxy, 2.0 for each method of the search, 2.0 for finalists, 4.0 for the final table. These scripts need
torch, numpy and matplotlib, and no database.

The classical baselines are policies here, so that they can be trained in the same crowd: a pattern of 70 words without
gaps covers a segment, hence it is Dropout, WordDropout where channels share a draw, and Variational Dropout where words
do. They differ from the usual ones in two things, as policies do: what is kept is rescaled by its realised share, not
by the expected one; and keys and values, which reach back into the memory, draw anew after 70 words where words share.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from autodropout.layers import baseline
from autodropout.recipes.language import ptb_small
from autodropout.spaces import TRANSFORMER_SITES, Policy, SequencePattern, TransformerPolicy, TransformerSpace
from autodropout.tables import Entry, Journal, TableTrial
from autodropout.training.language import REWARD, LanguageTraining
from autodropout.training.run import Run, identity
from recording import options

SPACE = TransformerSpace()
PAUSED = 3  # the exit code of a piece that has left something to do
SMOKE_STEPS = 400  # a smoke test trains for so many times fewer

Tokens = tuple[int, ...]


def small(steps: int) -> LanguageTraining:
    """The recipe `ptb-small`."""
    return ptb_small(steps)


def small_with_dropouts(steps: int) -> LanguageTraining:
    """With the dropouts of embedding and softmax that the paper's model has beside a policy."""
    training = ptb_small(steps)
    return replace(training, size=replace(training.size, embedding_dropout=0.5, softmax_dropout=0.6))


def tiny(steps: int) -> LanguageTraining:
    """Half as deep and as wide: cheaper, if it will do."""
    training = ptb_small(steps)
    return replace(training, size=replace(training.size, layers=2, width=128, heads=4, inner=512))


def quarter(steps: int) -> LanguageTraining:
    """With a quarter of the text: it overfits after as many words as the whole one does in four times more steps."""
    return replace(ptb_small(steps), training_words=232_000)


TRAININGS: dict[str, Callable[[int], LanguageTraining]] = {
    "small": small,
    "small-dropouts": small_with_dropouts,
    "tiny": tiny,
    "quarter": quarter,
}

NONE: Tokens = (0,) * len(SPACE.tokens)
KINDS = {"dropout": {}, "variational_dropout": {"share_t": True}, "word_dropout": {"share_c": True}}


def classical(kind: str, sites: Sequence[str]) -> Tokens:
    """A classical method at these sites, as a policy."""
    pattern = {"size": 70, "stride": 0, "share_t": False, "share_c": False} | KINDS[kind]
    nothing = {"size": 0, "stride": 0, "share_t": False, "share_c": False}
    patterns = {
        site: SequencePattern.model_validate(pattern if site in sites else nothing) for site in TRANSFORMER_SITES
    }
    return SPACE.encode(TransformerPolicy(sites=patterns))


def families() -> dict[str, Tokens]:
    """The classical methods at the sites where they are usual, and at all."""
    found = {}
    for kind in KINDS:
        found[kind] = classical(kind, baseline(kind).transformer)
        found[f"{kind}, all sites"] = classical(kind, TRANSFORMER_SITES)
    return found


class Child(NamedTuple):
    """One training to be done."""

    method: str
    number: int
    tokens: Tokens
    rate: float
    seed: int
    log_prob: float | None = None
    version: int = 0


class Piece:
    """One run of a script: a journal, and the time there is."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.smoke: bool = args.smoke
        self.folder: Path = args.folder
        self.together: int = args.together
        self.ends = time.monotonic() + 60 * args.minutes
        self.journal = Journal(self.folder / f"{name}.jsonl", SPACE)
        cuda = torch.cuda.is_available() and not args.smoke
        self.run = Run(device="cuda" if cuda else "cpu", precision="bfloat16" if cuda else "float32")

    @property
    def machine(self) -> str | None:
        """For a record: the GPU's name; None where it is the CPU."""
        return torch.cuda.get_device_name() if self.run.where.type == "cuda" else None

    def entries(self, name: str) -> list[Entry]:
        """What another script of the study has found."""
        return Journal(self.folder / f"{name}.jsonl").entries

    def training(self, name: str, steps: int) -> LanguageTraining:
        training = TRAININGS[name](steps)
        if not self.smoke:
            return training
        steps = max(4, steps // SMOKE_STEPS)
        small = replace(training.smoke(), batch=4, steps=steps, evaluate_every=max(1, steps // 2))
        return replace(small, evaluation_batch=4, evaluation_words=200)

    def train(self, phase: str, name: str, steps: int, children: Sequence[Child], *, test: bool = False) -> list[Entry]:
        """The children's trials, in their order: those that the journal has already, and the others trained now."""
        training = self.training(name, steps)
        told = identity(training, None, 0.0, 0)["training"]
        self.journal.describe(name, {k: v for k, v in told.items() if k not in ("steps", "evaluate_every", "data")})

        def key(child: Child) -> tuple[object, ...]:
            return phase, child.method, child.number, child.seed, name, training.steps, child.rate

        known = self.journal.keys
        missing = [child for child in children if key(child) not in known]
        for job in (missing[first : first + self.together] for first in range(0, len(missing), self.together)):
            self._refuse_to_start_late(name, training.steps)
            entries = _trained(phase, name, training, job, self.run, test)
            self.journal.add(entries)
            done = sum(entry.trial.seconds for entry in entries)
            print(f"# {phase}: {len(job)} children of {name}, {training.steps:,} steps, in {done:.1f} s", flush=True)
        by_key = {entry.trial.key: entry for entry in self.journal.entries}
        return [by_key[key(child)] for child in children]

    def _refuse_to_start_late(self, name: str, steps: int) -> None:
        """End the piece where the next job would not, going by the last one of the same training."""
        same = [entry.trial for entry in self.journal.entries if entry.trial.training == name]
        needed = same[-1].seconds * same[-1].together / same[-1].steps * steps if same else 0.0
        if time.monotonic() + needed > self.ends:
            print(f"the time of this piece is over (the next job takes about {needed:.0f} s): run it again to go on")
            sys.exit(PAUSED)


def _trained(
    phase: str, name: str, training: LanguageTraining, job: Sequence[Child], run: Run, test: bool
) -> list[Entry]:
    """All of a job at once. A test score is that of the weights which read the validation text best."""
    policies: list[Policy] = [SPACE.decode(child.tokens) for child in job]
    curves, test_curves = ([[] for _ in job] for _ in range(2))
    reports, test_reports = ([partial(_report, curve) for curve in some] for some in (curves, test_curves))
    rates, seeds = [child.rate for child in job], [child.seed for child in job]
    start = time.perf_counter()
    rewards = training.fit_many(policies, rates, seeds, run, reports, test_reports if test else None)
    seconds = (time.perf_counter() - start) / len(job)
    found = []
    for child, curve, test_curve, reward in zip(job, curves, test_curves, rewards, strict=True):
        diverged = reward != reward
        tested = None
        if test and not diverged:
            best = max(range(len(curve)), key=lambda place: curve[place][1])  # the first, where several are equal
            tested = test_curve[best][1]
        trial = TableTrial(
            phase=phase,
            method=child.method,
            number=child.number,
            tokens=child.tokens,
            rate=child.rate,
            seed=child.seed,
            training=name,
            steps=training.steps,
            value=None if diverged else reward,
            curve=tuple(curve),
            seconds=seconds,
            together=len(job),
            failure="diverged" if diverged else None,
            log_prob=child.log_prob,
            version=child.version,
        )
        found.append(Entry(trial, tested))
    return found


def _report(curve: list[tuple[int, float]], step: int, value: float) -> None:
    curve.append((step, value))


def values(entries: Sequence[Entry]) -> list[float]:
    """Rewards; what a child that diverged scores is the floor of a search, nothing."""
    return [entry.trial.value or 0.0 for entry in entries]


def perplexity(reward: float) -> float:
    return REWARD / reward if reward else float("inf")


def spread(rewards: Sequence[float]) -> str:
    """Perplexities, as tables show them: mean ± deviation (n)."""
    found = [perplexity(reward) for reward in rewards]
    deviation = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.2f}{deviation} ({len(found)})"


def minutes(entries: Sequence[Entry]) -> float:
    """Of the machine that trained them, all together."""
    return sum(entry.trial.seconds for entry in entries) / 60


def study_options(description: str | None, out: str) -> argparse.ArgumentParser:
    parser = options(
        description, None, "tiny models, few of them, on the CPU; in out/ptb-smoke unless --folder is given"
    )
    parser.add_argument("--folder", type=Path, default=None, help="journals and tables; results/ptb if not given")
    parser.add_argument("--minutes", type=float, default=8.0, help="of wall time for this piece")
    parser.add_argument("--together", type=int, default=None, help="children in one job; 64, or 8 in a smoke test")
    parser.add_argument("--training", choices=TRAININGS, default="small")
    parser.add_argument("--steps", type=int, default=4_000, help="of a child of the search")
    parser.set_defaults(name=out)
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    args = parser.parse_args()
    args.folder = args.folder or Path("out/ptb-smoke" if args.smoke else "results/ptb")
    args.together = args.together or (8 if args.smoke else 64)
    args.out = args.out or args.folder / f"{args.name}.json"
    torch.set_num_threads(1)
    return args
