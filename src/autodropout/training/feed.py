"""Images on their way to the device, step by step.

    images on the host --all at once, where they fit--> device --indices of a step--> batch
                       --else batch by batch, ahead of time, from a thread of its own----> batch

A training on a GPU never waits for the host inside an epoch: uint8 images are kept on the device (CIFAR-10 takes 154
MB, the paper's 80,000 images of ImageNet 16 GB). Where they do not fit, a thread gathers the next batches into pinned
memory; which ones they are follows from the step, so it can work ahead.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from autodropout.data import Labelled
from autodropout.training.distributed import world
from autodropout.training.order import Order

AHEAD = 3  # batches in the making
SHARE_OF_MEMORY = 0.5  # of a GPU's free memory, that one set of images may take


class Feed:
    """`feed(step)`: the images and labels of that step, on the device. `close()` ends its thread, where it has one."""

    def __init__(self, examples: Labelled, batch: int, seed: int, device: torch.device) -> None:
        self._examples, self._device = examples, device
        self._thread: ThreadPoolExecutor | None = None
        self._coming: dict[int, Future[tuple[Tensor, Tensor]]] = {}
        if fits(examples.images, device):
            self._examples = resident(examples, device)
            self._order = Order(len(examples), batch, seed, device)
        else:
            self._thread = ThreadPoolExecutor(1, "feed")
            self._order = Order(len(examples), batch, seed)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        if self._thread is None:
            chosen = self._order(step)
            return self._examples.images[chosen], self._examples.labels[chosen]
        for later in range(step, step + AHEAD):
            if later not in self._coming:
                self._coming[later] = self._thread.submit(self._gather, later)
        images, labels = self._coming.pop(step).result()
        return images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _gather(self, step: int) -> tuple[Tensor, Tensor]:
        chosen = self._order(step)
        images, labels = self._examples.images[chosen], self._examples.labels[chosen]
        return (images.pin_memory(), labels.pin_memory()) if self._device.type == "cuda" else (images, labels)


def fits(images: Tensor, device: torch.device) -> bool:
    """Whether to keep the images on the device; on the CPU they are there."""
    if device.type != "cuda" or images.device == device:
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.nbytes <= SHARE_OF_MEMORY * free


def resident(examples: Labelled, device: torch.device) -> Labelled:
    """The examples on the device, where they fit; else as they are."""
    if not fits(examples.images, device):
        return examples
    return Labelled(examples.images.to(device), examples.labels.to(device))


def chunks(examples: Labelled, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's part of the examples, in order, on the device."""
    rank, ranks = world().rank, world().size
    for start in range(rank * batch, len(examples), ranks * batch):
        part = examples[start : start + batch]
        yield part.images.to(device, non_blocking=True), part.labels.to(device, non_blocking=True)
