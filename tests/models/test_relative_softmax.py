"""The softmax of relative attention as an operator, and its kernels in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from autodropout.models import relative_softmax_kernel
from autodropout.models.relative_softmax import aligned, relative_softmax, relative_softmax_backward

SHAPES = [(1, 1, 1, 1, 0, 0), (2, 3, 4, 4, 0, 0), (2, 2, 5, 8, 3, 2), (3, 2, 7, 16, 5, 0), (1, 2, 70, 72, 0, 7)]
"""Samples, heads, words, columns, words of memory, columns of distances beyond those needed."""


def given(
    samples: int, heads: int, length: int, reach: int, before: int, more: int, *leading: int
) -> tuple[Tensor, Tensor, int]:
    content = torch.randn(*leading, samples, heads, length, reach)
    return content, torch.randn(*leading, heads, samples * length, reach + 1 + more), before


def plain(content: Tensor, by_distance: Tensor, before: int) -> Tensor:
    samples, _, length, reach = content.shape
    by_query = by_distance.unflatten(1, (samples, length)).transpose(0, 1)
    future = torch.ones(length, reach, dtype=torch.bool).triu(before + 1)
    return (content + aligned(by_query)[..., :reach]).masked_fill(future, -torch.inf).softmax(-1)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_plain_one_with_its_gradients(shape: tuple[int, ...]) -> None:
    content, by_distance, before = given(*shape)
    leaves = content.requires_grad_(), by_distance.requires_grad_()
    ours, theirs = relative_softmax(content, by_distance, before), plain(content, by_distance, before)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(content)
    torch.testing.assert_close(
        torch.autograd.grad((ours * weights).sum(), leaves), torch.autograd.grad((theirs * weights).sum(), leaves)
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("leading", [(), (3,)])
def test_the_kernels(shape: tuple[int, ...], leading: tuple[int, ...]) -> None:
    content, by_distance, before = given(*shape, *leading)
    expected = relative_softmax(content, by_distance, before)
    torch.testing.assert_close(relative_softmax_kernel.forward(content, by_distance, before), expected)
    gradient = torch.randn_like(content)
    torch.testing.assert_close(
        relative_softmax_kernel.backward(gradient, expected, by_distance.shape[-1], before),
        relative_softmax_backward(gradient, expected, by_distance.shape[-1], before),
    )


def test_under_vmap() -> None:
    content, by_distance, before = given(*SHAPES[2], 3)
    stacked = torch.vmap(lambda content, by_distance: relative_softmax(content, by_distance, before))(
        content, by_distance
    )
    assert torch.equal(stacked, relative_softmax(content, by_distance, before))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of what opcheck itself looks at
def test_as_an_operator() -> None:
    content, by_distance, before = given(*SHAPES[1])
    torch.library.opcheck(relative_softmax, (content.requires_grad_(), by_distance.requires_grad_(), before))
