"""Two ranks over gloo: the same result as one, exact resumes, signals, one writer."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tiny_training import outcome
from training_zygote import Zygote

from autodropout.training.distributed import mixed


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def undisturbed(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, float]:
    """What comes out of two ranks, and how long they take."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert zygote.run("train", folder=str(folder / "alone")) == 0  # waits until the zygote is ready
    began = time.monotonic()
    assert zygote.run_ranks(2, "train", folder=str(folder / "two")) == [0, 0]
    assert outcome(folder / "two") != outcome(folder / "alone"), "each rank normalizes its own half"
    return outcome(folder / "two"), time.monotonic() - began


def go_on(zygote: Zygote, folder: Path, undisturbed: tuple[Any, float]) -> None:
    assert zygote.run_ranks(2, "train", folder=str(folder)) == [0, 0]
    assert outcome(folder) == undisturbed[0]


def test_two_ranks_with_half_a_batch_each_are_one_with_all_of_it(zygote: Zygote, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert zygote.run("train_plainly", folder=str(tmp_path / "one")) == 0
    assert zygote.run_ranks(2, "train_plainly", folder=str(tmp_path / "two")) == [0, 0]
    one, two = (safetensors.torch.load_file(tmp_path / name / "final.safetensors") for name in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-4, atol=1e-5)


def test_helpers(zygote: Zygote, tmp_path: Path) -> None:
    assert zygote.run_ranks(2, "numbers", folder=str(tmp_path)) == [0, 0]
    one, two = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (one["world"], two["world"]) == ([0, 2, True], [1, 2, False])
    assert one["share"] == two["share"] == 3
    assert one["total"] == two["total"] == [2.0, 10.0]
    assert one["draw"] == torch.rand(1, generator=torch.Generator().manual_seed(7)).item()
    assert two["draw"] == torch.rand(1, generator=torch.Generator().manual_seed(mixed(7, 1))).item()
    assert zygote.run("numbers", folder=str(tmp_path)) == 0
    alone = json.loads((tmp_path / "0.json").read_text())
    assert (alone["world"], alone["share"], alone["total"]) == ([0, 1, True], 6, [1.0, 0.0])
    assert [a + b for a, b in zip(one["order"], two["order"], strict=True)] == alone["order"]


def test_all_ranks_judge_what_rank_0_saves(zygote: Zygote, tmp_path: Path) -> None:
    """Also where a rank has nothing to read."""
    assert zygote.run_ranks(2, "judged", folder=str(tmp_path)) == [0, 0], zygote.said()
    one, two = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert zygote.run("judged", folder=str(tmp_path)) == 0
    assert one == two == json.loads((tmp_path / "0.json").read_text())
    assert one[0] == 1.0


def test_the_same_again(zygote: Zygote, undisturbed: tuple[Any, float], tmp_path: Path) -> None:
    go_on(zygote, tmp_path, undisturbed)


def test_kills(zygote: Zygote, undisturbed: tuple[Any, float], tmp_path: Path) -> None:
    """Of one rank; the other fails since it is alone."""
    moments = random.Random(0)
    for kill in range(6):
        pids = zygote.spawn_ranks(2, "train", folder=str(tmp_path))
        time.sleep(moments.uniform(0.0, undisturbed[1] * 0.8))
        victim = kill % 2
        os.kill(pids[victim], signal.SIGKILL)
        if zygote.wait(pids[victim]) == -signal.SIGKILL:
            os.kill(pids[1 - victim], signal.SIGKILL)  # as torchrun does
        zygote.wait(pids[1 - victim])
    go_on(zygote, tmp_path, undisturbed)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_to_one_rank_stops_both_after_the_same_step(
    zygote: Zygote, undisturbed: tuple[Any, float], tmp_path: Path, number: int, status: int, rank: int
) -> None:
    arguments = {"folder": str(tmp_path), "number": number, "rank": rank, "step": 12}
    assert zygote.run_ranks(2, "interrupted", **arguments) == [status, status]
    newest = max(tmp_path.glob("checkpoint-*")).name
    assert newest == "checkpoint-000000014.safetensors", "they agree one step later"
    go_on(zygote, tmp_path, undisturbed)


def test_a_checkpoint_of_another_training_is_refused_on_all_ranks(zygote: Zygote, tmp_path: Path) -> None:
    zygote.run_ranks(2, "interrupted", folder=str(tmp_path), number=signal.SIGINT, rank=0, step=12)
    assert zygote.run_ranks(2, "of_another_config", folder=str(tmp_path)) == [1, 1]
    assert (
        zygote.said().count(f"{tmp_path} has the checkpoints of another training, with lr = 0.1; this one has 0.2") == 2
    )


def test_another_number_of_ranks_goes_on_and_says_so(zygote: Zygote, tmp_path: Path) -> None:
    zygote.run_ranks(2, "interrupted", folder=str(tmp_path), number=signal.SIGINT, rank=0, step=12)
    assert zygote.run("train", folder=str(tmp_path)) == 0
    assert "of 2 ranks on cpu, this training has 1 on cpu" in zygote.said()
    assert [line["step"] for line in outcome(tmp_path)[2]][-1] == 60


def test_torchrun(zygote: Zygote, undisturbed: tuple[Any, float], tmp_path: Path) -> None:
    """It starts the ranks, and passes on the SIGTERM that ends them; they can go on."""
    script = Path(__file__).with_name("torchrun_training.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    launched = subprocess.Popen([*command, str(tmp_path)], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        while not (tmp_path / "waiting").exists():  # for the signal, in the middle of a step
            time.sleep(0.05)
            assert launched.poll() is None, launched.communicate()[1]
        launched.terminate()
        launched.communicate(timeout=60)
    finally:
        launched.kill()
    assert max(tmp_path.glob("checkpoint-*")).name == "checkpoint-000000014.safetensors"
    go_on(zygote, tmp_path, undisturbed)
