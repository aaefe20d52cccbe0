"""Jobs of several children where there is a GPU: who decides how many, and which GPU they see. There is none here."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from driver_tools import InlineEngine
from engine_tools import by_seed, collect, task

import autodropout as ad
from autodropout.controller import make_proposer
from autodropout.running import crowd_of
from autodropout.search import engines, gpus
from autodropout.search.gpus import visible_gpus
from autodropout.search.ledger import Ledger
from autodropout.search.local import LocalEngine
from autodropout.search.records import StudyInfo, trial_seed
from autodropout.search.states import State

SPACE = ad.ConvSpace(groups=((8, 8),))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without GPUs; a file that is put there is one."""
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (tmp_path / name).touch()
    return tmp_path


@dataclass(frozen=True)
class Sociable:
    """Its score tells how many were trained at once."""

    crowd: int = 4

    def __call__(self, policy: ad.Policy, seed: int) -> float:
        return 1.0

    def train_many(self, policies: list[ad.Policy], seeds: list[int], reports: list) -> list[float]:
        return [float(len(policies))] * len(policies)


def searched(tmp_path: Path, **options: object) -> list[float | None]:
    study = ad.search(
        SPACE, Sociable(), 8, minibatch=2, proposer="random", storage=f"sqlite:///{tmp_path}/study.db", **options
    )  # fmt: skip
    return [trial.value for trial in study.trials]


@pytest.mark.parametrize(
    ("devices", "chosen", "seen"),
    [
        ((), None, ()),
        ((), "0", ()),
        ((0, 1), None, ("0", "1")),
        ((0, 1, 2, 3), "3, 1", ("3", "1")),
        ((0, 1), "GPU-8a56a4bc", ("GPU-8a56a4bc",)),
        ((0, 1), "", ()),
        ((0, 1), "1,-1,0", ("1",)),
    ],
)
def test_gpus(
    machine: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[int, ...], chosen: str | None, seen: tuple[str, ...]
) -> None:
    for number in devices:
        (machine / f"nvidia{number}").touch()
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert visible_gpus() == seen


def test_crowds_are_for_gpus(machine: Path) -> None:
    assert crowd_of(Sociable(), "local") == 1
    assert crowd_of(Sociable(), "ray", gpus_per_child=0.0) == 1
    assert crowd_of(Sociable(), "ray", gpus_per_child=0.5) == 4
    (machine / "nvidia0").touch()
    assert crowd_of(Sociable(), "local") == 4
    assert crowd_of(lambda policy, seed: 1.0, "local") == 1


@pytest.mark.parametrize("crowd", [0, 2.5, "many"])
def test_a_crowd_that_is_none_is_refused(machine: Path, tmp_path: Path, crowd: object) -> None:
    (machine / "nvidia0").touch()
    with pytest.raises(ValueError, match=f"a child's crowd must be a positive integer, got {crowd!r}"):
        ad.search(SPACE, Sociable(crowd), 8, storage=f"sqlite:///{tmp_path}/study.db")  # type: ignore[arg-type]


def test_without_a_gpu_nothing_changes(tmp_path: Path) -> None:
    assert searched(tmp_path) == [1.0] * 8


def test_with_a_gpu_jobs_are_as_large_as_the_child_likes(machine: Path, tmp_path: Path) -> None:
    (machine / "nvidia0").touch()
    assert searched(tmp_path, capacity=2) == [4.0] * 8, "two would not have been enough to fill a crowd"


def test_whoever_says_how_many_is_heard(machine: Path, tmp_path: Path) -> None:
    (machine / "nvidia0").touch()
    assert searched(tmp_path, job=2, capacity=4) == [2.0] * 8


@pytest.mark.parametrize("options", [{"job": 4, "capacity": 2}, {"job": 2, "workers": 2, "capacity": 2}])
def test_a_capacity_too_small_for_full_crowds_is_raised(tmp_path: Path, options: dict[str, int]) -> None:
    assert searched(tmp_path, **options) == [float(options["job"])] * 8
    assert ad.Study(f"sqlite:///{tmp_path}/study.db", "study").info.capacity == 4


def test_a_capacity_below_the_workers_is_raised(tmp_path: Path) -> None:
    running = []
    searched(tmp_path, workers=3, capacity=1, watch=lambda progress: running.append(progress.running))
    assert max(running) == 3


def test_each_worker_has_a_gpu_of_its_own(machine: Path) -> None:
    for number in range(2):
        (machine / f"nvidia{number}").touch()
    running = LocalEngine(
        by_seed(dict.fromkeys(range(2), lambda: float(os.environ["CUDA_VISIBLE_DEVICES"]))), workers=2
    )
    try:
        for number in range(2):
            running.submit([task(number)])
        assert sorted(answer.value for answer in collect(running, 2)) == [0.0, 1.0]
    finally:
        running.close()


def test_a_worker_alone_sees_what_the_driver_sees(machine: Path) -> None:
    for number in range(2):
        (machine / f"nvidia{number}").touch()
    running = LocalEngine(by_seed({0: lambda: float("CUDA_VISIBLE_DEVICES" in os.environ)}))
    try:
        running.submit([task(0)])
        assert collect(running, 1)[0].value == 0.0
    finally:
        running.close()


@dataclass(frozen=True)
class Fragile:
    """One trial of its crowd takes all with it; its scores tell how many were trained at once."""

    worst: int

    def __call__(self, policy: ad.Policy, seed: int) -> float:
        return self.train_many([policy], [seed], [])[0]

    def train_many(self, policies: list[ad.Policy], seeds: list[int], reports: list) -> list[float]:
        if trial_seed(0, self.worst) in seeds:
            raise MemoryError("no room for this one")
        return [float(len(policies))] * len(policies)


@pytest.mark.parametrize("job", [4, 12])
def test_a_trial_that_ends_its_crowd_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: int) -> None:
    monkeypatch.setattr(engines, "LocalEngine", InlineEngine)
    study = ad.search(
        SPACE, Fragile(worst=2), 24, minibatch=4, capacity=24, proposer="random", job=job, attempts=2,
        storage=f"sqlite:///{tmp_path}/study.db",
    )  # fmt: skip
    assert [trial.number for trial in study.trials if trial.record.state is State.FAILED] == [2]
    assert {trial.number: trial.record.attempts for trial in study.trials[:job]} == dict.fromkeys(range(job), 2)
    values = [trial.value for trial in study.trials[:24]]
    alone = [1.0] * job
    alone[2] = None
    assert values == alone + [float(job)] * (24 - job), "those that were never with it still go together"


def test_trials_whose_driver_ended_still_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "LocalEngine", InlineEngine)
    info = StudyInfo("study", SPACE, "random", 0, capacity=8, minibatch=2, floor=0.0)
    with Ledger(f"sqlite:///{tmp_path}/study.db") as ledger, ledger.drive(info) as study:
        study.propose(make_proposer("random", SPACE, 0).propose(range(4)))
        study.start(range(4))
    assert searched(tmp_path, job=4, capacity=8) == [4.0] * 8
    records = [trial.record for trial in ad.Study(f"sqlite:///{tmp_path}/study.db", "study").trials]
    assert [record.attempts for record in records] == [2] * 4 + [1] * 4
