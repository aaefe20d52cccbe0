"""Two real processes over gloo: DDP and FSDP2."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("distributed_worker.py")


def run(test: str, folder: Path) -> list[dict[str, torch.Tensor]]:
    command = [sys.executable, str(WORKER), test]
    ranks = [subprocess.Popen([*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    errors = [process.communicate(timeout=240)[1] for process in ranks]
    for process, error in zip(ranks, errors, strict=True):
        assert process.returncode == 0, error
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("test", ["ddp", "fsdp"])
def test_ranks_seeded_alike_draw_different_masks(test: str, tmp_path: Path) -> None:
    one, other = run(test, tmp_path)
    assert one["mask"].any()
    assert other["mask"].any()
    assert not torch.equal(one["mask"], other["mask"])
    if test == "ddp":
        assert torch.equal(one["parameters"], other["parameters"])
    else:
        assert one["loss"].isfinite()
