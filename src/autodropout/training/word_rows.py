"""The gradient of an embedding that is also the softmax's matrix: that of the product, plus rows for the words read.

Left to autograd, the rows become a matrix of the vocabulary's size, zeros but for them, and are added in a pass over
three such matrices. Here they are put where they belong: a step reads a thousand words of ten thousand.
"""

import torch
from torch import Tensor

from autodropout.patterns.bits import on_gpu


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
