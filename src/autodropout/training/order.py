"""In which order a training sees its examples: a pure function of seed and step, so that there is nothing to save.

The permutations of successive epochs are strung together and cut into batches. Every batch is full, which compiled
code and ranks want, and no example is left out, whatever the batch.
"""

import torch
from torch import Tensor

from autodropout.training.distributed import mixed, share, world


class Order:
    """`order(step)`: the indices of the examples of that step, (batch of this rank,), on `device`.

    Args:
        examples: how many there are.
        batch: how many of them a step takes, on all ranks together.
        seed: of the permutations; the same on all ranks.
        device: where indices are wanted; one permutation at a time is kept there.
    """

    def __init__(self, examples: int, batch: int, seed: int, device: torch.device | None = None) -> None:
        if examples < 1:
            raise ValueError("there are no examples to train on")
        self.examples, self.batch = examples, batch
        self._seed, self._device = seed, device
        self._share = share(batch)
        self._permutations: dict[int, Tensor] = {}  # of the epoch under way, and of the next where a batch spans two

    def __call__(self, step: int) -> Tensor:
        first = step * self.batch + world().rank * self._share
        epochs = range(first // self.examples, (first + self._share - 1) // self.examples + 1)
        self._permutations = {epoch: self._permutation(epoch) for epoch in epochs}
        strung = torch.cat(tuple(self._permutations.values())) if len(epochs) > 1 else self._permutations[epochs[0]]
        start = first - epochs[0] * self.examples
        return strung[start : start + self._share]

    def _permutation(self, epoch: int) -> Tensor:
        if epoch in self._permutations:
            return self._permutations[epoch]
        generator = torch.Generator().manual_seed(mixed(self._seed, epoch))
        permutation = torch.randperm(self.examples, generator=generator)
        if self._device is not None and self._device.type == "cuda":
            permutation = permutation.pin_memory()  # so that the copy waits for nothing
        return permutation.to(self._device, non_blocking=True)
