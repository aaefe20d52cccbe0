"""The gradient of an embedding that is also the softmax's matrix: that of the product, plus rows for the words read.

Left to autograd, the rows become a matrix of the vocabulary's size, zeros but for them, and are added in a pass over
three such matrices. Here they are put where they belong: a step reads a thousand words of ten thousand.
"""

import torch
from torch import Tensor

from autodropout.patterns.switch import on_gpu


@torch.no_grad()
def rows_of(table: Tensor, words: Tensor) -> Tensor:
    """Of each child's embedding the rows of the words: (K, vocabulary, C), (N, T) -> (K, N, T, C)."""
    children, vocabulary, channels = table.shape
    first = vocabulary * torch.arange(children, device=words.device)
    flat = table.flatten(0, 1).index_select(0, (words.flatten() + first[:, None]).flatten())  # whole rows at once
    return flat.view(children, *words.shape, channels)


@torch.no_grad()
def add_rows(gradient: Tensor, rows: Tensor, words: Tensor) -> None:
    """Add to the gradient, in place: (K, vocabulary, C) and float32 rows of (K, n, C), of the words (n,).

    All rows of a word are added up in float32 first, so that the gradient is rounded to its type once, and in the order
    of the text, so that the same step gives the same bits again.
    """
    if on_gpu(gradient):
        from autodropout.training import word_rows_kernel

        word_rows_kernel.add_rows(gradient, rows, words)
        return
    read, which = words.unique(return_inverse=True)  # (m,), (n,)
    sums = rows.new_zeros(len(rows), len(read), rows.shape[-1]).index_add_(1, which, rows)
    gradient[:, read] = (gradient[:, read].float() + sums).to(gradient.dtype)
