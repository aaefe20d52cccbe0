"""The controller against random search on Penn Treebank, trial by trial: the same training, the same seeds.

    python benchmarks/ptb_search.py --steps 4000 --rate 0.1 [--trials 512] [--seed 0] [--smoke]      (see ptb_study.py)

All methods are trained in one crowd: in each round every method proposes 16 policies, which are trained side by side,
and learns from them before it proposes the next 16. So nobody learns late, nobody has a better hour of the machine, and
trial i of each method has the same seed. A search that was cut is resumed from its journal: what was proposed stands
there, and the proposer learns from it again.

Writes best-so-far curves with bootstrap bands (`autodropout.tables.statistics.best_so_far`) beside the table. Their
values are rewards of single seeds, so the best is partly luck: `ptb_finalists.py` takes that out.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from autodropout.controller import PROPOSERS, make_proposer
from autodropout.search.protocols import Proposer, Scored
from autodropout.search.records import trial_seed
from autodropout.tables import Entry
from autodropout.tables.statistics import Band, best_so_far
from ptb_study import SPACE, Child, Piece, minutes, parsed, perplexity, study_options, values
from recording import Table, facts, write

MINIBATCH = 16
FLOOR = 0.0  # what a child that diverges scores


class Search:
    """One method: its proposer, as far as the journal has it."""

    def __init__(self, method: str, seed: int, rate: float) -> None:
        self.method, self.seed, self.rate = method, seed, rate
        self.proposer: Proposer = make_proposer(method, SPACE, seed)
        self.entries: list[Entry] = []

    def next(self, count: int) -> list[Child]:
        numbers = range(len(self.entries), len(self.entries) + count)
        return [
            Child(
                *(self.method, number, proposal.tokens, self.rate, trial_seed(self.seed, number)),
                *(proposal.log_prob, proposal.version),
            )
            for number, proposal in zip(numbers, self.proposer.propose(numbers), strict=True)
        ]

    def learn(self, entries: Sequence[Entry]) -> None:
        """From one round."""
        self.entries.extend(entries)
        trials = [entry.trial for entry in entries]
        self.proposer.update(
            [
                Scored(trial.number, trial.tokens, trial.log_prob, trial.version, _score(entry))
                for trial, entry in zip(trials, entries, strict=True)
            ]
        )


def _score(entry: Entry) -> float:
    return FLOOR if entry.trial.value is None else entry.trial.value


def resume(searches: Sequence[Search], entries: Sequence[Entry], phase: str, training: str, steps: int) -> None:
    """Every search learns again from its whole rounds in the journal; a round that was cut is trained again."""
    for search in searches:
        own = [
            entry
            for entry in entries
            if (entry.trial.phase, entry.trial.method) == (phase, search.method)
            and (entry.trial.training, entry.trial.steps, entry.trial.rate) == (training, steps, search.rate)
        ]
        own.sort(key=lambda entry: entry.trial.number)
        assert [entry.trial.number for entry in own] == list(range(len(own))), "journals keep whole jobs, in order"
        for start in range(0, len(own) - len(own) % MINIBATCH, MINIBATCH):
            search.learn(own[start : start + MINIBATCH])


def draw(bands: Mapping[str, Band], target: float, path: Path) -> None:
    """Perplexity of the best so far over trials, one line and its band a method."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for method, band in bands.items():
        trials = np.arange(1, len(band.best) + 1)
        (line,) = axes.step(trials, _perplexities(band.best), where="post", label=method, linewidth=1.8)
        low, high = _perplexities(band.high), _perplexities(band.low)
        axes.fill_between(trials, low, high, step="post", alpha=0.15, color=line.get_color(), linewidth=0)
    axes.axhline(perplexity(target), color="0.6", linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("trials (dotted: the best of random search)")
    axes.set_ylabel("best validation perplexity so far, one seed")
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _perplexities(rewards: np.ndarray) -> np.ndarray:
    return np.array([perplexity(float(reward)) if reward > 0 else math.nan for reward in rewards])


def reached(entries: Sequence[Entry], target: float) -> tuple[int, float] | None:
    """How many trials, and minutes of the machine, a search took to see a reward at least as good."""
    for number, entry in enumerate(entries, start=1):
        if _score(entry) >= target:
            return number, minutes(entries[:number])
    return None


def main() -> None:
    parser = study_options(__doc__, "search")
    parser.add_argument("--methods", nargs="+", choices=PROPOSERS, default=["random", "controller-paper", "controller"])
    parser.add_argument("--trials", type=int, default=512, help="policies for each method")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0, help="of the searches")
    args = parsed(parser)
    trials = 2 * MINIBATCH if args.smoke else args.trials
    if trials % MINIBATCH:
        parser.error(f"--trials must be a multiple of {MINIBATCH}, got {trials}")
    piece = Piece(args, "search")
    piece.together = max(piece.together, MINIBATCH * len(args.methods))
    phase = f"search {args.seed}"
    searches = [Search(method, args.seed, args.rate) for method in args.methods]
    resume(searches, piece.journal.entries, phase, args.training, piece.training(args.training, args.steps).steps)
    while behind := [search for search in searches if len(search.entries) < trials]:
        least = min(len(search.entries) for search in behind)
        now = [search for search in behind if len(search.entries) == least]
        children = [child for search in now for child in search.next(MINIBATCH)]
        found = piece.train(phase, args.training, args.steps, children)
        for place, search in enumerate(now):
            search.learn(found[place * MINIBATCH : (place + 1) * MINIBATCH])
    target = max(values(searches[0].entries))
    table = Table(("best, perplexity", "mean of last 64", "diverged", "minutes", "as good as the first"), 20, 22)
    rows: list[dict[str, Any]] = []
    for search in searches:
        rewards = values(search.entries)
        failed = sum(entry.trial.value is None for entry in search.entries)
        last = [perplexity(reward) for reward in rewards[-64:] if reward]
        sooner = reached(search.entries, target)
        rows.append(
            {
                "method": search.method,
                "trials": len(rewards),
                "best": perplexity(max(rewards)),
                "last": float(np.mean(last)),
                "diverged": failed,
                "minutes": minutes(search.entries),
                "reached": sooner,
            }
        )
        shown = {"best, perplexity": f"{perplexity(max(rewards)):.2f}", "mean of last 64": f"{np.mean(last):.2f}"}
        shown |= {"diverged": failed, "minutes": f"{minutes(search.entries):.1f}"}
        took = "never" if sooner is None else f"{sooner[0]} trials, {sooner[1]:.1f} min"
        table.row(search.method, shown | {"as good as the first": took})
    bands = {search.method: best_so_far(values(search.entries), block=MINIBATCH) for search in searches}
    draw(bands, target, args.out.with_name(f"{args.out.stem}-{args.seed}.png"))
    what = f"searches on Penn Treebank: {args.training}, {args.steps} steps, rate {args.rate}, seed {args.seed}"
    write(facts(what, ("torch",), piece.machine) | {"rows": rows}, args.out.with_stem(f"{args.out.stem}-{args.seed}"))


if __name__ == "__main__":
    main()
