"""Studies in pieces: children trained in crowds, and a journal that the next piece goes on with, on whatever machine.

A stage of a study asks its `Piece` for the trials of some children; those that its journal has already are not trained
again. When the next job would not fit into the minutes that a piece has, it ends with exit code 3, and the same command
again does the rest.
"""

import argparse
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from autodropout.controller import PROPOSERS
from autodropout.recipes.recipe import CrowdTraining
from autodropout.spaces import Space
from autodropout.tables import Entry, Journal, TableTrial
from autodropout.tables.statistics import MOST_FLIPS
from autodropout.training.children import into
from autodropout.training.run import Regularizer, Report, Run, identity
from benchmarks.recording import facts, options

PAUSED = 3  # the exit code of a piece that has left something to do
MINIBATCH = 16  # policies that a method of a search proposes at once
PARTS = ("compared", "rates", "longer")  # of what is asked about a proxy


class Child(NamedTuple):
    """One training to be done."""

    method: str
    number: int
    tokens: tuple[int, ...]
    rate: float
    seed: int
    log_prob: float | None = None
    version: int = 0


class Piece(ABC):
    """One run of a stage: a journal, and the time there is."""

    command: str  # of a stage, in whose place there are braces
    subject: str  # what is learned, in words
    unit: str  # of what `shown` gives
    space: Space
    peers: Mapping[str, tuple[int, ...]]  # classical methods; tokens of those that are policies, else of none
    ready: ClassVar[object] = None  # what the process's crowd is, as `crowd_of` says it

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.smoke: bool = args.smoke
        self.folder: Path = args.folder
        self.together: int = args.together
        self.ends = time.monotonic() + 60 * args.minutes
        self.noted = False  # where and with which versions this piece trains
        self.journal = Journal(self.folder / f"{name}.jsonl", self.space)
        self.others = [Journal(path) for path in sorted(self.folder.glob("*.jsonl")) if path != self.journal.path]
        cuda = torch.cuda.is_available() and not args.smoke
        self.run = Run(device="cuda" if cuda else "cpu", precision="bfloat16" if cuda else "float32")

    def record(self, what: str) -> dict[str, Any]:
        """The head of a JSON file: also where the trials were trained, and what they took."""
        machines = dict.fromkeys(str(note["machine"]) for note in self.journal.notes)
        found = facts(what, ("torch", "numpy"), ", ".join(machines) or None)
        found |= {"unit": self.unit, "trained": self.journal.notes, "minutes": self.minutes}
        return found | {"trials": len(self.journal.entries)}

    @property
    def minutes(self) -> float:
        """Of the machine, for all of this journal."""
        return minutes_of(self.journal)

    def seconds(self, name: str, steps: int) -> float:
        """Of the machine for a child of this training and length, in the fastest job: others may have shared it."""
        length = self.training(name, steps).steps
        trials = [entry.trial for entry in self.journal.entries]
        return min(t.seconds for t in trials if (t.training, t.steps) == (name, length))

    def entries(self, name: str) -> list[Entry]:
        """What another stage of the study has found."""
        path = self.folder / f"{name}.jsonl"
        if not path.exists():
            raise SystemExit(f"{path} is not there: run {self.command.format(name)} first")
        return Journal(path).entries

    @abstractmethod
    def training(self, name: str, steps: int) -> CrowdTraining:
        """Of the study, by its name; a tiny one in a smoke test."""

    @abstractmethod
    def regularizer(self, child: Child) -> Regularizer:
        """What a child is trained under."""

    @abstractmethod
    def shown(self, reward: float) -> float:
        """A reward as tables show it: lower is better."""

    @abstractmethod
    def rates_for(self, method: str) -> tuple[float, ...]:
        """Those that a classical method, or a policy, is tuned over for a final table."""

    @abstractmethod
    def prepare(self, training: CrowdTraining, job: Sequence[Child]) -> bool:
        """Compile for jobs like this one; False where that was done before."""

    def crowd_of(self, name: str) -> object:
        """Trainings of which this is the same can use one crowd: nothing is compiled in between."""
        return name, self.together

    def scores(self, rewards: Sequence[float]) -> list[float | None]:
        """As JSON has them: None for a child that diverged."""
        return [self.shown(reward) if reward else None for reward in rewards]

    def nothing(self, seeds: int) -> list[Child]:
        tokens = (0,) * len(self.space.tokens)
        return [Child("none", 0, tokens, 0.0, seed) for seed in range(seeds)]

    def baselines(self, seeds: int, rates: Sequence[float]) -> list[Child]:
        return [
            Child(name, 0, tokens, rate, seed)
            for name, tokens in self.peers.items()
            for rate in rates
            for seed in range(seeds)
        ]

    def policies(self, count: int, rate: float, seed: int) -> list[Child]:
        sampled = [self.space.encode(self.space.sample(number)) for number in range(count)]
        return [Child("random", number, tokens, rate, seed) for number, tokens in enumerate(sampled)]

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
            self._prepare(name, training, job)
            entries = self._trained(phase, name, training, job, test)
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

    def _prepare(self, name: str, training: CrowdTraining, job: Sequence[Child]) -> None:
        """Compile apart from what children take."""
        start = time.perf_counter()
        fresh = self.prepare(training, job)
        took = round(time.perf_counter() - start, 1) if fresh else 0.0
        if fresh or not self.noted:  # what was compiled for another stage's journal serves this one, too
            machine = torch.cuda.get_device_name() if self.run.where.type == "cuda" else None
            self.journal.note(facts(f"from here on {name}", ("torch",), machine) | {"preparing": took})
            self.noted = True
            if fresh:
                print(f"# {name}: compiled and captured in {took:.1f} s", flush=True)
        Piece.ready = self.crowd_of(name)

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
        if notes and Piece.ready != self.crowd_of(name):
            needed += max(float(note["preparing"]) for note in notes)
        if time.monotonic() + needed > self.ends:
            print(f"the time of this piece is over (the next job takes about {needed:.0f} s): run it again to go on")
            sys.exit(PAUSED)

    def fit_many(
        self,
        training: CrowdTraining,
        regularizers: Sequence[Regularizer],
        rates: Sequence[float],
        seeds: Sequence[int],
        reports: Sequence[Report],
        test_reports: Sequence[Report] | None,
    ) -> list[float]:
        """All of a job, as the training's own."""
        return training.fit_many(regularizers, rates, seeds, self.run, reports, test_reports)

    def _trained(self, phase: str, name: str, training: CrowdTraining, job: Sequence[Child], test: bool) -> list[Entry]:
        """All of a job at once."""
        regularizers = [self.regularizer(child) for child in job]
        curves, test_curves = ([[] for _ in job] for _ in range(2))
        reports, test_reports = ([into(curve) for curve in some] for some in (curves, test_curves))
        rates, seeds = [child.rate for child in job], [child.seed for child in job]
        start = time.perf_counter()
        rewards = self.fit_many(training, regularizers, rates, seeds, reports, test_reports if test else None)
        seconds = (time.perf_counter() - start) / len(job)
        found = []
        for child, curve, test_curve, reward in zip(job, curves, test_curves, rewards, strict=True):
            diverged = reward != reward
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
            tested = dict(test_curve)[training.result_step(curve)] if test and not diverged else None
            found.append(Entry(trial, tested))
        return found


def reward(trial: TableTrial) -> float:
    """Of a child that diverged: nothing, the floor of a search."""
    return trial.value or 0.0


def rewards_of(entries: Sequence[Entry]) -> list[float]:
    return [reward(entry.trial) for entry in entries]


def minutes(entries: Sequence[Entry]) -> float:
    """Of the machine that trained them, all together."""
    return sum(entry.trial.seconds for entry in entries) / 60


def minutes_of(journal: Journal) -> float:
    """Of the machine: training, judging, compiling and capturing."""
    return minutes(journal.entries) + sum(float(note["preparing"]) for note in journal.notes) / 60


class Defaults(NamedTuple):
    """What a study does unless told otherwise; the options of the same names say what each is."""

    study: str  # of whose name its folders are
    together: int
    smoke_together: int
    training: str
    steps: int
    rate: float
    longer_training: str
    longer_steps: int
    longer_rate: float
    methods: list[str]
    longer_methods: list[str]
    trials: int
    final_steps: list[int]
    none_steps: list[int]
    tuning_seeds: int
    final_seeds: int


def study_options(
    description: str | None,
    stages: Collection[str],
    argv: Sequence[str] | None,
    trainings: Collection[str],
    of: Defaults,
) -> argparse.Namespace:
    """Which of the stages, and the options, the same for all of them: one command line serves several."""
    smoke = f"tiny models, few of them, on the CPU; in out/{of.study}-smoke unless --folder is given"
    parser = options(description, None, smoke)
    parser.prog = f"python -m studies.{of.study}"
    add = parser.add_argument
    add("stages", nargs="+", choices=stages, help="one after the other, in one process")
    add("--folder", type=Path, default=None, help=f"journals and tables; results/{of.study} if not given")
    add("--minutes", type=float, default=8.0, help="of wall time for this piece")
    add("--together", type=int, default=None, help=f"children in one job; {of.together} if not given")
    add("--training", choices=trainings, default=of.training, help="of the search")
    add("--steps", type=int, default=of.steps, help="of a child of the search")
    add("--rate", type=float, default=of.rate, help="to search at")
    add("--longer-training", choices=trainings, default=of.longer_training, help="of the final ones")
    add("--longer-steps", type=int, default=of.longer_steps, help="of the final ones, before that is tuned")
    add("--longer-rate", type=float, default=of.longer_rate, help="of policies there, before it is tuned")
    add("--seed", type=int, default=0, help="of the searches")
    add = parser.add_argument_group("sizes, each a few minutes of a GPU").add_argument
    add("--candidates", nargs="+", default=None, help=f"trainings and their steps: {of.training}:{of.steps}")
    add("--lengths", type=float, nargs="*", default=[1 / 3, 1 / 2], help="of shorter ones, in --steps")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="of what is asked about a proxy")
    add("--methods", nargs="+", choices=PROPOSERS, default=of.methods, help="of the search")
    add("--longer-methods", nargs="+", choices=PROPOSERS, default=of.longer_methods, help="whose best go on")
    add("--trials", type=int, default=of.trials, help="policies for each method")
    add("--final-steps", type=int, nargs="+", default=of.final_steps, help="to choose from")
    add("--none-steps", type=int, nargs="*", default=of.none_steps, help="lengths to choose from without a policy")
    add("--tuning-seeds", type=int, default=of.tuning_seeds, help="for each method and rate of the final table")
    add("--final-seeds", type=int, default=of.final_seeds, help="for each method of the final table")
    args = parser.parse_args(argv)
    if args.smoke:
        args.trials, args.tuning_seeds, args.final_seeds = 2 * MINIBATCH, 1, 2
    if not 1 <= args.final_seeds <= MOST_FLIPS:
        parser.error(f"--final-seeds must lie in 1 to {MOST_FLIPS}, which sign flips take, got {args.final_seeds}")
    if args.trials % MINIBATCH:
        parser.error(f"--trials must be a multiple of {MINIBATCH}, got {args.trials}")
    args.folder = args.folder or Path(f"out/{of.study}-smoke" if args.smoke else f"results/{of.study}")
    args.together = args.together or (of.smoke_together if args.smoke else of.together)
    torch.set_num_threads(1)
    return args
