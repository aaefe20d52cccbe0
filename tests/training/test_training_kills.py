"""kill -9 of a training, at random moments and around every write: it ends as if it had not been."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_training import outcome
from training_zygote import Zygote


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def undisturbed(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, float]:
    """What comes out, and how long it takes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert zygote.run("train", folder=str(folder / "first")) == 0  # waits until the zygote is ready
    began = time.monotonic()
    assert zygote.run("train", folder=str(folder / "second")) == 0
    return outcome(folder / "first"), time.monotonic() - began


def test_the_same_again(zygote: Zygote, undisturbed: tuple[Any, float], tmp_path: Path) -> None:
    assert zygote.run("train", folder=str(tmp_path)) == 0
    assert outcome(tmp_path) == undisturbed[0]


def kill_at_random(zygote: Zygote, undisturbed: tuple[Any, float], folder: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    for _ in range(kills):
        pid = zygote.spawn("train", folder=str(folder))
        time.sleep(moments.uniform(0.0, undisturbed[1] * 0.8))
        os.kill(pid, signal.SIGKILL)
        assert zygote.wait(pid) in (-signal.SIGKILL, 0)  # 0: it had just ended
    assert zygote.run("train", folder=str(folder)) == 0
    assert outcome(folder) == undisturbed[0]
    assert not list(folder.glob("*.tmp"))


def test_kills_at_random_moments(zygote: Zygote, undisturbed: tuple[Any, float], tmp_path: Path) -> None:
    for seed in range(12):
        kill_at_random(zygote, undisturbed, tmp_path / str(seed), kills=3, seed=seed)


@pytest.mark.slow
def test_many_kills_at_random_moments(zygote: Zygote, undisturbed: tuple[Any, float], tmp_path: Path) -> None:
    for seed in range(100, 200):
        kill_at_random(zygote, undisturbed, tmp_path / str(seed), kills=3, seed=seed)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_kills_around_each_write(
    zygote: Zygote, undisturbed: tuple[Any, float], tmp_path: Path, call: str, after: bool
) -> None:
    """A start writes the log, then checkpoints; each is hit in turn, from whatever state the kill before left."""
    hits = 0
    while (status := zygote.run("crash_at", folder=str(tmp_path), call=call, number=hits + 1, after=after)) != 0:
        assert status == -signal.SIGKILL
        hits += 1
    assert hits >= 5
    assert outcome(tmp_path) == undisturbed[0]
