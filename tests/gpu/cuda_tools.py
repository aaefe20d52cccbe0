"""For the tests of image trainings on a GPU: which they are, a small training, and a watch for whoever waits."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from autodropout.training import Cosine, ImageTraining, Pictures, Sgd

MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),  # advice, on every compilation
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),  # it is a prototype
]

TRAINING = ImageTraining(
    model="wrn-10-1",
    pictures=Pictures(name="digits", train=600, validation=200),
    resolution=20,
    steps=40,
    batch=32,
    optimizer=Sgd(lr=0.05),
    schedule=Cosine(),
    average=0.9,
)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whoever waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
