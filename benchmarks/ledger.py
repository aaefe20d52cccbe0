"""What the ledger costs: 16,384 trials with 4,096 in flight, an update and its checkpoint every 16, on both databases.

    python benchmarks/ledger.py [--smoke] [--postgresql URL] [--out results/ledger.json]

No child trains and no controller learns: a step takes 16 running trials at random, records their scores, stores an
update with a checkpoint, proposes 16 new trials and starts them. Four transactions a step, each on disk before the next
begins; then once more with the four in one. A checkpoint has next to nothing (1 KiB) or as much as the paper's
controller with its optimizer (3.7 MB). Without --postgresql a server is started for the occasion, if one is installed.
The ratio of end to start is given in wall time, which others on the same disk disturb, and in this process's CPU time.
"""

import os
import random
import resource
import statistics
import time
import uuid
from contextlib import nullcontext
from pathlib import Path

from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposal
from autodropout.search.records import Outcome, StudyInfo
from autodropout.search.states import State
from autodropout.spaces import ConvSpace
from recording import Table, databases, facts, options, write

SPACE = ConvSpace(groups=((56, 56), (28, 28), (14, 14), (7, 7)))  # ResNet-50's: 32 tokens
MINIBATCH = 16
CONTROLLER = 3_700_000


def proposals(count: int, version: int) -> list[Proposal]:
    tokens = SPACE.encode(SPACE.sample(version))
    return [Proposal(tokens, -40.0, version) for _ in range(count)]


def run(url: str, trials: int, in_flight: int, checkpoint: int, together: bool) -> dict[str, object]:
    order = random.Random(0)
    blob = os.urandom(checkpoint)
    info = StudyInfo(f"benchmark {uuid.uuid4().hex}", SPACE, "random", 0, in_flight, MINIBATCH, 0.0)
    steps: list[float] = []
    work: list[float] = []
    with Ledger(url) as ledger, ledger.drive(info) as study:
        begun = time.perf_counter()
        running = [trial.number for trial in study.propose(proposals(in_flight, 0))]
        study.start(running)
        opened = time.perf_counter() - begun
        for version in range(1, trials // MINIBATCH + 1):
            if version % 64 == 1:
                order.shuffle(running)
            start, start_cpu = time.perf_counter(), time.process_time()
            done, running = running[:MINIBATCH], running[MINIBATCH:]
            with study.transaction() if together else nullcontext():
                study.record([Outcome(number, State.FINISHED, 0.75, ((1, 0.5), (2, 0.7))) for number in done])
                study.apply(done, version, {"loss": 0.1, "entropy": 2.0, "baseline": 0.7}, blob)
                if refill := min(MINIBATCH, trials - version * MINIBATCH - len(running)):
                    new = [trial.number for trial in study.propose(proposals(refill, version))]
                    study.start(new)
                    running += new
            steps.append(time.perf_counter() - start)
            work.append(time.process_time() - start_cpu)
        seconds = time.perf_counter() - begun
    return {
        "seconds": round(seconds, 2),
        "trials_per_s": round(trials / seconds, 1),
        "first_proposals_s": round(opened, 3),
        "end_to_start": round(ratio(steps), 3),
        "end_to_start_cpu": round(ratio(work), 3),
        **reopened(url, info, trials),
    }


def ratio(steps: list[float]) -> float:
    """A step among the last quarter that still refill, to one among the first quarter: medians, as disks hiccup."""
    refilling = steps[: max(4, len(steps) * 3 // 4)]
    quarter = max(1, len(refilling) // 4)
    return statistics.median(refilling[-quarter:]) / statistics.median(refilling[:quarter])


def reopened(url: str, info: StudyInfo, trials: int) -> dict[str, object]:
    """What a resuming driver does before its first proposal, and a query of everything."""
    start = time.perf_counter()
    with Ledger(url) as ledger, ledger.drive(info) as study:
        counts, _ = study.counts(), study.checkpoint()
        study.trials({State.WAITING, State.RUNNING, State.FINISHED})
        reopen = time.perf_counter() - start
        start = time.perf_counter()
        assert len(study.trials()) == counts[State.APPLIED] == trials
        whole = time.perf_counter() - start
    return {"reopen_s": round(reopen, 3), "read_all_trials_s": round(whole, 3)}


def main() -> None:
    parser = options(__doc__, "results/ledger.json", smoke="a few hundred trials")
    parser.add_argument("--postgresql", metavar="URL", help="an empty database on a server that is there already")
    args = parser.parse_args()
    trials, in_flight = (512, 128) if args.smoke else (16_384, 4_096)
    record = facts(
        f"{trials} trials, {in_flight} in flight, an update every {MINIBATCH}", ("sqlite", "sqlalchemy", "psycopg")
    )
    print(record["what"])
    columns = (
        "seconds",
        "trials_per_s",
        "end_to_start",
        "end_to_start_cpu",
        "reopen_s",
        "read_all_trials_s",
        "file_mb",
    )
    table = Table(columns, label=38)
    rows: list[dict[str, object]] = []
    with databases(args.postgresql) as new:
        for checkpoint in (1024, CONTROLLER):
            for together in (False, True):
                for kind, url in new().items():
                    row = {"database": kind, "checkpoint_bytes": checkpoint, "one_transaction_per_step": together}
                    row |= run(url, trials, in_flight, checkpoint, together)
                    path = Path(url.removeprefix("sqlite:///"))
                    row["file_mb"] = round(path.stat().st_size / 1e6, 1) if kind == "SQLite" else None
                    rows.append(row)
                    table.row(f"{kind}, {checkpoint} B, {'1 commit' if together else '4 commits'}/step", row)
    record["results"] = rows
    record["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    write(record, args.out)
    print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main()
