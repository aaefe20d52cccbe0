"""Do the policies of Penn Treebank help a translator? Multi30k, German to English, every method's rate tuned.

    python -m studies.multi30k [--workers 8] [--minutes 9] [--smoke]

Multi30k stands in for IWSLT'14 (`recipes/translation.py`): 29,000 captions, a small Transformer. Nothing is searched
here: the policies are those of the final table of Penn Treebank (`honest.py`), beside no policy and the dropout of
Vaswani et al.
1. Each method's rate is chosen by validation BLEU, from the same rates with the same seeds; where the best of them is
   the first or the last, the one beyond is tried as well, and so on.
2. Each is trained at its rate with new seeds, and translates the test text once. Differences are paired by seed, with
   Student's 95% intervals.

Batches have sentences of one length, now long, now short: no crowd, but as many processes as `--workers` share the GPU.
What was trained is in a journal, as in `pieces.py`: a piece that runs out of `--minutes` ends with exit code 3, and
the same command again goes on.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from autodropout.recipes.translation import multi30k_de_en
from autodropout.spaces import Policy
from autodropout.tables import Entry, Journal, TableTrial
from autodropout.training.run import Run, Scores, identity
from autodropout.training.translation import TranslationTraining
from benchmarks.recording import facts, options, write
from studies.comparing import tables
from studies.pieces import PAUSED
from studies.ptb.trainings import NONE, SPACE, Tokens, families

SCALE = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
RATES = SCALE[1:6]  # which all are tried at
TUNING_SEEDS, FINAL_SEEDS = range(1), range(1_000, 1_005)
METRICS = ("validation BLEU", "test BLEU")
TRAINING = "multi30k"


class Job(NamedTuple):
    """One training to be done."""

    phase: str
    method: str
    tokens: Tokens
    rate: float
    seed: int


def methods(source: Path) -> dict[str, Tokens]:
    """No policy, Dropout where Vaswani et al. have it, and the policies of the final table of Penn Treebank."""
    if not source.exists():
        raise SystemExit(f"{source} is not there, which has the policies: run python -m studies.ptb honest first")
    found = {"none": NONE, "dropout": families()["dropout"]}
    for name, tokens in json.loads(source.read_text())["policies"].items():
        if name.startswith("policy of "):
            found[name] = tuple(tokens)
    return found


def trained(job: Job, training: TranslationTraining, run: Run) -> Entry:
    """In a process of its own. A test score is asked for in the final phase alone."""
    torch.set_num_threads(1)
    curve: list[tuple[int, float]] = []
    policy: Policy | None = SPACE.decode(job.tokens) if job.tokens != NONE else None
    final = job.phase == "final"
    start = time.perf_counter()
    failure, scores = None, Scores(math.nan, {})
    try:
        watched = replace(run, test=final, report=lambda step, value: curve.append((step, value)))
        scores = training.fit(policy, job.rate, job.seed, watched)
    except FloatingPointError:
        failure = "diverged"
    trial = TableTrial(
        phase=job.phase,
        method=job.method,
        number=0,
        tokens=job.tokens,
        rate=job.rate,
        seed=job.seed,
        training=TRAINING,
        steps=training.steps,
        value=None if failure else scores.reward,
        curve=tuple(curve),
        seconds=time.perf_counter() - start,
        failure=failure,
    )
    return Entry(trial, scores.metrics["test_bleu"] / 100 if final and not failure else None)


class Piece:
    """One run of this script: a journal, the time there is, and processes to train in."""

    def __init__(self, args: argparse.Namespace, training: TranslationTraining) -> None:
        self.training, self.workers = training, args.workers
        self.ends = time.monotonic() + 60 * args.minutes
        self.journal = Journal(args.folder / "multi30k.jsonl", SPACE)
        config = identity(training, None, 0.0, 0)["training"]
        self.journal.describe(TRAINING, {name: value for name, value in config.items() if name != "data"})
        cuda = torch.cuda.is_available()
        self.run = Run(device="cuda" if cuda else "cpu", precision="bfloat16" if cuda else "float32")

    def train(self, jobs: Sequence[Job]) -> list[Entry]:
        """The jobs' trials, in their order: those that the journal has already, and the others trained now."""
        key = {job: (job.phase, job.method, 0, job.seed, TRAINING, self.training.steps, job.rate) for job in jobs}
        known = self.journal.keys
        waiting = [job for job in jobs if key[job] not in known]
        if waiting:
            self.training.load()  # subwords are learned and kept once, before many ask for them
            machine = torch.cuda.get_device_name() if self.run.where.type == "cuda" else None
            self.journal.note(facts(f"{self.workers} at once", ("torch", "sacrebleu"), machine))
            self._train(waiting)
        by_key = {entry.trial.key: entry for entry in self.journal.entries}
        if not all(key[job] in by_key for job in jobs):
            print("the time of this piece is over: run it again to go on")
            sys.exit(PAUSED)
        return [by_key[key[job]] for job in jobs]

    def _train(self, waiting: list[Job]) -> None:
        """As many at once as there are workers; none is begun that would not end in time, going by the last."""
        took = max((entry.trial.seconds for entry in self.journal.entries), default=0.0)
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.workers, mp_context=spawned) as pool:
            running = set()
            while True:
                while waiting and len(running) < self.workers and time.monotonic() + took < self.ends:
                    running.add(pool.submit(trained, waiting.pop(0), self.training, self.run))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                broken = [error for future in done if (error := future.exception()) is not None]
                for entry in (future.result() for future in done if future.exception() is None):
                    self.journal.add([entry])
                    took = entry.trial.seconds
                    value = entry.trial.failure or f"{entry.trial.value:.4f}"
                    said = f"{entry.trial.method} at {entry.trial.rate:g}, seed {entry.trial.seed}: {value}"
                    print(f"# {entry.trial.phase}: {said}, {took:.0f} s", flush=True)
                for error in broken:  # after what others have done at the same time is kept
                    raise error


Scored = dict[str, dict[float, list[float]]]
"""Rewards of each method at each rate; one that diverged has none."""


def best_rates(scores: Scored) -> dict[str, float]:
    return {method: max(by, key=lambda rate: statistics.fmean(by[rate])) for method, by in scores.items()}


def beyond(rate: float, tried: Collection[float]) -> list[float]:
    """What of the scale lies beside a rate, and was not tried."""
    place = SCALE.index(rate)
    return [other for other in SCALE[max(0, place - 1) : place + 2] if other not in tried]


def tuned(piece: Piece, found: Mapping[str, Tokens], seeds: Sequence[int]) -> Scored:
    """Until each method's best rate has others on both sides, or the scale ends."""
    scores: Scored = {}
    waiting = {method: list(RATES) for method, tokens in found.items() if tokens != NONE}
    while waiting:
        jobs = [
            Job("tuning", method, found[method], rate, seed)
            for method, rates in waiting.items()
            for rate in rates
            for seed in seeds
        ]
        for job, entry in zip(jobs, piece.train(jobs), strict=True):
            scores.setdefault(job.method, {}).setdefault(job.rate, []).append(entry.trial.value or 0.0)
        best = best_rates(scores)
        waiting = {method: more for method, by in scores.items() if (more := beyond(best[method], by))}
    return scores


def bleu(reward: float) -> float:
    return 100 * reward


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, None, "a tiny model on the first 200 pairs, two seeds")
    parser.add_argument("--folder", type=Path, default=None, help="of the journal and the table; results/multi30k")
    parser.add_argument("--policies", type=Path, default=Path("results/ptb/honest.json"), help="of Penn Treebank")
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--workers", type=int, default=8, help="trainings at once")
    parser.add_argument("--minutes", type=float, default=9.0, help="of wall time for this piece")
    args = parser.parse_args(argv)
    args.folder = args.folder or Path("out/multi30k-smoke" if args.smoke else "results/multi30k")
    training = replace(multi30k_de_en(), steps=args.steps, evaluate_every=args.steps // 8)
    found = methods(args.policies)
    piece = Piece(args, training.smoke() if args.smoke else training)
    scores = tuned(piece, found, TUNING_SEEDS)
    rates = best_rates(scores)
    seeds = FINAL_SEEDS[:2] if args.smoke else FINAL_SEEDS
    jobs = [
        Job("final", method, tokens, rates.get(method, 0.0), seed) for seed in seeds for method, tokens in found.items()
    ]
    final = piece.train(jobs)
    record = facts("translating Multi30k, German to English, under policies of Penn Treebank", ("torch", "sacrebleu"))
    record |= {"trained": piece.journal.notes, "trials": len(piece.journal.entries), "steps": piece.training.steps}
    record["tuning"] = {
        method: {f"{rate:g}": [*map(bleu, of)] for rate, of in by.items()} for method, by in scores.items()
    }
    record["at_the_edge"] = [method for method, rate in rates.items() if rate in (SCALE[0], SCALE[-1])]
    record["diverged"] = [[entry.trial.method, entry.trial.seed] for entry in final if entry.trial.value is None]
    record |= {"rates": rates, "policies": found, "tables": tables(final, ("none", "dropout"), METRICS, bleu)}
    write(record, args.out or args.folder / "multi30k.json")


if __name__ == "__main__":
    main()
