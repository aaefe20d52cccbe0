"""Rows made longer by zeros, for tensor cores: on rows of no multiple of 16 bytes products take twice the time.

    y = W x          W (380, 380)  ->  (384, 384)          x (..., 380)  ->  (..., 384)          y (..., 384)[..., :380]

The spare rows and columns of a matrix are zero, and so is their gradient, since what enters them is zero and what comes
out of them is not used: Adam leaves them as they are. Whoever holds the weights of a model may hold them so
(`training/stacked.py`); the model's layers take both.
"""

import torch.nn.functional as F
from torch import Tensor, nn

ROW = 8  # values of 2 bytes


def spare(length: int) -> int:
    """How many more make it a multiple of `ROW`."""
    return -length % ROW


def padded(h: Tensor, channels: int, tokens: int | None = None) -> Tensor:
    """Zeros behind the last channel and behind the last token, where there are fewer than so many; (..., T, C)."""
    more = (0, channels - h.shape[-1], 0, 0 if tokens is None else tokens - h.shape[-2])
    return F.pad(h, more) if any(more) else h


class Linear(nn.Linear):
    """`nn.Linear` that may be called with a weight that has spare rows and columns."""

    def forward(self, x: Tensor) -> Tensor:
        outputs, inputs = self.weight.shape
        if (outputs, inputs) == (self.out_features, self.in_features):
            return super().forward(x)
        y = F.linear(padded(x, inputs), self.weight)[..., : self.out_features]
        return y if self.bias is None else y + self.bias


class Embedding(nn.Embedding):
    """`nn.Embedding`, likewise."""

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words)[..., : self.embedding_dim]
