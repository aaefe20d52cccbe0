"""Masks of heads put on tokens: as an operator, and its kernel in Triton's interpreter and on a CUDA device."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autodropout.layers import SequenceRule
from autodropout.layers.drop import scale_of
from autodropout.patterns.bits import sequence_bits
from autodropout.patterns.by_head import put_by_head
from autodropout.patterns.kernels import by_head as kernels
from autodropout.spaces import SequencePattern

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RULE = SequenceRule(SequencePattern.decode((1, 0, 0, 0)))  # of which only the kind matters
SHAPES = [(1, 1, 1, 1), (2, 3, 5, 4), (2, 9, 2, 38), (3, 8, 4, 32), (1, 17, 3, 9), (2, 70, 10, 38), (1, 4, 33, 16)]
"""Samples, tokens, heads, channels of one."""


def mask(
    samples: int, length: int, heads: int, size: int, children: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Bits, how many values they keep, and the scale."""
    tokens, seed = torch.tensor([3, 2, 0, 0], dtype=torch.int32), torch.tensor(5)
    given = tokens, torch.tensor(0.4), seed
    if children is not None:
        given = tokens.expand(children, 4), torch.full((children,), 0.4), seed + torch.arange(children)
    shape = [samples, heads, length, size]
    bits, kept = sequence_bits(*given, 7, shape)
    return bits, kept, scale_of(torch.full_like(kept, torch.Size(shape).numel(), dtype=torch.float32), kept)


def plain(h: Tensor, bits: Tensor, kept: Tensor, heads: int) -> Tensor:
    """One child's, by way of a view by heads."""
    return RULE.put(h.unflatten(-1, (heads, -1)).transpose(1, 2), bits, kept).transpose(1, 2).flatten(2)


def dense(h: Tensor) -> Tensor:
    return h


def narrowed(h: Tensor) -> Tensor:
    """In rows that are four values longer."""
    return torch.nn.functional.pad(h, (0, 4))[..., :-4]


def shifted(h: Tensor) -> Tensor:
    """In rows that are one value longer, without the first: nothing begins at a round address."""
    return torch.nn.functional.pad(h, (1, 0))[..., 1:]


def time_first(h: Tensor) -> Tensor:
    return h.transpose(-3, -2).contiguous().transpose(-3, -2)


def spread(h: Tensor) -> Tensor:
    """Channels apart, tokens side by side."""
    return h.mT.contiguous().mT


LAYOUTS = [dense, narrowed, shifted, time_first, spread]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_it_is_the_plain_one_with_its_gradients(shape: tuple[int, ...], layout: Callable, dtype: torch.dtype) -> None:
    samples, length, heads, size = shape
    bits, kept, scale = mask(*shape)
    h = layout(torch.randn(samples, length, heads * size, dtype=dtype)).requires_grad_()
    ours, theirs = put_by_head(h, bits, scale, heads), plain(h, bits, kept, heads)
    assert torch.equal(ours, theirs)
    assert ours.is_contiguous()
    weights = torch.randn_like(ours)
    (gradient,), (expected,) = (torch.autograd.grad((found * weights).sum(), h) for found in (ours, theirs))
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("children", [None, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_kernel(shape: tuple[int, ...], layout: Callable, dtype: torch.dtype, children: int | None) -> None:
    samples, length, heads, size = shape
    bits, _, scale = mask(*shape, children)
    leading = () if children is None else (children,)
    h = layout(torch.randn(*leading, samples, length, heads * size, dtype=dtype))
    expected = put_by_head(h, bits, scale, heads)
    found = kernels.put_by_head(layout(h.to(DEVICE)), bits.to(DEVICE), scale.to(DEVICE), heads)
    assert found.is_contiguous()
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("put", [put_by_head, kernels.put_by_head])
def test_what_is_dropped_is_gone(put: Callable) -> None:
    """An infinity, and what is no number."""
    bits, kept, scale = mask(2, 9, 2, 38)
    h = torch.full((2, 9, 76), torch.inf, device=DEVICE)
    h[..., ::2] = torch.nan
    masked = put(h, bits.to(DEVICE), scale.to(DEVICE), 2)
    assert masked.eq(0).sum() == h.numel() - kept > 0
    everything = torch.full_like(bits, 255)  # and what is no channel
    assert not put(h, everything.to(DEVICE), scale.to(DEVICE), 2).any()


@pytest.mark.parametrize("put", [put_by_head, kernels.put_by_head])
def test_nothing_to_mask(put: Callable) -> None:
    bits = torch.empty(0, 2, 3, 1, dtype=torch.uint8, device=DEVICE)
    assert put(torch.empty(0, 3, 8, device=DEVICE), bits, torch.ones((), device=DEVICE), 2).shape == (0, 3, 8)


def test_under_vmap() -> None:
    """Whichever of its inputs a child has for itself, and wherever children are."""
    bits, _, scale = mask(2, 9, 3, 6, children=4)
    h = torch.randn(4, 2, 9, 18)
    expected = put_by_head(h, bits, scale, 3)
    assert torch.equal(torch.stack([put_by_head(*child, 3) for child in zip(h, bits, scale, strict=True)]), expected)

    def put(h: Tensor, bits: Tensor, scale: Tensor) -> Tensor:
        return put_by_head(h, bits, scale, 3)

    assert torch.equal(torch.vmap(put)(h, bits, scale), expected)
    assert torch.equal(torch.vmap(put, in_dims=(1, 2, 0))(h.movedim(0, 1), bits.movedim(0, 2), scale), expected)
    shared = torch.vmap(put, in_dims=(None, 0, 0))(h[1], bits, scale)
    assert torch.equal(shared[1], expected[1])
    assert torch.equal(shared[2], put(h[1], bits[2], scale[2]))
    assert torch.equal(torch.vmap(put, in_dims=(0, None, None))(h, bits[3], scale[3])[3], expected[3])
    nested = torch.vmap(torch.vmap(put))(*(value.unflatten(0, (2, 2)) for value in (h, bits, scale)))
    assert torch.equal(nested.flatten(0, 1), expected)


def test_gradients_under_vmap() -> None:
    bits, _, scale = mask(2, 9, 3, 6, children=4)
    h = torch.randn(4, 2, 9, 18, requires_grad=True)
    masked = torch.vmap(lambda h, bits, scale: put_by_head(h, bits, scale, 3))(h, bits, scale)
    (gradient,) = torch.autograd.grad(masked.square().sum(), h)
    torch.testing.assert_close(gradient, put_by_head(2 * masked.detach(), bits, scale, 3))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of what opcheck itself looks at
@pytest.mark.parametrize("children", [None, 2])
@pytest.mark.parametrize("layout", [dense, narrowed])
def test_as_an_operator(layout: Callable, children: int | None) -> None:
    bits, _, scale = mask(2, 4, 2, 6, children)
    leading = () if children is None else (children,)
    h = layout(torch.randn(*leading, 2, 4, 12)).detach().requires_grad_()
    torch.library.opcheck(put_by_head, (h, bits, scale, 2))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device on this machine")
class TestOnTheDevice:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize(("length", "heads", "size"), [(70, 10, 38), (140, 10, 38), (140, 8, 32), (70, 5, 9)])
    def test_realistic_shapes(self, length: int, heads: int, size: int, layout: Callable, dtype: torch.dtype) -> None:
        bits, _, scale = mask(4, length, heads, size, children=3)
        h = layout(torch.randn(3, 4, length, heads * size, dtype=dtype))
        found = put_by_head(layout(h.to(DEVICE)), bits.to(DEVICE), scale.to(DEVICE), heads)
        assert torch.equal(found.cpu(), put_by_head(h, bits, scale, heads))
