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
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from autodropout.controller import PROPOSERS
from autodropout.spaces import Policy
from autodropout.tables import Entry, Journal, TableTrial
from autodropout.training.language import REWARD, LanguageTraining
from autodropout.training.run import Run, identity
from ptb_trainings import NONE, SPACE, TRAININGS, Tokens, families
from recording import averaged, facts, options

PAUSED = 3  # the exit code of a piece that has left something to do
SMOKE_STEPS = 250  # a smoke test trains for so many times fewer
TOGETHER, SMOKE_TOGETHER = 48, 12
MOST_SEEDS = 20  # of the final table
MINIBATCH = 16  # policies that a method proposes at once
METHODS = ("random", "controller-paper", "controller")
PARTS = ("compared", "rates", "longer")


class Child(NamedTuple):
    """One training to be done."""

    method: str
    number: int
    tokens: Tokens
    rate: float
    seed: int
    log_prob: float | None = None
    version: int = 0


def nothing(seeds: int) -> list[Child]:
    return [Child("none", 0, NONE, 0.0, seed) for seed in range(seeds)]


def baselines(seeds: int, rates: Sequence[float]) -> list[Child]:
    return [
        Child(name, 0, tokens, rate, seed)
        for name, tokens in families().items()
        for rate in rates
        for seed in range(seeds)
    ]


def random_policies(piece: "Piece") -> int:
    """How many are compared, so that jobs of 48 are full."""
    return 4 if piece.smoke else 34


def policies(count: int, rate: float, seed: int) -> list[Child]:
    return [Child("random", number, SPACE.encode(SPACE.sample(number)), rate, seed) for number in range(count)]


class Piece:
    """One run of a script: a journal, and the time there is."""

    ready: ClassVar[tuple[str, int] | None] = None  # what the process's crowd is of, and for how many children

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.smoke: bool = args.smoke
        self.folder: Path = args.folder
        self.together: int = args.together
        self.ends = time.monotonic() + 60 * args.minutes
        self.noted = False  # where and with which versions this piece trains
        self.journal = Journal(self.folder / f"{name}.jsonl", SPACE)
        self.others = [Journal(path) for path in sorted(self.folder.glob("*.jsonl")) if path != self.journal.path]
        cuda = torch.cuda.is_available() and not args.smoke
        self.run = Run(device="cuda" if cuda else "cpu", precision="bfloat16" if cuda else "float32")

    def record(self, what: str) -> dict[str, Any]:
        """The head of a JSON file: also where the trials were trained, and what they took."""
        machines = dict.fromkeys(str(note["machine"]) for note in self.journal.notes)
        found = facts(what, ("torch", "numpy"), ", ".join(machines) or None)
        return found | {"trained": self.journal.notes, "minutes": self.minutes, "trials": len(self.journal.entries)}

    @property
    def minutes(self) -> float:
        """Of the machine, for all of this journal: training and judging, compiling and capturing."""
        return minutes(self.journal.entries) + sum(float(note["preparing"]) for note in self.journal.notes) / 60

    def seconds(self, name: str, steps: int) -> float:
        """Of the machine for a child of this training and length, in the fastest job: others may have shared it."""
        length = self.training(name, steps).steps
        trials = [entry.trial for entry in self.journal.entries]
        return min(t.seconds for t in trials if (t.training, t.steps) == (name, length))

    def entries(self, name: str) -> list[Entry]:
        """What another script of the study has found."""
        path = self.folder / f"{name}.jsonl"
        if not path.exists():
            raise SystemExit(f"{path} is not there: run ptb_{name}.py first")
        return Journal(path).entries

    def training(self, name: str, steps: int) -> LanguageTraining:
        training = TRAININGS[name](steps)
        if not self.smoke:
            return training
        steps = max(4, steps // SMOKE_STEPS)
        small = replace(training.smoke(), batch=2, segment=8, steps=steps, evaluate_every=max(1, steps // 2))
        return replace(small, evaluation_batch=2, evaluation_words=100, warmup=0)

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
            self._prepare(name, training)
            entries = _trained(phase, name, training, job, self.run, test)
            self.journal.add(entries)
            done = sum(entry.trial.seconds for entry in entries)
            print(f"# {phase}: {len(job)} children of {name}, {training.steps:,} steps, in {done:.1f} s", flush=True)
        by_key = {entry.trial.key: entry for entry in self.journal.entries}
        found = [by_key[key(child)] for child in children]
        for child, entry in zip(children, found, strict=True):
            # A controller may write other tokens on another machine, whose sums round differently: the journal's stand.
            if child.log_prob is None and child.tokens != entry.trial.tokens:
                raise SystemExit(f"{self.journal.path} has another policy under {key(child)}: use another folder")
        return found

    def _prepare(self, name: str, training: LanguageTraining) -> None:
        """Compile for full jobs, even where the first is not, and apart from what children take."""
        start = time.perf_counter()
        fresh = training.prepare_many(self.together, self.run)
        took = round(time.perf_counter() - start, 1) if fresh else 0.0
        if fresh or not self.noted:  # what was compiled for another stage's journal serves this one, too
            machine = torch.cuda.get_device_name() if self.run.where.type == "cuda" else None
            self.journal.note(facts(f"from here on {name}", ("torch",), machine) | {"preparing": took})
            self.noted = True
            print(f"# {name}: compiled and captured for {self.together} children in {took:.1f} s", flush=True)
        Piece.ready = name, self.together

    def _refuse_to_start_late(self, name: str, steps: int) -> None:
        """End the piece where the next job would not, going by jobs of any journal.

        The fastest full one of the same training: others shared the machine. Of a training that nobody had yet, the
        slowest of all.
        """
        journals = [*self.others, self.journal]
        trials = [entry.trial for journal in journals for entry in journal.entries]
        paces = [(t.training, t.seconds * t.together / t.steps) for t in trials if 2 * t.together > self.together]
        like = [pace for training, pace in paces if training == name]
        needed = steps * (min(like) if like else max((pace for _, pace in paces), default=0.0))
        notes = [note for journal in journals for note in journal.notes]
        if notes and Piece.ready != (name, self.together):
            needed += max(float(note["preparing"]) for note in notes)
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


def reward(trial: TableTrial) -> float:
    """Of a child that diverged: nothing, the floor of a search."""
    return trial.value or 0.0


def rewards_of(entries: Sequence[Entry]) -> list[float]:
    return [reward(entry.trial) for entry in entries]


def perplexity(reward: float) -> float:
    return REWARD / reward if reward else float("inf")


def perplexities(rewards: Sequence[float]) -> list[float | None]:
    """As JSON has them: None for a child that diverged."""
    return [perplexity(reward) if reward else None for reward in rewards]


def spread(rewards: Sequence[float], *, error: bool = False) -> str:
    """Of their perplexities, as tables show it."""
    return averaged(perplexities(rewards), error=error)


def minutes(entries: Sequence[Entry]) -> float:
    """Of the machine that trained them, all together."""
    return sum(entry.trial.seconds for entry in entries) / 60


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
