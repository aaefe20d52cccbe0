"""Rows of an embedding's gradient: what autograd would add, plainly and by the kernel in Triton's interpreter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autodropout.training import word_rows_kernel
from autodropout.training.word_rows import add_rows, rows_of


def given(words: int, vocabulary: int, channels: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """With words that repeat; 3 children."""
    draw = torch.Generator().manual_seed(seed)
    gradient = torch.randn(3, vocabulary, channels, generator=draw)
    rows = torch.randn(3, words, channels, generator=draw)
    return gradient, rows, torch.randint(vocabulary, (words,), generator=draw)


@pytest.mark.parametrize("add", [add_rows, word_rows_kernel.add_rows])
@pytest.mark.parametrize(("words", "vocabulary", "channels"), [(1, 1, 1), (40, 7, 12), (33, 100, 38), (64, 1, 16)])
def test_it_is_what_autograd_adds(
    add: Callable[[Tensor, Tensor, Tensor], None], words: int, vocabulary: int, channels: int
) -> None:
    gradient, rows, read = given(words, vocabulary, channels)
    table = torch.zeros(3, vocabulary, channels, requires_grad=True)
    for child in range(3):
        F.embedding(read, table[child]).backward(rows[child])
    assert table.grad is not None
    expected = gradient + table.grad
    add(gradient, rows, read)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)


def test_rows_are_those_of_each_childs_own_table() -> None:
    table, words = torch.randn(3, 10, 4), torch.randint(10, (2, 5))
    assert torch.equal(rows_of(table, words), torch.stack([F.embedding(words, own) for own in table]))


@pytest.mark.parametrize("add", [add_rows, word_rows_kernel.add_rows])
def test_rows_that_lie_apart(add: Callable[[Tensor, Tensor, Tensor], None]) -> None:
    gradient, rows, read = given(20, 9, 6)
    apart = torch.full((3, 9, 8), torch.nan)
    apart[..., :6] = gradient
    add(apart[..., :6], rows, read)
    add(gradient, rows, read)
    assert torch.equal(apart[..., :6], gradient)
    assert apart[..., 6:].isnan().all()


@pytest.mark.parametrize("add", [add_rows, word_rows_kernel.add_rows])
def test_a_sum_is_rounded_once(add: Callable[[Tensor, Tensor, Tensor], None]) -> None:
    """Each of the rows alone would be lost in a gradient of half precision."""
    gradient = torch.ones(1, 2, 4, dtype=torch.float16)
    add(gradient, torch.full((1, 8, 4), 2.0**-12), torch.zeros(8, dtype=torch.int64))
    assert gradient.tolist() == [[[1 + 2.0**-9] * 4, [1.0] * 4]]
