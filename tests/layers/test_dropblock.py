"""DropBlock: where blocks lie, and how often, so that the realised rate is the one asked for."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autodropout.layers import DropBlock
from autodropout.layers.dropblock import _solve, block_density, covering
from autodropout.patterns import rare
from autodropout.patterns.bernoulli import _limit, two_rates


def run(rule: DropBlock, h: Tensor, rate: float, seed: int = 3) -> Tensor:
    return rule(h, torch.tensor(rate), torch.tensor(seed))


def sides(height: int, width: int, block: int) -> tuple[int, int, int, int]:
    return height, width, min(block, height), min(block, width)


CELLS = st.integers(1, 12)


@given(CELLS, CELLS, st.integers(1, 14), st.sampled_from([0.1, 0.5, 0.9]))
@settings(max_examples=50)
def test_a_block_lies_right_of_its_corner_and_below(height: int, width: int, block: int, rate: float) -> None:
    """Cell by cell as max-pooling finds it, and rescaled by what is left."""
    _, _, rows, columns = sides(height, width, block)
    density = block_density(height, width, rows, columns, torch.tensor(rate))
    corners = rare((2, 3, height - rows + 1, width - columns + 1), density, torch.tensor(3))
    around = F.pad(corners.float(), (columns - 1, columns - 1, rows - 1, rows - 1))
    kept = F.max_pool2d(around, (rows, columns), stride=1) == 0
    expected = torch.where(kept, kept.numel() / max(1, int(kept.sum())), 0.0)
    torch.testing.assert_close(run(DropBlock(block), torch.ones(2, 3, height, width), rate), expected)


@given(CELLS, CELLS, st.integers(1, 14))
@settings(max_examples=50)
def test_how_many_corners_cover_a_cell(height: int, width: int, block: int) -> None:
    """By counting them."""
    _, _, rows, columns = sides(height, width, block)
    counted: dict[int, int] = {}
    for y, x in product(range(height), range(width)):
        places = product(range(height - rows + 1), range(width - columns + 1))
        count = sum(top <= y < top + rows and left <= x < left + columns for top, left in places)
        counted[count] = counted.get(count, 0) + 1
    found: dict[int, float] = {}
    for count, share in zip(*covering(height, width, rows, columns, torch.device("cpu")), strict=True):
        found[int(count)] = found.get(int(count), 0.0) + float(share)
    assert found == pytest.approx({count: cells / (height * width) for count, cells in counted.items()})


@pytest.mark.parametrize("rate", [0.0, 1e-5, 0.02, 0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("size", [(7, 7), (8, 9), (56, 56), (3, 20), (1, 1)], ids=str)
def test_the_density_gives_the_rate(size: tuple[int, int], rate: float) -> None:
    """Exactly, by what it means for a cell that so many corners could cover."""
    given = sides(*size, 7)
    density = block_density(*given, torch.tensor(rate)).double()
    counts, shares = covering(*given, torch.device("cpu"))
    assert 0 <= density <= 1
    assert float((shares * (1 - (1 - density) ** counts)).sum()) == pytest.approx(rate, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("size", [7, 8, 14, 28, 56])
@pytest.mark.parametrize("block", [1, 2, 3, 7, 9])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropblock_realises_its_rate(size: int, block: int, rate: float) -> None:
    """50 comparisons, p of 0.001 over all: 4.3 standard errors, the map being the sampling unit."""
    units = 6000 if size < 28 else 600
    h = torch.ones(units // 10, 10, size, size)
    shares = (run(DropBlock(block), h, rate) == 0).double().mean((2, 3)).flatten()
    assert abs(shares.mean() - rate) < 4.3 * shares.std() / units**0.5 + 1e-4


@pytest.mark.parametrize("rate", [0.02, 0.0005])
def test_small_rates_are_realised(rate: float) -> None:
    """Of blocks whose corners are rarer than a draw of 16 bits can say; 4.3 standard errors, the map being the unit."""
    shares = (run(DropBlock(7), torch.ones(200, 100, 28, 28), rate) == 0).double().mean((2, 3)).flatten()
    assert abs(shares.mean() - rate) < 4.3 * shares.std() / len(shares) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_operator_is_well_formed(dtype: torch.dtype) -> None:
    rate = torch.tensor(0.3, dtype=dtype)
    torch.library.opcheck(torch.ops.autodropout.block_density.default, (8, 9, 7, 7, rate))


@pytest.mark.parametrize("rate", [0.0, 1e-5, 0.3, 0.999, 1.0])
@pytest.mark.parametrize("size", [(7, 7), (8, 9), (56, 56), (3, 20)], ids=str)
def test_torch_solves_as_numpy_does(size: tuple[int, int], rate: float) -> None:
    """The one on a GPU without Triton, the other on a CPU."""
    given = sides(*size, 7)
    solved = _solve(torch, *covering(*given, torch.device("cpu")), torch.tensor(rate).double())
    torch.testing.assert_close(solved.float(), block_density(*given, torch.tensor(rate)), rtol=1e-6, atol=1e-12)


def limits(densities: Any) -> Tensor:
    """What the 16 bits of the two draws of a corner are below; nothing else of a density is seen in a mask."""
    first, second = two_rates(torch.as_tensor(densities, dtype=torch.float32))
    return torch.stack([_limit(first), _limit(second)])


class Elsewhere:
    """Logarithms and powers of another machine: a unit in the last place above, below, or the same."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.draw = draw

    def __getattr__(self, name: str) -> Any:
        of = getattr(np, name)
        return lambda x: of(x) * (1 + self.draw.integers(-1, 2, np.shape(x)) * 2.0**-52)


@pytest.mark.parametrize("size", [(7, 7), (21, 14), (32, 32), (56, 56)], ids=str)
def test_other_roundings_draw_the_same(size: tuple[int, int]) -> None:
    """Of logarithms, powers and sums: rates drawn at random have the same two limits."""
    draw = np.random.default_rng(0)
    counts, shares = (part.numpy() for part in covering(*sides(*size, 7), torch.device("cpu")))
    here, there = [], []
    for rate in 10 ** draw.uniform(-6, 0, 400):
        order = draw.permutation(len(counts))
        here.append(_solve(np, counts, shares, rate))
        there.append(_solve(Elsewhere(draw), counts[order], shares[order], rate))
    assert here != there
    assert torch.equal(limits(here), limits(there))


@pytest.mark.parametrize("rate", [0.0005, 0.3, 1.0])
def test_where_a_gpu_is_asked_for_the_same_bits(rate: float) -> None:
    """As `tests/gpu/test_cuda_kernels.py` does: at these rates a hundred float32 on either side draw the same."""
    density = block_density(*sides(21, 14, 7), torch.tensor(rate))
    around = (density.view(torch.int32) + torch.arange(-100, 101, dtype=torch.int32)).view(torch.float32).clamp(max=1)
    assert (limits(around) == limits(density)[:, None]).all()


@pytest.mark.parametrize("shape", [(0, 3, 7, 7), (2, 0, 7, 7), (2, 3, 0, 5), (2, 3, 5, 0)], ids=str)
def test_maps_without_cells(shape: tuple[int, ...]) -> None:
    assert run(DropBlock(7), torch.ones(shape), 0.3).shape == shape


@pytest.mark.parametrize("size", [(5, 5), (9, 4), (4, 9), (9, 8)], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_compiled_for_any_size_sizes_stay_simple(size: tuple[int, int], layout: torch.memory_format) -> None:
    """Of a minimum of sizes, and all that follows from it, Inductor would compile for minutes."""
    shapes: list[str] = []

    def backend(module: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        found = (node.meta.get("example_value") for node in module.graph.nodes)
        shapes.extend(str(value.shape) for value in found if isinstance(value, Tensor))
        return module

    h = torch.randn(2, 3, *size).contiguous(memory_format=layout)
    compiled = torch.compile(lambda h: run(DropBlock(7), h, 0.3), fullgraph=True, dynamic=True, backend=backend)
    got = compiled(h)
    assert torch.equal(got, run(DropBlock(7), h, 0.3))
    assert got.stride() == h.stride()
    assert any("s" in shape for shape in shapes)
    assert not [shape for shape in shapes if "Min(" in shape or "Max(" in shape]


def test_block_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1 cell, got 0"):
        DropBlock(0)
