"""What is the Ray engine's own, on one machine; the contract of engines is in `test_engines`, nodes in
`test_ray_cluster`.
"""

import ipaddress
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import ray
from engine_tools import by_seed, collect, descendants, hang, run_all, submit
from ray_tools import nobody_left, ray_cluster

import autodropout as ad
from autodropout.search import ray_start
from autodropout.search.halving import Halving
from autodropout.search.ray_engine import RayEngine
from autodropout.search.states import FailureKind, State
from autodropout.study import search
from ledger_server import PASSWORD, Server

RECIPE = Path(__file__).parents[1] / "cli" / "tiny_recipe.py"
SETTINGS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_USAGE_STATS_ENABLED")


def listening(pids: list[int]) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses on which processes wait for connections."""
    sockets = set()
    for pid in pids:
        with suppress(FileNotFoundError):  # it has ended meanwhile
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # it was closed meanwhile
                    kind, _, name = os.readlink(file).partition(":")
                    if kind == "socket":
                        sockets.add(name.strip("[]"))
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:  # it listens
                words = fields[1].partition(":")[0]
                parts = [struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8)]
                yield ipaddress.ip_address(b"".join(parts))


def test_ray_is_started_for_this_machine_alone_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = descendants(os.getpid()), signal.getsignal(signal.SIGTERM), [os.environ.get(name) for name in SETTINGS]
    home = Path("~/.ray").expanduser().exists()
    with closing(RayEngine(by_seed({}), workers=1)) as running:
        assert run_all(running, range(2))[1].value == 1.0
        started = [pid for pid in descendants(os.getpid()) if pid not in before[0]]
        found = list(listening([*started, os.getpid()]))
        assert len(found) > 4, "a cluster listens on several ports"
        assert all((getattr(host, "ipv4_mapped", None) or host).is_loopback for host in found)
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert signal.getsignal(signal.SIGTERM) is before[1]
        assert ray._private.state.jobs()[0]["Entrypoint"] == "autodropout", "not the command line: it may hold a URL"
    assert not ray.is_initialized()
    nobody_left(set(started))
    assert [os.environ.get(name) for name in SETTINGS] == before[2]
    assert Path("~/.ray").expanduser().exists() == home, "Ray's own token would lie there"


@pytest.mark.slow
def test_a_memory_monitor_kills_and_says_so() -> None:
    """The monitor looks every ten seconds, by when a worker is at work, unless the cores are very busy."""
    # Whatever a worker has is too much.
    settings = {"memory_monitor_refresh_ms": 10_000, "memory_usage_threshold": 0.0001}
    with (
        ray_cluster(1, _system_config=settings) as cluster,
        closing(RayEngine(by_seed({0: hang}), address=cluster.address)) as running,
    ):
        submit(running, 0)
        (answer,) = collect(running, 1)
        assert answer.failure.kind is FailureKind.OUT_OF_MEMORY
        assert "low on memory" in answer.failure.message


def command(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | variables
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    line = [sys.executable, str(RECIPE), *arguments]
    return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    arguments = ("--engine", "ray", "--cpus", "0.5", "--early-stopping", "--storage", f"sqlite:///{tmp_path}/study.db")
    done = command(tmp_path, "search", "tiny", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["scored"] == 8
    assert Path(tmp_path, facts["files"]["policy"]).exists()
    study = ad.Study(f"sqlite:///{tmp_path}/study.db", "tiny")
    kept = study.info.attributes
    assert (kept["engine"], kept["workers"], kept["cpus_per_child"], kept["gpus_per_child"]) == ("ray", None, 0.5, 0.0)


@pytest.mark.slow
def test_the_command_on_postgresql_keeps_the_password_to_itself(tmp_path: Path, server: Server) -> None:
    storage = server.schema()
    secrets = [PASSWORD, storage.partition("@")[0].rpartition(":")[2]]
    with tempfile.TemporaryDirectory(prefix="ray") as logs:  # a short name: there will be sockets in it
        done = command(tmp_path, "search", "tiny", "--engine", "ray", "--storage", storage, RAY_TMPDIR=logs)
        assert done.returncode == 0, done.stderr
        files = list(filter(Path.is_file, Path(logs).rglob("*")))
        assert len(files) > 10
        for file in files:
            assert not any(secret in file.read_text(errors="replace") for secret in secrets), file
    assert not any(secret in done.stdout + done.stderr for secret in secrets)
    resumed = command(tmp_path, "resume", "--trials", "12", "--json", "--storage", storage)
    assert json.loads(resumed.stdout)["trials"]["applied"] == 12


@pytest.mark.slow
def test_a_search_with_jobs_of_many_and_early_stopping(tmp_path: Path) -> None:
    class Many:
        def __call__(self, policy: ad.Policy, seed: int, report) -> float:
            for step in range(1, 4):
                report(step, (seed % 100) / 100)
            return (seed % 100) / 100

        def train_many(self, policies: list[ad.Policy], seeds: list[int], reports: list) -> list[float]:
            found = []
            for policy, seed, report in zip(policies, seeds, reports, strict=True):
                try:
                    found.append(self(policy, seed, report))
                except ad.Stopped:
                    found.append(float("nan"))
            return found

    study = search(
        ad.ConvSpace(groups=((8, 8),)), Many(), 48, capacity=16, minibatch=8, job=4, proposer="random", engine="ray",
        halving=Halving(1), storage=f"sqlite:///{tmp_path}/study.db",
    )  # fmt: skip
    assert study.reader.counts()[State.APPLIED] == 48
    assert 5 < sum(trial.record.stopped for trial in study.trials) < 48
    assert study.best.value == max(t.value for t in study.trials if not t.record.stopped)


@pytest.mark.slow
def test_nobody_joins_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with ray_cluster(1) as cluster:
        code = "import ray, sys; ray.init(address=sys.argv[1])"
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
        line = [sys.executable, "-c", code, cluster.address]
        refused = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
    assert refused.returncode != 0
    assert "Authentication token is missing or incorrect" in refused.stderr


def test_a_cluster_without_authentication_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for address in ("127.0.0.1:6379", "[::1]:6379", "localhost:6379"):
        ray_start._warn_of_open_cluster(address)
    assert not caplog.messages
    ray_start._warn_of_open_cluster("10.0.0.1:6379")
    ray_start._warn_of_open_cluster("head.cluster.local:6379")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "10.0.0.1:6379 has no authentication" in caplog.messages[0]
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    ray_start._warn_of_open_cluster("10.0.0.1:6379")
    assert len(caplog.messages) == 2


def test_places() -> None:
    node = {"CPU": 8.0, "GPU": 2.0, "memory": 1e9}
    assert ray_start._places(node, 1.0, 0.0) == 8
    assert ray_start._places(node, 0.1, 0.0) == 80
    assert ray_start._places(node, 3.0, 0.0) == 2
    assert ray_start._places(node, 1.0, 1.0) == 2
    assert ray_start._places(node, 1.0, 0.25) == 8
    assert ray_start._places({"CPU": 8.0}, 1.0, 0.5) == 0
    assert ray_start._places(node, 1.0, 0.6) == 2, "a share is of one GPU"
    assert ray_start._places(node, 1.0, 2.0) == 1
    assert ray_start._places({"CPU": 64.0, "GPU": 2.0}, 1.0, 0.1) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpus_per_child": 0.0}, "cpus_per_child must be positive, got 0.0"),
        ({"gpus_per_child": -1.0}, "gpus_per_child .* got -1.0"),
        ({"gpus_per_child": 1.5}, "gpus_per_child .* got 1.5"),
        ({"address": "ray://head:10001"}, "'ray://head:10001' is an address for Ray's client"),
    ],
)
def test_mistakes(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RayEngine(by_seed({}), **options)


def test_what_a_machine_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_start, "_init", lambda address, object_store: None)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    with pytest.raises(ValueError, match="this machine has no 1 CPUs and 4 GPUs"):
        RayEngine(by_seed({}), gpus_per_child=4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"engine": "local", "gpus_per_child": 1}, ValueError, "are for the engine 'ray'.* got 1 and 1"),
        ({"engine": "local", "cpus_per_child": 2}, ValueError, "are for the engine 'ray'.* got 2 and 0"),
        ({"engine": "ray"}, ModuleNotFoundError, r"pip install 'autodropout\[ray\]'"),
    ],
)
def test_mistakes_in_a_search(
    options: dict, error: type, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "autodropout.search.ray_engine")
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(error, match=message):
        search(ad.ConvSpace(groups=((8, 8),)), by_seed({}), 1, storage=f"sqlite:///{tmp_path}/study.db", **options)
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_ray_may_be_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.53.1")
    with pytest.raises(ValueError, match=r"needs ray 2.54 or newer, this is 2.53.1"):
        RayEngine(by_seed({}))
