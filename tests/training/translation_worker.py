"""One training of the toy language in a process of its own: `python translation_worker.py FOLDER [SECONDS A STEP]`."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from translation_tools import TOY, toy

from autodropout.layers import baseline
from autodropout.training import token_batches, translation
from autodropout.training.run import Run


def slow_down(seconds: float) -> None:
    """So that there is time to be killed."""

    def slowly(batches: token_batches.TokenBatches, step: int) -> torch.Tensor:
        time.sleep(seconds)
        return fast(batches, step)

    fast = token_batches.TokenBatches.__call__
    translation.TokenBatches.__call__ = slowly


if __name__ == "__main__":
    torch.set_num_threads(1)
    regularizer = None if "WORLD_SIZE" in os.environ else baseline("dropout")  # ranks draw other masks
    if len(sys.argv) > 2:
        slow_down(float(sys.argv[2]))
    run = Run(Path(sys.argv[1]), device="cpu", checkpoint_every=4)
    replace(TOY, tokens=80).fit_on(toy(), regularizer, 0.1, 0, run)
