"""Whole searches to be killed (see `zygote`)."""

import os
import random
import time
from collections.abc import Sequence

import torch
from driver_tools import SPACE, FaultyEngine, InlineEngine, reporting_child

from autodropout import study
from autodropout.controller import load_proposer, make_proposer
from autodropout.search import engines
from autodropout.search.halving import Halving
from autodropout.search.jobs import Answer
from autodropout.search.protocols import Proposer, Scored
from autodropout.search.writing import Writer
from autodropout.spaces import Policy
from zygote import Log, crashing, serve

SETTING = {"minibatch": 4, "capacity": 10, "workers": 6, "proposer": "controller", "attempts": 3}


def child(policy: Policy, seed: int) -> float:
    time.sleep(0.001)
    if seed % 11 == 0:
        return float("nan")
    return seed / 2**31


class LoggingEngine(InlineEngine):
    """Says what it answered as soon as the driver comes for more: by then it must be in the ledger for good."""

    say: Log

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments, seed=os.getpid())
        self._given: Sequence[Answer] = ()

    def answers(self, timeout: float) -> list[Answer]:
        if self._given:
            self.say(scored=[[answer.number, answer.value] for answer in self._given])
        count = random.Random().randint(1, 3)
        self._given = [answer for _ in range(count) for answer in super(LoggingEngine, self).answers(timeout)]
        return list(self._given)


def search(url: str, log: str, trials: int = 10**6) -> None:
    """A search until it is killed, or has so many trials."""
    LoggingEngine.say = Log(log)
    engines.LocalEngine = LoggingEngine
    study.search(SPACE, child, trials, storage=url, **SETTING)


def crash_at(url: str, log: str, commit: int, after: bool) -> None:
    """The same, killed exactly before or after the driver's commit number `commit`."""
    original = study.restore

    def prepared(owned: Writer) -> Proposer:
        dialect = owned._connection.dialect
        dialect.do_commit = crashing(dialect.do_commit, commit, after)
        return original(owned)

    study.restore = prepared
    search(url, log)


def search_with_faults(url: str, proposer: str, trials: int) -> None:
    """Crashes, second attempts, children that diverge or are stopped early."""
    engines.LocalEngine = FaultyEngine
    study.search(
        SPACE, reporting_child, trials, storage=url, halving=Halving(first=3), **(SETTING | {"proposer": proposer})
    )


def warm_up() -> None:
    """What torch imports only when it is first used, before the fork."""
    proposer = make_proposer(SETTING["proposer"], SPACE, seed=0)
    (proposal,) = proposer.propose([0])
    proposer.update([Scored(0, proposal.tokens, proposal.log_prob, 0, 0.5)])
    load_proposer(SETTING["proposer"], SPACE, 0, proposer.save())


if __name__ == "__main__":
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    warm_up()
    serve({task.__name__: task for task in (search, crash_at, search_with_faults)})
