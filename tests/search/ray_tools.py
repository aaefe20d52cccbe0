"""Ray for tests: started as the engine starts it, on loopback and with a token; and nothing of it is left behind."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from engine_tools import PATIENCE, alive, descendants, until
from ray.cluster_utils import Cluster

from autodropout.search import ray_start


@contextmanager
def ray_of_this_machine() -> Iterator[None]:
    """Engines made meanwhile join it, and leave it alone."""
    before = set(descendants(os.getpid()))
    connection = ray_start.Connection(None, room=0)
    try:
        yield
    finally:
        started = set(descendants(os.getpid())) - before
        connection.close()
    nobody_left(started)


class PatientCluster(Cluster):
    """Ray's own has half a minute for each node that is added."""

    def _wait_for_node(self, node: object, timeout: float = PATIENCE) -> None:
        super()._wait_for_node(node, timeout)


@contextmanager
def ray_cluster(*cpus: int, **head: object) -> Iterator[Cluster]:
    """A cluster of several nodes on this machine. The first, on which the drivers are, is never removed."""
    before = set(descendants(os.getpid()))
    handler = signal.getsignal(signal.SIGTERM)  # a node that is started here sets its own, and leaves it
    with ray_start._alone():
        first = {"num_cpus": cpus[0], "include_dashboard": False, **head}
        made = PatientCluster(initialize_head=True, head_node_args=first)
        try:
            for count in cpus[1:]:
                made.add_node(num_cpus=count)
            yield made
        finally:
            started = set(descendants(os.getpid())) - before
            made.shutdown()
            signal.signal(signal.SIGTERM, handler)
    nobody_left(started)


def nobody_left(pids: set[int]) -> None:
    until(lambda: not any(map(alive, pids)), "processes are left behind")
