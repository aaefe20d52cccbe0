"""Batches of sentence pairs by their number of tokens: pairs of like length together, so that little is padding.

The pairs are ordered by the length of their longer side, and cut into batches of at most so many tokens, padding
counted, on either side. Each epoch shuffles pairs of equal length among each other before the cuts, and the batches
after them. The cuts fall at the same places every time, so an epoch has always as many batches, and a step's pairs
follow from seed and step alone: there is nothing to save.
"""

from typing import TypeVar

import torch
from torch import Tensor

from autodropout.data.pairs import Pairs, Sentences
from autodropout.data.subwords import BOS, PAD
from autodropout.training.distributed import mixed

MULTIPLE = 8  # of lengths: tensor cores like it, and compiled code meets fewer shapes
Length = TypeVar("Length", int, Tensor)


class TokenBatches:
    """`batches(step)`: the indices of the pairs of a step, of all ranks together.

    Args:
        pairs: at least one.
        tokens: the most of a batch, on its larger side, padding counted; a longer pair is a batch of its own.
        seed: of the shuffling; the same on all ranks.
    """

    def __init__(self, pairs: Pairs, tokens: int, seed: int = 0) -> None:
        self.lengths = torch.maximum(pairs.source.lengths, pairs.target.lengths)
        self.lengths = padded(self.lengths)  # (N,)
        self.seed = seed
        self.sizes = _sizes(self.lengths.sort().values, tokens)
        self._epoch: tuple[int, list[Tensor]] = -1, []

    def __len__(self) -> int:
        """How many batches make an epoch."""
        return len(self.sizes)

    def __call__(self, step: int) -> Tensor:
        epoch, number = divmod(step, len(self))
        if self._epoch[0] != epoch:
            self._epoch = epoch, self._shuffled(epoch)
        return self._epoch[1][number]

    def in_order(self) -> list[Tensor]:
        """All batches once, the shortest pairs first."""
        return list(self.lengths.argsort(stable=True).split(self.sizes))

    def _shuffled(self, epoch: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(mixed(self.seed, epoch))
        shuffled = torch.randperm(len(self.lengths), generator=generator)
        batches = shuffled[self.lengths[shuffled].argsort(stable=True)].split(self.sizes)
        return [batches[number] for number in torch.randperm(len(batches), generator=generator).tolist()]


def _sizes(lengths: Tensor, tokens: int) -> list[int]:
    """How many pairs each batch has, greedily; `lengths`, (N,), ascend."""
    sizes = []
    first = 0
    while first < len(lengths):
        some = lengths[first : first + max(1, tokens // int(lengths[first]))]
        fitting = some * torch.arange(1, len(some) + 1) <= tokens  # the last of a batch is its longest
        sizes.append(max(1, int(fitting.sum())))
        first += sizes[-1]
    return sizes


def rows(sentences: Sentences, chosen: Tensor) -> Tensor:
    """The chosen sentences, (N,), as rows filled up with padding: (N, T), int64, T a multiple of `MULTIPLE`."""
    first = sentences.offsets[chosen][:, None]  # (N, 1)
    length = sentences.offsets[chosen + 1][:, None] - first  # (N, 1)
    place = torch.arange(padded(int(length.max())))  # (T,)
    tokens = sentences.tokens[(first + place).clamp(max=len(sentences.tokens) - 1)]
    return tokens.long().masked_fill(place >= length, PAD)


def padded(length: Length) -> Length:
    """The next multiple of `MULTIPLE`."""
    return (length + MULTIPLE - 1) // MULTIPLE * MULTIPLE


def begun(target: Tensor) -> Tensor:
    """What the decoder is told while it predicts (N, T) tokens: the start token, then the target but for its last."""
    return torch.cat((torch.full_like(target[:, :1], BOS), target[:, :-1]), 1)


def moved(tokens: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting for it."""
    return tokens.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tokens.to(device)


def announce_shapes(*batches: Tensor) -> None:
    """Tell the compiler that rows and tokens of these vary: it compiles once, and not for the first shape first."""
    for one in batches:
        torch._dynamo.maybe_mark_dynamic(one, (0, 1))
