"""Triton's kernels on a CUDA device: the CPU's masks to the bit, gradients, one kernel for all patterns.

The interpreter has shown the arithmetic (`tests/patterns/test_kernel_*.py`); here is the compiled code, at real sizes
and in bfloat16. Run by `make test-gpu`.
"""

import random

import pytest
import torch
from scipy import stats
from torch import Tensor

import autodropout as ad
from autodropout.layers import BASELINES, ConvRule, Drop, PatternRule, SequenceRule
from autodropout.models import wide_resnet
from autodropout.patterns import bernoulli, switch
from autodropout.patterns.bernoulli import _limit
from autodropout.patterns.bits import conv_bits, conv_bits_together, put_on, sequence_bits
from autodropout.patterns.draws import GOLDEN, mix
from autodropout.patterns.kernels import apply, conv, sequence
from autodropout.spaces import ConvPattern, SequencePattern

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),  # advice, on every compilation
]
KERNELS = (conv._draw, conv._cover, apply._apply_last, apply._apply_rows, sequence._draw)


def conv_rule(r: random.Random) -> ConvRule:
    pattern = ConvPattern.decode(tuple(r.randrange(len(token.values)) for token in ConvPattern.tokens))
    return ConvRule(pattern, (r.choice([7, 8, 32, 56]),) * 2)


def sequence_rule(r: random.Random) -> SequenceRule:
    pattern = SequencePattern.decode(tuple(r.randrange(len(token.values)) for token in SequencePattern.tokens))
    return SequenceRule(pattern)


def tokens_of(rule: PatternRule) -> Tensor:
    return torch.tensor(rule.tokens(), dtype=torch.int32)


def compiled_kernels() -> int:
    return sum(len(cache[0]) for kernel in KERNELS for cache in kernel.device_caches.values())


@pytest.mark.parametrize("number", range(60))
def test_convnet_masks_are_the_cpus(number: int) -> None:
    r = random.Random(number)
    shape = r.choice([[3, 64, 32, 32], [2, 16, 56, 56], [5, 300, 7, 7], [1, 3, 5, 9], [2, 7, 33, 20], [64, 2304, 7, 7]])
    tokens, rate, seed = (
        tokens_of(conv_rule(r)),
        torch.tensor(r.choice([0.05, 0.2, 1.0])),
        torch.tensor(r.randrange(2**62)),
    )
    stream, last = r.randrange(-(2**63), 2**63), r.random() < 0.5
    here = conv_bits(tokens, rate, seed, stream, shape, last)
    there = conv_bits(tokens.cuda(), rate.cuda(), seed.cuda(), stream, shape, last)
    assert torch.equal(here[0], there[0].cpu())
    assert torch.equal(here[1], there[1].cpu())


@pytest.mark.parametrize("number", range(12))
def test_convnet_masks_drawn_together_are_the_cpus(number: int) -> None:
    r = random.Random(number)
    channels = [r.choice([16, 32, 64, 1280]) for _ in range(r.randint(1, 24))]
    tokens = torch.stack([tokens_of(conv_rule(r)) for _ in channels])
    rates = torch.tensor([r.choice([0.05, 0.2, 1.0]) for _ in channels])
    sites = torch.tensor([[count, r.randrange(-(2**63), 2**63)] for count in channels])
    shape = (r.choice([1, 16, 128]), channels, r.choice([(8, 8), (7, 7), (32, 32)]), r.random() < 0.5)
    seed = torch.tensor(r.randrange(2**62))
    here = conv_bits_together(tokens, rates, sites, seed, *shape)
    there = conv_bits_together(tokens.cuda(), rates.cuda(), sites.cuda(), seed.cuda(), *shape)
    assert torch.equal(here[0], there[0].cpu())
    assert torch.equal(here[1], there[1].cpu())


@pytest.mark.parametrize("number", range(60))
def test_transformer_masks_are_the_cpus(number: int) -> None:
    r = random.Random(number)
    shape = r.choice([[4, 70, 256], [2, 10, 70, 38], [2, 10, 70, 140], [3, 1, 1], [2, 77, 9], [2, 512, 1024]])
    children = r.choice([0, 1, 3])
    stacked = [tokens_of(sequence_rule(r)) for _ in range(max(1, children))]
    tokens = torch.stack(stacked) if children else stacked[0]
    rate = torch.full((children,) if children else (), r.choice([0.05, 0.2, 1.0]))
    seed = torch.randint(0, 2**62, (children,) if children else (), generator=torch.Generator().manual_seed(number))
    stream = r.randrange(-(2**63), 2**63)
    here = sequence_bits(tokens, rate, seed, stream, shape)
    there = sequence_bits(tokens.cuda(), rate.cuda(), seed.cuda(), stream, shape)
    assert torch.equal(here[0], there[0].cpu())
    assert torch.equal(here[1], there[1].cpu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("number", range(12))
def test_a_drop_is_the_plain_one(number: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients, from one seed, in all layouts."""
    r = random.Random(number)
    if number % 2:
        h = torch.randn(r.choice([(4, 64, 32, 32), (3, 10, 7, 7), (2, 33, 14, 9)]), device="cuda", dtype=dtype)
        rule, h = conv_rule(r), h.contiguous(memory_format=r.choice([torch.channels_last, torch.contiguous_format]))
    else:
        h = torch.randn(r.choice([(4, 70, 256), (2, 33, 10, 38)]), device="cuda", dtype=dtype)
        rule, h = sequence_rule(r), h.transpose(1, 2) if h.dim() == 4 else h
    drop = Drop(rule, 0.5, number, h.device, live=rule.pattern.is_none)
    drop.noise = torch.tensor(r.randrange(2**62), device="cuda")
    h.requires_grad_()
    weights = torch.randn_like(h)
    got = drop(h)
    (gradient,) = torch.autograd.grad((got * weights).sum(), h)
    monkeypatch.setattr(switch, "TRITON", False)
    drop.live = False
    expected = h if rule.pattern.is_none else drop(h)
    (other,) = torch.autograd.grad((expected * weights).sum(), h)
    assert torch.equal(got, expected)
    assert torch.equal(gradient, other)


@pytest.mark.parametrize("rate", [0.0005, 0.3, 1.0])
@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_the_cpus(name: str, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one seed the same cells, by kernels and by plain PyTorch on the device."""
    shape = (4, 33, 21, 14)  # (N, C, H, W), or (N, heads, T, C)
    rule, h = ad.baseline(name).rule, torch.ones(shape)
    dropped = rule(h, torch.tensor(rate), torch.tensor(5)) == 0
    for triton in (True, False):
        monkeypatch.setattr(switch, "TRITON", triton)
        there = rule(h.cuda(), torch.tensor(rate).cuda(), torch.tensor(5).cuda())
        assert torch.equal(there.cpu() == 0, dropped)


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize("name", BASELINES)
def test_captured_baselines_follow_seed_and_rate(name: str, triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kernels and by plain PyTorch: a replay drops what eager code does from that seed, at rates 0 and 1 as well."""
    monkeypatch.setattr(switch, "TRITON", triton)
    h = torch.ones(4, 33, 21, 14, device="cuda")
    drop, eager = (Drop(ad.baseline(name).rule, 0.3, 2, h.device) for _ in range(2))
    drop.noise = eager.noise = torch.zeros((), dtype=torch.int64, device="cuda")
    eager(h)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = drop(h)
    for seed, rate in enumerate((0.3, 0.0, 0.1, 1.0)):
        drop.noise.fill_(seed)
        drop.set_rate(rate)
        eager.set_rate(rate)
        graph.replay()
        assert torch.equal(out, eager(h))
        assert rate != 1.0 or not out.any()


def test_draws_beyond_what_32_bits_number() -> None:
    if torch.cuda.mem_get_info()[0] < 8 << 30:
        pytest.skip("too little memory")
    count, rate, seed = 2**31 + 4097, torch.tensor(0.3), torch.tensor(5)
    drawn = bernoulli((count,), rate.cuda(), seed.cuda())
    words = torch.arange((count - 4096) // 4, count // 4)
    expected = mix(words * GOLDEN + mix(seed)).view(torch.int16) < _limit(rate)
    found = drawn[4 * int(words[0]) : count // 4 * 4].cpu()
    assert torch.equal(found, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device on this machine")
@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize("name", BASELINES)
def test_baselines_on_another_device(name: str, triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "TRITON", triton)
    rule, given = ad.baseline(name).rule, (torch.ones(4, 33, 21, 14), torch.tensor(0.3), torch.tensor(5))
    there = rule(*(value.to("cuda:1") for value in given))
    assert there.device == torch.device("cuda", 1)
    assert torch.equal(there.cpu() == 0, rule(*given) == 0)


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    h = torch.zeros(1, device="cuda")
    assert switch.on_gpu(h)
    assert not switch.on_gpu(h.double())
    monkeypatch.setattr(switch, "TRITON", False)
    assert not switch.on_gpu(h)


def test_as_operators() -> None:
    tokens = torch.tensor([2, 1, 2, 1, 0, 0, 0, 10, 10], dtype=torch.int32, device="cuda")
    rate, seed = torch.tensor(0.3, device="cuda"), torch.tensor(3, device="cuda")
    torch.library.opcheck(conv_bits, (tokens, rate, seed, 7, [2, 4, 10, 10], True))
    torch.library.opcheck(sequence_bits, (tokens[:4], rate, seed, 7, [2, 20, 9]))
    bits, kept = conv_bits(tokens, rate, seed, 7, [2, 4, 10, 10], True)
    h = torch.randn(2, 4, 10, 10, device="cuda").contiguous(memory_format=torch.channels_last).requires_grad_()
    torch.library.opcheck(put_on, (h, bits, kept, True))
    torch.library.opcheck(torch.ops.autodropout.bernoulli.default, (seed, rate, [3, 7]))
    torch.library.opcheck(torch.ops.autodropout.bernoulli.default, (seed.repeat(3), rate.repeat(3), [3, 7]))
    torch.library.opcheck(torch.ops.autodropout.rare.default, (seed, rate, [3, 7]))
    torch.library.opcheck(torch.ops.autodropout.block_density.default, (8, 9, 7, 7, rate))


def test_one_kernel_serves_all_patterns_and_rates() -> None:
    r = random.Random(0)
    maps = torch.randn(8, 32, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    tokens = torch.randn(4, 70, 64, device="cuda")
    drops = [Drop(conv_rule(r), 0.2, 1, maps.device, live=True), Drop(sequence_rule(r), 0.2, 1, maps.device, live=True)]
    for drop, h in zip(drops, (maps, tokens), strict=True):
        drop(h)
    before = compiled_kernels()
    for _ in range(50):
        for drop, h, rule in zip(drops, (maps, tokens), (conv_rule(r), sequence_rule(r)), strict=True):
            drop.set_rule(rule)
            drop.set_rate(r.random())
            drop(h)
    assert compiled_kernels() == before > 0


@pytest.mark.parametrize("compiled", [False, True])
def test_drawn_together_no_site_draws_again(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images come as (N, C, H, W), weights in channels_last: so are the maps, and the masks made for them."""
    model = wide_resnet(10, 1, classes=5).cuda().to(memory_format=torch.channels_last)
    images = torch.randn(4, 3, 16, 16, device="cuda")
    on = ad.attach(model, ad.space(model, images).sample(seed=0), rate=0.5, example=images, live=True)
    on.draw_from(torch.tensor(5, device="cuda"))
    on.draw_together()
    drawn: list[tuple[int, ...]] = []
    bits = ConvRule.bits
    monkeypatch.setattr(ConvRule, "bits", lambda self, h, *rest: (drawn.append(h.stride()), bits(self, h, *rest))[1])
    with torch.autocast("cuda", torch.bfloat16):
        (torch.compile(model, backend="aot_eager") if compiled else model)(images)
    assert not drawn


def share_dropped(ways: dict[str, list[float]]) -> None:
    """The same share is dropped in all ways: Kruskal and Wallis, 100 patterns at once, corrected for their number."""
    assert stats.kruskal(*ways.values()).pvalue > 0.01 / 100, ways


@pytest.mark.parametrize("kind", ["convnet", "transformer"])
def test_statistics_eager_compiled_and_captured(kind: str) -> None:
    """100 patterns, 24 masks in each of three ways; the shares that they drop have one distribution."""
    r = random.Random(1)
    shape, make = ((8, 16, 16, 16), conv_rule) if kind == "convnet" else ((8, 70, 32), sequence_rule)
    h = torch.ones(shape, device="cuda")
    drop = Drop(make(r), 0.3, 5, h.device, live=True)
    torch.compiler.reset()
    compiled = torch.compile(lambda h: drop(h), fullgraph=True)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        drop(h)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        static = drop(h)

    def captured(h: Tensor) -> Tensor:
        graph.replay()
        return static

    for _ in range(100):
        drop.set_rule(make(r))
        ways = {
            name: [(function(h) == 0).float().mean().item() for _ in range(24)]
            for name, function in (("eager", drop), ("compiled", compiled), ("captured", captured))
        }
        if any(len(set(shares)) > 1 for shares in ways.values()):  # a pattern that drops nothing is the same throughout
            share_dropped(ways)
        else:
            assert len({shares[0] for shares in ways.values()}) == 1


def test_ten_thousand_steps() -> None:
    """No NaN, no growth of memory, the realised rate right; and again the same with the same seed."""
    h = torch.randn(16, 32, 16, 16, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    pattern = ConvPattern(
        size=4, stride=1, repeat=32, share_c=False, residual=False, rotate=0, shear_x=0.0, shear_y=0.0
    )
    drop = Drop(ConvRule(pattern, (16, 16)), 0.2, 3, h.device)
    h.requires_grad_()

    def step() -> Tensor:
        out = drop(h)
        (gradient,) = torch.autograd.grad(out.float().square().sum(), h)
        return torch.stack([(out == 0).float().mean(), out.detach().float().sum(), gradient.float().sum()])

    def run() -> Tensor:
        torch.manual_seed(0)
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step()
        total, held = torch.zeros(3, device="cuda", dtype=torch.float64), []
        for number in range(10_000):
            graph.replay()
            total += result
            if number % 2_500 == 2_499:
                held.append(torch.cuda.memory_allocated())
        assert len(set(held)) == 1
        return total / 10_000

    first = run()
    assert first.isfinite().all()
    alone = ConvRule(pattern, (16, 16))(
        torch.ones(16, 32, 16, 16), torch.tensor(1.0), torch.tensor(1)
    )  # what a unit that is hit loses: nearly everything, since the tiles leave gaps of one cell
    share = (alone == 0).float().mean().item()
    assert first[0].item() == pytest.approx(0.2 * share, rel=0.02)
    assert torch.equal(first, run())
