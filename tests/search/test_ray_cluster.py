"""The Ray engine on a cluster of several nodes: they join, leave and die, workers are killed, and nothing is lost."""

import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import ray
from driver_tools import SPACE, check_study, url
from engine_tools import POLICY, alive, by_seed, collect, hang, run_all, submit, telling, told, until, wait_until_gone
from ray.cluster_utils import Cluster
from ray_tools import ray_cluster

import autodropout as ad
from autodropout.search import ray_engine
from autodropout.search.driver import Progress
from autodropout.search.ray_engine import RayEngine
from autodropout.search.states import FailureKind


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node for drivers alone, and one for a child."""
    with ray_cluster(0, 1) as made:
        yield made


@pytest.fixture(autouse=True)
def joined(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)


@pytest.mark.slow
def test_nodes_come_and_go_and_free_follows(cluster: Cluster, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    children = by_seed({number: telling(pids, hang) for number in range(3)})
    with closing(RayEngine(children)) as running:
        until(lambda: running.free() == 1, "the node that was there")
        node = cluster.add_node(num_cpus=2)
        until(lambda: running.free() == 3, "the node that joined")
        for number in range(3):
            submit(running, number)
        workers = [worker for worker, _ in told(pids, lines=3)]
        assert running.free() == 0
        cluster.remove_node(node, allow_graceful=False)
        lost = collect(running, 2)
        assert {answer.failure.kind for answer in lost} == {FailureKind.CRASH}
        assert all(re.match(r"the worker on \S+ was lost: ", answer.failure.message) for answer in lost)
        until(lambda: sum(map(alive, workers)) == 1, "processes outlive their node")
        assert (running.free(), running.answers(timeout=0.1)) == (0, [])
    wait_until_gone(workers)
    assert not ray.is_initialized()
    with closing(RayEngine(by_seed({}))) as running:  # the cluster is still there, and nobody's
        assert [answer.value for answer in run_all(running, range(3))] == [1.0] * 3


@pytest.mark.slow
def test_a_study_outlives_a_node_and_uses_another(cluster: Cluster, tmp_path: Path) -> None:
    """Children wait for each other: for the second node's at first, for the third's once that has joined."""
    nodes = [cluster.add_node(num_cpus=1)]
    hosts, joined = tmp_path / "hosts", tmp_path / "joined"
    hosts.mkdir()

    def join() -> None:
        nodes.append(cluster.add_node(num_cpus=1))
        joined.touch()

    changes: list[Callable[[], None]] = [lambda: cluster.remove_node(nodes.pop(), allow_graceful=False), join]
    most: list[int] = []

    def watch(progress: Progress) -> None:
        assert progress.running + progress.waiting == min(6, 24 - progress.scored), "in flight comes back to C"
        most.append(progress.running)
        if changes and progress.scored >= (14 if len(changes) == 1 else 6) and progress.running:
            changes.pop(0)()

    def child(policy: ad.Policy, seed: int) -> float:
        import time

        (hosts / str(os.getppid())).touch()
        while len(os.listdir(hosts)) < 2 + joined.exists():
            time.sleep(0.05)
        time.sleep(0.3)
        return seed / 2**31

    study = ad.search(
        SPACE, child, 24, capacity=6, minibatch=4, attempts=4, proposer="random", engine="ray",
        storage=url(tmp_path / "study.db"), watch=watch,
    )  # fmt: skip
    cluster.remove_node(nodes.pop())
    assert not changes
    assert 2 <= max(most) <= 3, "a trial of the node that died runs until Ray says so, beside those of the next node"
    records = [trial.record for trial in study.trials]
    assert all(trial.value == trial.seed / 2**31 for trial in records)
    assert len(records) == 24
    check_study(url(tmp_path / "study.db"))


def kill_at_random(tmp_path: Path, kills: int, trials: int) -> None:
    """Of workers at work: their processes, or the actors that hold them. Whoever removes a child's file decides: the
    child that it has ended, or the killer that it will be killed. From the first score on: where children only die, and
    none ever has a score, a search gives up, which is not what is asked here."""
    pids = tmp_path / "pids"
    pids.mkdir()

    def child(policy: ad.Policy, seed: int) -> float:
        import time

        mine = pids / f"{os.getpid()} {os.getppid()}"
        mine.touch()
        time.sleep(0.3)
        try:
            mine.unlink()
        except FileNotFoundError:
            hang()  # until the kill comes
        return seed / 2**31

    killed: list[str] = []
    begun, done = threading.Event(), threading.Event()

    def kill() -> None:
        draw = random.Random(0)
        begun.wait()
        while len(killed) < kills and not done.wait(draw.uniform(0.1, 0.4)):
            victim = draw.choice([*pids.iterdir(), pids / "nobody"])
            with suppress(FileNotFoundError):  # there is none, or its child has just ended
                victim.unlink()
                killed.append(victim.name)
                os.kill(int(victim.name.split()[len(killed) % 2]), signal.SIGKILL)

    def watch(progress: Progress) -> None:
        assert progress.running + progress.waiting == min(6, trials - progress.scored)
        if progress.scored:
            begun.set()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        study = ad.search(
            SPACE, child, trials, capacity=6, minibatch=4, attempts=10, proposer="random", engine="ray",
            storage=url(tmp_path / "study.db"), watch=watch,
        )  # fmt: skip
    finally:
        done.set()
        begun.set()
        killer.join()
    assert len(killed) == kills
    records = [trial.record for trial in study.trials]
    assert all(trial.value == trial.seed / 2**31 for trial in records)
    assert sum(trial.attempts - 1 for trial in records) == kills, "each kill cost one attempt"
    check_study(url(tmp_path / "study.db"))


@pytest.mark.slow
def test_workers_killed_at_random_cost_attempts_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kill_at_random(tmp_path, kills=4, trials=24)
    said = "".join(capfd.readouterr())
    assert not re.search(r"worker|actor|died|killed|raylet", said, re.IGNORECASE), "Ray keeps to itself that they died"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_workers_killed_at_random(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    kill_at_random(tmp_path, kills=40, trials=60)
    cluster.remove_node(node)


def test_children_end_with_a_driver_that_has_joined_and_the_cluster_stays(cluster: Cluster, tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import os, subprocess, time
        from autodropout.search.jobs import Task
        from autodropout.search.ray_engine import RayEngine

        def child(policy, seed, report):
            with open({str(tmp_path / "pids")!r}, "w") as file:
                print(os.getpid(), os.getppid(), subprocess.Popen(["sleep", "600"]).pid, file=file)
            time.sleep(600)

        engine = RayEngine(child)
        while not engine.free():
            time.sleep(0.1)
        engine.submit([Task(0, {POLICY!r}, 0)])
        engine.answers(600)
    """)
    driver = subprocess.Popen([sys.executable, "-c", script])
    (pids,) = told(tmp_path / "pids")
    driver.kill()
    driver.wait()
    wait_until_gone(pids)
    with closing(RayEngine(by_seed({}))) as running:
        assert [answer.value for answer in run_all(running, range(2))] == [1.0] * 2


@pytest.mark.slow
def test_a_frozen_actor_is_overdue_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "START_SECONDS", 0.0)
    monkeypatch.setattr(ray_engine, "GRACE_SECONDS", 1.0)
    with closing(RayEngine(by_seed({0: telling(tmp_path / "pids", hang)}), deadline=3)) as running:
        submit(running, 0)
        ((worker, host),) = told(tmp_path / "pids")
        os.kill(host, signal.SIGSTOP)
        try:
            (answer,) = collect(running, 1)
            assert answer.failure.kind is FailureKind.TIMEOUT
            submit(running, 1)  # another actor, as soon as Ray has ended this one
            assert collect(running, 1)[0].value == 1.0
            wait_until_gone([host, worker])
        finally:
            if alive(host):
                os.kill(host, signal.SIGKILL)


@pytest.mark.slow
def test_children_share_a_gpu_and_see_no_other(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    node = cluster.add_node(num_cpus=8, num_gpus=2)
    visible = by_seed({0: lambda: float(os.environ["CUDA_VISIBLE_DEVICES"])})
    with closing(RayEngine(visible, gpus_per_child=0.5, cpus_per_child=2)) as running:
        until(lambda: running.free() == 4, "four halves")
        assert run_all(running, [0])[0].value in (0.0, 1.0)
    with closing(RayEngine(visible, gpus_per_child=0.5, most=3)) as running:
        until(lambda: running.free() == 3, "as many as there is work for")
    assert not any("children see none of them" in message for message in caplog.messages)
    with closing(RayEngine(by_seed({0: lambda: float(os.environ["CUDA_VISIBLE_DEVICES"] == "")}), most=1)) as running:
        assert run_all(running, [0])[0].value == 1.0
    assert any("children see none of them" in message for message in caplog.messages)
    cluster.remove_node(node)


def test_it_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(ray_engine, "SILENCE_SECONDS", 0.5)
    with closing(RayEngine(by_seed({}), gpus_per_child=3)) as running:
        words = "a node of the Ray cluster with 1 CPUs and 3 GPUs to spare"
        until(lambda: any(message.endswith(words) for message in caplog.messages), "silence")
        assert running.free() == 0


def test_actors_that_cannot_start_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    class Host:
        def __init__(self, *arguments: object, **options: object) -> None:
            raise ModuleNotFoundError("No module named 'autodropout'")

        def life(self) -> None: ...

        def where(self) -> None: ...

    monkeypatch.setattr(ray_engine, "Host", Host)
    with (
        closing(RayEngine(by_seed({}))) as running,
        pytest.raises(RuntimeError, match=r"(?s)no worker can start on the Ray cluster.*No module named 'autodropout'"),
    ):
        collect(running, 1)
