"""The loop on a CUDA device: resumes to the bit, and nothing in a step that waits for the device."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import outcome, train_in

from autodropout.training.loop import Loop
from autodropout.training.order import Order
from autodropout.training.run import Run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path, precision: str) -> None:
    changes: dict[str, Any] = {"device": "cuda", "deterministic": True, "precision": precision}

    def interrupt(step: int) -> None:
        if step == 31:
            signal.raise_signal(signal.SIGTERM)

    train_in(tmp_path / "whole", **changes)
    with pytest.raises(SystemExit):
        train_in(tmp_path / "parts", in_step=interrupt, **changes)
    train_in(tmp_path / "parts", **changes)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_another_kind_of_device_goes_on_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def interrupt(step: int) -> None:
        if step == 31:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        train_in(tmp_path, in_step=interrupt, device="cuda")
    train_in(tmp_path, device="cpu")
    assert "of 1 ranks on cuda, this training has 1 on cpu" in caplog.text
    assert outcome(tmp_path)[2][-1]["step"] == 60


def test_no_step_waits_for_the_device(tmp_path: Path) -> None:
    where = torch.device("cuda", 0)
    order = Order(100, 32, seed=0, device=where)
    weights, ones = torch.zeros(100, device=where), torch.ones(32, device=where)
    with Loop(Run(tmp_path, device=where), 20, {}, {}) as loop:
        for step in loop:
            torch.cuda.set_sync_debug_mode("error")
            try:
                weights.index_add_(0, order(step), ones)
                loop.add(train_loss=weights.mean(), norm=weights.norm())
            finally:
                torch.cuda.set_sync_debug_mode("default")
            if loop.due(10):
                loop.evaluated(weights.sum().item())
    assert [evaluation.reward for evaluation in loop.history] == [320.0, 640.0]
    assert loop.last is not None
    assert loop.last.metrics["train_loss"] == pytest.approx(sum(range(11, 21)) * 0.32 / 10)
