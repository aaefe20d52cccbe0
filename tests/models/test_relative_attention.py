"""Relative attention as an operator, and its kernels in Triton's interpreter."""

from typing import Any

import pytest
import torch
from torch import Tensor

from autodropout.models import relative_attention_backward_kernel, relative_attention_kernel
from autodropout.models.relative_attention import aligned, relative_attention, relative_attention_backward
from autodropout.patterns.bits import sequence_dropped

SHAPES = [
    (1, 1, 1, 1, 0, 1, 0), (2, 3, 4, 4, 0, 5, 0), (2, 2, 5, 9, 3, 8, 2), (3, 2, 7, 12, 5, 16, 0),
    (1, 2, 33, 50, 17, 6, 5), (2, 1, 18, 20, 2, 38, 0), (1, 2, 35, 70, 35, 38, 1), (1, 3, 16, 33, 16, 22, 2),
]  # fmt: skip
"""Samples, heads, words, keys, words of memory, channels of a head, columns of distances beyond those needed."""
Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, int, int]


def given(shape: tuple[int, ...], *leading: int, masked: bool = True, **kwargs: Any) -> Given:
    samples, heads, length, reach, before, size, more = shape
    query = torch.randn(*leading, samples, length, heads * size, **kwargs) * size**-0.5
    key, value = (torch.randn(*leading, samples, reach, heads * size, **kwargs) for _ in range(2))
    by_distance = torch.randn(*leading, heads, samples * length, reach + 1 + more, **kwargs)
    bits = torch.randint(256, (*leading, samples, heads, length, (reach + 7) // 8), dtype=torch.uint8)
    scale = 1 + torch.rand(leading)
    mask = (bits, scale) if masked else (None, None)
    return query, key, value, by_distance, *mask, heads, before


def composed(
    query: Tensor, key: Tensor, value: Tensor, by_distance: Tensor, bits: Tensor | None, scale: Tensor | None,
    heads: int, before: int,
) -> Tensor:  # fmt: skip
    """The plain arithmetic that it takes the place of."""
    query, key, value = (h.unflatten(-1, (heads, -1)).transpose(-3, -2) for h in (query, key, value))
    by_query = by_distance.unflatten(1, (len(query), -1)).transpose(0, 1)
    future = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(before + 1)
    scores = query @ key.mT + aligned(by_query)[..., : key.shape[-2]]
    shares = scores.masked_fill(future, -torch.inf).softmax(-1)
    if bits is not None and scale is not None:
        shares = torch.where(sequence_dropped(bits, key.shape[-2]), 0.0, shares * scale)
    return (shares @ value).transpose(-3, -2).flatten(-2)


def apart(h: Tensor) -> Tensor:
    """The same values in rows that are wider than what is read of them."""
    return torch.nn.functional.pad(h, (0, 3), value=torch.nan)[..., : h.shape[-1]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", [True, False])
def test_it_is_what_it_takes_the_place_of_with_its_gradients(shape: tuple[int, ...], masked: bool) -> None:
    inputs = given(shape, masked=masked)
    leaves = [h.requires_grad_() for h in inputs[:4]]
    ours, _ = relative_attention(*inputs)
    theirs = composed(*inputs)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad((ours * weights).sum(), leaves), torch.autograd.grad((theirs * weights).sum(), leaves),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("masked", [True, False])
def test_the_gradients_are_those_of_small_steps(masked: bool) -> None:
    """In float64; a step to the side of what is hidden moves nothing, so its gradient is zero."""
    *inputs, bits, scale, heads, before = given((2, 2, 3, 5, 2, 3, 2), masked=masked, dtype=torch.float64)
    inputs = [h.requires_grad_() for h in inputs]
    assert torch.autograd.gradcheck(lambda *h: relative_attention(*h, bits, scale, heads, before)[0], inputs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("leading", "masked"), [((), True), ((), False), ((2,), True)])
def test_the_kernels(shape: tuple[int, ...], leading: tuple[int, ...], masked: bool) -> None:
    inputs = given(shape, *leading, masked=masked)
    expected = context, logs = relative_attention(*inputs)
    rows = [apart(h) for h in inputs[:3]]
    torch.testing.assert_close(relative_attention_kernel.forward(*rows, *inputs[3:]), expected, rtol=1e-5, atol=1e-5)
    gradient = torch.randn_like(context)
    found = relative_attention_backward_kernel.backward(
        apart(gradient), *rows, *inputs[3:6], context, logs, *inputs[6:]
    )
    assert all(h.is_contiguous() for h in found)
    torch.testing.assert_close(
        found, relative_attention_backward(gradient, *inputs[:6], context, logs, *inputs[6:]), rtol=1e-5, atol=1e-5
    )


OTHER_BLOCKS = [
    (64, 32),
    *(pytest.param(*blocks, marks=pytest.mark.slow) for blocks in ((16, 16), (16, 64), (32, 128))),
]


@pytest.mark.parametrize(("queries", "keys"), OTHER_BLOCKS)
def test_the_kernels_with_other_blocks(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int) -> None:
    """Blocks at the edge and blocks that are seen as a whole, in every order of magnitude."""
    for name, value in {"QUERIES": queries, "KEYS": keys}.items():
        monkeypatch.setattr(relative_attention_kernel, name, value)
        monkeypatch.setattr(relative_attention_backward_kernel, name, min(value, 32) if name == "KEYS" else value)
        monkeypatch.setattr(relative_attention_backward_kernel, f"{name}_AFTER", value)
    for shape in ((1, 1, 70, 140, 70, 7, 3), (1, 2, 70, 70, 0, 16, 1), (2, 2, 70, 140, 70, 38, 3)):
        test_the_kernels(shape, (), True)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_write_every_value(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    """Whatever was in memory before: here what is not a number."""

    def filled(h: Tensor, *size: Any, **kwargs: Any) -> Tensor:
        return h.new_full(size[0] if isinstance(size[0], tuple) else size, torch.nan, **kwargs)

    inputs = given(shape, masked=False)  # with no bits, all that is made is of floating-point numbers
    context, logs = relative_attention(*inputs)
    gradient = torch.randn_like(context)
    expected = relative_attention_backward(gradient, *inputs[:6], context, logs, *inputs[6:])
    monkeypatch.setattr(Tensor, "new_empty", filled)
    found = relative_attention_backward_kernel.backward(gradient, *inputs[:6], context, logs, *inputs[6:])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_kernels_where_all_is_dropped() -> None:
    """Even with a scale of zero nothing is divided by it."""
    query, key, value, by_distance, bits, scale, heads, before = given(SHAPES[3])
    assert bits is not None
    assert scale is not None
    inputs = query, key, value, by_distance, torch.full_like(bits, 255), torch.zeros_like(scale), heads, before
    context, logs = relative_attention_kernel.forward(*inputs)
    gradient = torch.randn_like(query)
    found = relative_attention_backward_kernel.backward(gradient, *inputs[:6], context, logs, heads, before)
    assert all((h == 0).all() for h in (context, *found))


def test_the_kernels_in_half_precision() -> None:
    inputs = given(SHAPES[-2], 2, dtype=torch.float16)
    expected = context, logs = relative_attention(*inputs)
    torch.testing.assert_close(relative_attention_kernel.forward(*inputs), expected, rtol=5e-3, atol=5e-3)
    rest = *inputs[:6], context, logs, *inputs[6:]
    gradient = torch.randn_like(context)
    torch.testing.assert_close(
        relative_attention_backward_kernel.backward(gradient, *rest), relative_attention_backward(gradient, *rest),
        rtol=1e-2, atol=1e-2,
    )  # fmt: skip


@pytest.mark.parametrize("masked", [True, False])
def test_under_vmap(masked: bool) -> None:
    *inputs, heads, before = given(SHAPES[2], 3, masked=masked)
    there = [h for h in inputs if h is not None]
    rest = [None] * (6 - len(there))
    found = torch.vmap(lambda *h: relative_attention(*h, *rest, heads, before))(*there)
    alone = [relative_attention(*(h[child] for h in there), *rest, heads, before) for child in range(3)]
    torch.testing.assert_close(found, tuple(torch.stack(h) for h in zip(*alone, strict=True)))


def test_under_vmap_with_what_all_children_share() -> None:
    """And children along another dimension, with gradients."""
    query, key, value, by_distance, bits, scale, heads, before = given(SHAPES[2])
    queries = torch.stack([query, 2 * query], 1).requires_grad_()
    found, _ = torch.vmap(
        lambda query: relative_attention(query, key, value, by_distance, bits, scale, heads, before), in_dims=1
    )(queries)
    expected = torch.stack(
        [composed(h, key, value, by_distance, bits, scale, heads, before) for h in queries.unbind(1)]
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), queries), torch.autograd.grad(expected.square().sum(), queries),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of what opcheck itself looks at
@pytest.mark.parametrize("masked", [True, False])
def test_as_an_operator(masked: bool) -> None:
    inputs = given(SHAPES[1], masked=masked)
    torch.library.opcheck(relative_attention, (*(h.requires_grad_() for h in inputs[:4]), *inputs[4:]))
    with torch.no_grad():
        context, logs = relative_attention(*inputs)
    rest = *(h.detach() if isinstance(h, Tensor) else h for h in inputs[:6]), context, logs, *inputs[6:]
    torch.library.opcheck(relative_attention_backward, (torch.randn_like(context), *rest))
