"""What torchrun starts in the tests: the tiny training, whose rank 0 waits in step 12 until a signal comes."""

import signal
import sys
from pathlib import Path

import torch
from tiny_training import train_in

from autodropout.training.distributed import world


def wait_for_signal(step: int) -> None:
    if step == 12 and world().writes:
        (folder / "waiting").touch()
        signal.pause()


folder = Path(sys.argv[1])
torch.set_num_threads(1)
train_in(folder, in_step=wait_for_signal)
