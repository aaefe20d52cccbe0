"""What holds for every rule, ours and the peers': dtypes, layouts, gradients, odd shapes, rates up to 1."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autodropout.layers import (
    ConvRule,
    DropBlock,
    DropLayer,
    Dropout,
    Rule,
    SequenceRule,
    SpatialDropout,
    StochasticDepth,
    VariationalDropout,
    WordDropout,
    rescale,
)
from autodropout.patterns import Tiling, conv_mask
from autodropout.spaces import ConvPattern, SequencePattern


def conv_pattern(size: int = 2, share_c: bool = False, rotate: int = 45) -> ConvPattern:
    return ConvPattern(
        size=size, stride=2, repeat=3, share_c=share_c, residual=True, rotate=rotate, shear_x=0.2, shear_y=0.1
    )


CONV_RULES: list[Rule] = [
    ConvRule(conv_pattern(), (10, 10)),
    ConvRule(conv_pattern(share_c=True), (10, 10)),
    Dropout(),
    SpatialDropout(),
    DropBlock(3),
    DropBlock(4),
    StochasticDepth(),
]
SEQUENCE_RULES: list[Rule] = [
    SequenceRule(SequencePattern(size=10, stride=5, share_t=False, share_c=False)),
    SequenceRule(SequencePattern(size=10, stride=5, share_t=True, share_c=False)),
    SequenceRule(SequencePattern(size=20, stride=0, share_t=True, share_c=True)),
    VariationalDropout(),
    WordDropout(),
    Dropout(),
    StochasticDepth(),
]
RULES = [*((rule, (6, 4, 10, 15)) for rule in CONV_RULES), *((rule, (6, 23, 8)) for rule in SEQUENCE_RULES)]
EVERY_RULE = pytest.mark.parametrize(("rule", "shape"), RULES, ids=lambda value: str(value)[:60])


def run(rule: Rule, h: Tensor, rate: float, seed: int = 1) -> Tensor:
    return rule(h, torch.tensor(rate), torch.tensor(seed))


@EVERY_RULE
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_zero_or_rescaled(rule: Rule, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    h = torch.rand(shape).add(0.5).to(dtype)
    out = run(rule, h, 0.4)
    assert out.dtype == dtype
    assert out.shape == h.shape
    kept = out != 0
    assert 0 < kept.double().mean() < 1
    realised = not isinstance(rule, Dropout | SpatialDropout | StochasticDepth | VariationalDropout | WordDropout)
    scale = h.numel() / kept.sum().item() if realised else 1 / 0.6
    torch.testing.assert_close(
        out, torch.where(kept, h.double() * scale, 0).to(dtype), rtol=8e-3 if dtype.itemsize == 2 else 1e-6, atol=0
    )


@EVERY_RULE
def test_gradients_are_those_of_the_mask(rule: Rule, shape: tuple[int, ...]) -> None:
    h = torch.rand(shape, dtype=torch.float64).add(0.5).requires_grad_()
    out = run(rule, h, 0.4)
    grad = torch.randn(shape, dtype=torch.float64)
    out.backward(grad)
    assert h.grad is not None
    torch.testing.assert_close(h.grad, grad * (out / h).detach(), rtol=1e-12, atol=0)


@EVERY_RULE
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rate", [0.05, 0.9, 0.999, 1.0])
def test_never_nan_nor_inf(rule: Rule, shape: tuple[int, ...], dtype: torch.dtype, rate: float) -> None:
    """At most Size(m) is the scale: for a tensor of this size and values of order 1, float16 holds every result."""
    for seed in range(8):
        h = torch.randn(shape).clamp(-4, 4).to(dtype).requires_grad_()
        out = run(rule, h, rate, seed)
        out.sum().backward()
        assert out.isfinite().all()
        assert h.grad is not None
        assert h.grad.isfinite().all()


@pytest.mark.parametrize("rule", [Dropout(), SpatialDropout(), DropBlock(7), StochasticDepth()], ids=str)
def test_a_peers_all_zero_mask_gives_zeros(rule: Rule) -> None:
    assert not run(rule, torch.ones(2, 3, 7, 7, dtype=torch.float16), 1.0).any()


@pytest.mark.parametrize("share_c", [False, True])
def test_our_all_zero_mask_gives_zeros(share_c: bool) -> None:
    """Only a rectangle passed directly can cover a whole map: those of the space leave a fifth of it."""
    h = torch.ones(2, 3, 5, 5, dtype=torch.float16)
    mask, kept = conv_mask(Tiling((9, 9), (1, 1), 1, share_c), h.shape, torch.tensor(1.0), torch.tensor(0))
    assert kept.item() == 0
    assert torch.equal(rescale(h, mask, kept), torch.zeros_like(h))


def test_float16_counts_do_not_overflow() -> None:
    """A float16 sum over this map would be inf; the kept values must come out scaled by about 1."""
    out = run(ConvRule(conv_pattern(size=1), (32, 32)), torch.ones(32, 64, 32, 32, dtype=torch.float16), 0.2)
    assert 1.0 < out.max().item() < 1.2


@pytest.mark.parametrize("rule", CONV_RULES, ids=str)
def test_channels_last_in_channels_last_out(rule: Rule) -> None:
    h = torch.randn(4, 6, 9, 7)
    last = h.contiguous(memory_format=torch.channels_last)
    out = run(rule, last, 0.3)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert run(rule, h, 0.3).is_contiguous()
    if not isinstance(rule, Dropout):  # which draws in the order of memory
        assert torch.equal(out, run(rule, h, 0.3))


@EVERY_RULE
def test_where_nothing_is_all_zero_the_mean_is_preserved(rule: Rule, shape: tuple[int, ...]) -> None:
    """The mean over 400 masks of ones: exact for rescaling by the realised share, 5 standard errors for the others."""
    means = torch.stack([run(rule, torch.ones(shape), 0.3, seed).mean() for seed in range(400)]).double()
    error = (means.mean() - 1).abs().item()
    assert error < max(1e-5, 5 * means.std().item() / 20)


@pytest.mark.parametrize(
    "shape", [(1, 1, 5, 5), (2, 1, 4, 9), (1, 3, 1, 1), (3, 2, 2, 40), (2, 2, 3, 3), (1, 1, 64, 5)]
)
@pytest.mark.parametrize("rule", CONV_RULES, ids=str)
def test_odd_maps(rule: Rule, shape: tuple[int, ...]) -> None:
    out = run(rule, torch.ones(shape), 0.5)
    assert out.shape == shape
    assert out.isfinite().all()
    if isinstance(rule, ConvRule) and min(shape[2:]) < 5:
        assert out.all(), "a side below 5 cells has no rectangle to drop"


@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 71])
@pytest.mark.parametrize("rule", SEQUENCE_RULES, ids=str)
def test_odd_sequences(rule: Rule, length: int) -> None:
    for shape in ((1, length, 1), (2, 3, length, 5)):
        assert run(rule, torch.ones(shape), 0.5).isfinite().all()


def test_a_pattern_moves_with_the_map() -> None:
    """On a map twice as large, rectangles and gaps are twice as large."""
    pattern = ConvPattern(size=1, stride=4, repeat=2, share_c=False, residual=False, rotate=0, shear_x=0, shear_y=0)
    small, large = ConvRule(pattern, (10, 10)).tiling(10, 10), ConvRule(pattern, (10, 10)).tiling(20, 30)
    assert (small.size, small.stride) == ((2, 2), (4, 4))
    assert (large.size, large.stride) == ((4, 6), (8, 12))


@pytest.mark.parametrize("rule", [ConvRule(conv_pattern(), (10, 10)), SpatialDropout(), DropBlock()], ids=str)
def test_a_map_is_needed(rule: Rule) -> None:
    with pytest.raises(ValueError, match=r"\(N, C, H, W\), got \(4, 7\)"):
        run(rule, torch.ones(4, 7), 0.5)


@pytest.mark.parametrize("rule", [VariationalDropout(), WordDropout(), SequenceRule(SequencePattern.none())], ids=repr)
def test_tokens_are_needed(rule: Rule) -> None:
    with pytest.raises(ValueError, match=r"needs a tensor of shape \(\.\.\., T, C\), got \(6,\)"):
        run(rule, torch.ones(6), 0.5)


def test_a_transformer_pattern_of_nothing() -> None:
    h = torch.ones(2, 4, 6)
    assert run(SequenceRule(SequencePattern.none()), h, 0.5) is h


@pytest.mark.parametrize("rate", ["0.1", None, True, 1.5, float("nan")])
def test_what_is_no_rate(rate: object) -> None:
    with pytest.raises(ValueError, match=r"rate must be a number in \[0, 1\], got"):
        DropLayer(Dropout(), rate)


def against(peer: Callable[[Tensor], Tensor], rule: Rule, shape: tuple[int, ...]) -> None:
    """Same values where kept, and the same share dropped, to 5 standard errors of 512 units."""
    theirs, ours = peer(torch.ones(shape)), run(rule, torch.ones(shape), 0.3)
    torch.testing.assert_close(theirs.max(), ours.max())
    assert abs((theirs == 0).double().mean() - (ours == 0).double().mean()) < 5 * (2 * 0.21 / 512) ** 0.5


def test_peers_agree_with_the_libraries() -> None:
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
    against(torch.nn.Dropout(0.3), Dropout(), (64, 8, 6, 6))
    against(torch.nn.Dropout2d(0.3), SpatialDropout(), (64, 8, 6, 6))
    against(torchvision.ops.StochasticDepth(0.3, "row"), StochasticDepth(), (512, 3, 2, 2))
    theirs = torchvision.ops.DropBlock2d(0.1, 7)(torch.ones(200, 10, 56, 56))
    ours = run(DropBlock(7), torch.ones(200, 10, 56, 56), 0.1)
    assert abs((theirs == 0).double().mean() - (ours == 0).double().mean()) < 0.01  # its rate is approximate
