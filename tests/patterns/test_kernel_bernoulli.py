"""Triton's independent draws, and the density of DropBlock's blocks: plain PyTorch's, in Triton's interpreter and on a
CUDA device."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autodropout.layers import dropblock
from autodropout.patterns import bernoulli, rare
from autodropout.patterns.kernels import bernoulli as kernels
from autodropout.patterns.kernels.block_density import block_density

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

CHILD = st.tuples(st.sampled_from([0.0, 1e-6, 0.001, 0.2, 0.5, 1.0]), st.integers(-(2**63), 2**63 - 1))
SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=3)


@given(st.lists(CHILD, min_size=1, max_size=3), SHAPES)
@example([(0.3, 1), (0.6, 2)], [2, 2049])  # of which a program makes 4096, and lines do not end with words
@settings(max_examples=40)
def test_draws_are_the_plain_ones(children: list[tuple[float, int]], shape: list[int]) -> None:
    """Of one child, of several side by side, and of rare ones."""
    rates, seeds = (torch.tensor(of) for of in zip(*children, strict=True))
    together = kernels.bernoulli(seeds.to(DEVICE), rates.to(DEVICE), shape).cpu()
    assert together.is_contiguous(), "as compiled code was told"
    for number, (rate, seed) in enumerate(zip(rates, seeds, strict=True)):
        plain = bernoulli(shape, rate, seed)
        assert torch.equal(together[number], plain)
        assert torch.equal(kernels.bernoulli(seed.to(DEVICE), rate.to(DEVICE), shape).cpu(), plain)
        both = kernels.rare(seed.to(DEVICE), rate.to(DEVICE), shape).cpu()
        assert torch.equal(both, rare(shape, rate, seed))


@pytest.mark.parametrize("rate", [0.0, 1e-5, 0.02, 0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("block", [7, 60])
@pytest.mark.parametrize("size", [(7, 7), (8, 9), (56, 56), (3, 20), (1, 1), (130, 90)], ids=str)
def test_the_density_is_the_plain_one(size: tuple[int, int], block: int, rate: float) -> None:
    given = (*size, *(min(block, cells) for cells in size))
    found = block_density(*given, torch.tensor(rate, device=DEVICE), dropblock.NEWTON, dropblock.LEAST)
    torch.testing.assert_close(found.cpu(), dropblock.block_density(*given, torch.tensor(rate)), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("size", [(2048, 2048), (300, 20_000)], ids=str)
def test_the_density_of_blocks_of_any_size(size: tuple[int, int]) -> None:
    """Of more kinds of cells than Triton's tensors can have values."""
    given = (*size, size[0] // 2, size[1] // 2)
    found = dropblock._on_gpu(*given, torch.tensor(0.3, device=DEVICE))
    torch.testing.assert_close(found.cpu(), dropblock.block_density(*given, torch.tensor(0.3)), rtol=1e-6, atol=0)
