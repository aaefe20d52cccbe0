"""What a search costs beside its children: 16,384 trials with 4,096 in flight, the real controller, driver and ledger.

    python benchmarks/search.py [--smoke] [--postgresql URL] [--out results/search.json]

The engine is a fake with 4,096 workers: whatever is under way, a random 1 to 31 of it is answered at once, in random
order. Half way the driver is dropped as by kill -9 and another one opens the study: all that was RUNNING is queued
again. Each case runs in a process of its own, so that its peak memory is the driver's. `end_to_start` is the cost of a
trial in the last quarter of the steady part to that in the first: in CPU time of the driver, which others on the
machine do not disturb, and in wall time. The goals: 360 s, 1 GiB, 1.2, 2 s to reopen, PostgreSQL within 3 times SQLite.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import torch

from autodropout.search.driver import Driver, Progress
from autodropout.search.jobs import Answer, Task
from autodropout.search.ledger import Ledger
from autodropout.search.records import StudyInfo
from autodropout.search.writing import Writer
from autodropout.spaces import ConvSpace
from autodropout.study import restore
from recording import Table, databases, facts, options, write

SPACE = ConvSpace(groups=((56, 56), (28, 28), (14, 14), (7, 7)))  # ResNet-50's: 32 tokens
MINIBATCH = 16
PROPOSERS = ("controller-paper", "controller", "random")


class InstantEngine:
    """Every child has its score at once; which answers come first is drawn."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._under_way: list[int] = []
        self._draw = random.Random(0)

    def free(self) -> int:
        return self._workers - len(self._under_way)

    def submit(self, job: Sequence[Task]) -> None:
        self._under_way += [task.number for task in job]

    def answers(self, timeout: float) -> list[Answer]:
        return [self._answer() for _ in range(min(self._draw.randint(1, 31), len(self._under_way)))]

    def close(self) -> None:
        self._under_way.clear()

    def _answer(self) -> Answer:
        place = self._draw.randrange(len(self._under_way))
        self._under_way[place], self._under_way[-1] = self._under_way[-1], self._under_way[place]
        number = self._under_way.pop()
        return Answer(number, 0.7 + 0.1 * random.Random(number).random(), ((1, 0.5), (2, 0.7)))


class Dropped(BaseException):
    """The first driver ends here."""


class Meter:
    """The driver's `watch`: wall and CPU seconds at each count of scored trials."""

    def __init__(self, until: int | None) -> None:
        self._until = until
        self.points: list[tuple[int, float, float]] = []

    def __call__(self, progress: Progress) -> None:
        self.points.append((progress.scored, time.perf_counter(), time.process_time()))
        if self._until is not None and progress.scored >= self._until:
            raise Dropped


def one_case(url: str, proposer: str, trials: int, in_flight: int) -> dict[str, object]:
    """A whole study, and what it cost."""
    torch.set_num_threads(1)
    info = StudyInfo(f"benchmark {uuid.uuid4().hex}", SPACE, proposer, 0, in_flight, MINIBATCH, 0.0)
    first, second = Meter(trials // 2), Meter(None)
    began, began_cpu = time.perf_counter(), time.process_time()
    with Ledger(url) as ledger, ledger.drive(info) as study:
        driver = prepared(study, trials, in_flight, first)
        driver._give_back = lambda: None  # a process that is killed gives nothing back
        with suppress(Dropped):
            driver.run()
    reopened = time.perf_counter()
    with Ledger(url) as ledger, ledger.drive(info) as study:
        driver = prepared(study, trials, in_flight, second)
        reopen = time.perf_counter() - reopened
        driver.run()
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        updates = len(study.updates())
    start = time.perf_counter()
    with Ledger(url) as ledger, ledger.drive(info) as study:
        prepared(study, trials, in_flight, second)
        reopen_finished = time.perf_counter() - start
    steady = trials - in_flight
    return {
        "seconds": round(seconds, 1),
        "driver_cpu_seconds": round(cpu, 1),
        "trials_per_s": round(trials / seconds, 1),
        "updates": updates,
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "end_to_start_cpu": round(ratio(first, second, steady, clock=2), 3),
        "end_to_start_wall": round(ratio(first, second, steady, clock=1), 3),
        "reopen_half_way_s": round(reopen, 2),
        "reopen_finished_s": round(reopen_finished, 2),
    }


def prepared(study: Writer, trials: int, in_flight: int, watch: Meter) -> Driver:
    return Driver(
        study,
        restore(study),
        InstantEngine(in_flight),
        trials=trials,
        policy_of=lambda trial: SPACE.decode(trial.tokens).to_json(),
        watch=watch,
    )


def ratio(first: Meter, second: Meter, steady: int, clock: int) -> float:
    """Seconds a trial in the last quarter of the steady part, where as many are proposed as come in, to the first's."""
    early = per_trial([point for point in first.points if 0 < point[0] <= steady // 4], clock)
    late = per_trial([point for point in second.points if steady * 3 // 4 <= point[0] <= steady], clock)
    return late / early


def per_trial(points: list[tuple[int, float, float]], clock: int) -> float:
    """The median over a dozen stretches: a disk may hiccup."""
    stretches = points[:: max(1, len(points) // 12)]
    return statistics.median((b[clock] - a[clock]) / (b[0] - a[0]) for a, b in pairwise(stretches))


def in_its_own_process(url: str, proposer: str, trials: int, in_flight: int) -> dict[str, object]:
    case = json.dumps({"url": url, "proposer": proposer, "trials": trials, "in_flight": in_flight})
    done = subprocess.run(
        [sys.executable, __file__, "--case"], input=case, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = options(__doc__, "results/search.json", smoke="a few hundred trials")
    parser.add_argument("--postgresql", metavar="URL", help="an empty database on a server that is there already")
    parser.add_argument("--case", action="store_true", help=argparse.SUPPRESS)  # one case from standard input
    args = parser.parse_args()
    if args.case:
        print(json.dumps(one_case(**json.load(sys.stdin))))
        return
    trials, in_flight = (512, 128) if args.smoke else (16_384, 4_096)
    record = facts(
        f"{trials} trials, {in_flight} in flight, an update every {MINIBATCH}, {len(SPACE.tokens)} tokens",
        ("torch", "sqlite", "sqlalchemy", "psycopg"),
    )
    print(record["what"])
    columns = (
        "seconds",
        "driver_cpu_seconds",
        "peak_memory_mb",
        "end_to_start_cpu",
        "reopen_half_way_s",
        "reopen_finished_s",
    )
    table = Table(columns, label=30)
    rows: list[dict[str, object]] = []
    with databases(args.postgresql) as new:
        for proposer in PROPOSERS:
            for kind, url in new().items():
                row = {"proposer": proposer, "database": kind, **in_its_own_process(url, proposer, trials, in_flight)}
                rows.append(row)
                table.row(f"{proposer}, {kind}", row)
    write(record | {"results": rows}, args.out)
    print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main()
