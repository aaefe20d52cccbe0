"""Triton's sequence masks: equal to plain PyTorch bit for bit, in Triton's interpreter and on a CUDA device."""

import random
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from autodropout.patterns import Runs, sequence_mask
from autodropout.patterns.draws import GOLDEN, mix
from autodropout.patterns.kernels import sequence

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Child = tuple[Runs, float, int]  # pattern, rate, seed
DROPOUT = Runs(70, 0)


def tensors(children: list[Child], device: str = DEVICE) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of (K, 4), rates and seeds of (K,)."""
    tokens = [[runs.size, runs.stride, int(runs.share_t), int(runs.share_c)] for runs, _, _ in children]
    rates, seeds = [rate for _, rate, _ in children], [seed for _, _, seed in children]
    return (
        torch.tensor(tokens, dtype=torch.int32).to(device),
        torch.tensor(rates).to(device),
        torch.tensor(seeds).to(device),
    )


def plain(child: Child, stream: int, shape: tuple[int, ...]) -> tuple[Tensor, int]:
    """What a child's bits and count should be: the plain mask, packed by NumPy."""
    runs, rate, seed = child
    if runs.size == 0:
        dropped = torch.zeros(shape, dtype=torch.bool)
    else:
        dropped = ~sequence_mask(runs, shape, torch.tensor(rate), torch.tensor(seed) ^ stream)[0].expand(shape)
    packed = np.packbits(dropped.numpy(), axis=-1, bitorder="little")
    return torch.from_numpy(packed), dropped.numel() - int(dropped.sum())


def check(children: list[Child], stream: int, shape: tuple[int, ...]) -> None:
    bits, kept = sequence.sequence_bits(*tensors(children), stream, shape)
    assert bits.shape == (len(children), *shape[:-1], -(-shape[-1] // 8))
    for number, child in enumerate(children):
        expected, count = plain(child, stream, shape)
        assert torch.equal(bits[number].cpu(), expected), (number, child)
        assert kept[number].item() == count, (number, child)


RUNS = st.builds(
    Runs,
    st.one_of(st.just(0), st.integers(1, 9), st.just(70)),
    st.sampled_from([0, 0, 1, 5]),
    st.booleans(),
    st.booleans(),
)
CHILDREN = st.tuples(RUNS, st.sampled_from([0.0, 0.001, 0.2, 0.5, 1.0]), st.integers(-(2**63), 2**63 - 1))
SHAPES = st.tuples(
    st.integers(1, 3), st.integers(1, 20), st.sampled_from([1, 2, 3, 7, 8, 9, 12, 24, 31, 32, 64, 70, 96])
)


@given(
    children=st.lists(CHILDREN, min_size=1, max_size=3),
    stream=st.one_of(st.integers(-1, 1), st.integers(-(2**63), 2**63 - 1)),
    shape=SHAPES,
    programs=st.sampled_from([1, 4, 4096]),
)
@example([(DROPOUT, 1.0, 3)], 0, (1, 3, 270), 4096)  # bytes, with padding bits
@example([(DROPOUT, 0.2, 3)], 0, (1, 3, 1056), 4096)  # words, of which a line's last unit has one alone
@example([(DROPOUT, 0.5, 3), (Runs(3, 1), 0.5, 4)], 0, (2, 5, 9, 38), 4096)  # a line is a unit of 5 bytes
@example([(Runs(3, 1, share_c=True), 0.5, 3)], 0, (2, 2, 9, 38), 4096)
@example([(Runs(3, 1, share_t=True), 0.5, 3)], 0, (2, 2, 9, 140), 4096)  # units of 6 bytes
@example([(DROPOUT, 0.5, 3)], 0, (2, 9, 380), 1)  # words, with padding bits
@example([(DROPOUT, 0.5, 3)], 0, (2, 9, 900), 4)  # bytes, and the last unit has one alone
@example([(DROPOUT, 0.5, 3)], 0, (2, 2, 33, 3), 1)  # hashes that serve several lines
@example([(DROPOUT, 0.75 * 2**-16, 3)], 0, (1, 64, 1024), 4)  # a rate that is rounded up, where two values are dropped
@example([(Runs(3, 2, share_t=True), 0.5, 3)], 0, (1, 9, 1024), 4)  # two units of lanes that have nothing to do
@example([(DROPOUT, 0.5, 3), (Runs(3, 1, share_c=True), 0.5, 4)], 0, (1, 35, 1024), 1)  # a lane makes four units
@example([(DROPOUT, 0.5, 3), (Runs(0, 1), 0.5, 4)], 0, (2, 35, 380), 1)  # two units, one of them with padding
@settings(max_examples=50, deadline=None)
def test_bits_and_count_are_the_plain_ones(children, stream, shape, programs) -> None:
    """For children side by side, however many programs share a sequence."""
    with mock.patch.object(sequence, "PROGRAMS", programs):
        check(children, stream, shape)


@pytest.mark.parametrize("channels", [5, 64])
@pytest.mark.parametrize("share_c", [False, True])
@pytest.mark.parametrize("share_t", [False, True])
@pytest.mark.parametrize(("size", "stride"), [(1, 0), (4, 3), (9, 0), (8, 0), (9, 1)])
def test_every_kind_of_pattern(size: int, stride: int, share_t: bool, share_c: bool, channels: int) -> None:
    """Runs shorter and longer than the sequence, with and without gaps, at a rate where sharing shows."""
    check([(Runs(size, stride, share_t, share_c), 0.5, 11)], 5, (2, 9, channels))


def test_without_children_there_is_no_leading_axis() -> None:
    tokens, rate, seed = (value[0] for value in tensors([(DROPOUT, 0.3, 1)]))
    bits, kept = sequence.sequence_bits(tokens, rate, seed, 7, (2, 3, 4, 20))
    expected, count = plain((DROPOUT, 0.3, 1), 7, (2, 3, 4, 20))
    assert torch.equal(bits.cpu(), expected)
    assert kept.shape == ()
    assert kept.item() == count


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (2, 4, 0)])
def test_nothing_to_drop(shape: tuple[int, ...]) -> None:
    bits, kept = sequence.sequence_bits(*tensors([(DROPOUT, 0.5, 1)] * 2), 0, shape)
    assert bits.shape == (2, *shape[:-1], shape[-1] // 8)
    assert kept.tolist() == [0, 0]


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device on this machine")
class TestOnTheDevice:
    @staticmethod
    def draw(r: random.Random) -> Child:
        runs = Runs(r.choice([0, 1, 10, 70, 512]), r.choice([0, 5, 20]), r.random() < 0.5, r.random() < 0.5)
        return runs, r.choice([0.0, 0.1, 0.2, 1.0]), r.randrange(2**62)

    @pytest.mark.parametrize(
        "shape", [(64, 512, 1024), (16, 70, 256), (16, 10, 70, 140), (8, 12, 197, 197), (16, 8, 70, 64)]
    )
    def test_realistic_shapes(self, shape: tuple[int, ...]) -> None:
        check([(DROPOUT if shape[-2] <= 70 else Runs(512, 0), 0.2, 5)], 3, shape)
        for number in range(4):
            check([self.draw(random.Random(number))], 2**62 - number, shape)

    def test_many_children(self) -> None:
        r = random.Random(0)
        check([self.draw(r) for _ in range(40)], -9, (16, 70, 256))

    def test_one_kernel_serves_all_patterns_and_sites(self) -> None:
        """Whatever the tokens, rates, seeds, streams and addresses."""
        shape = (3, 20, 64)
        check([(DROPOUT, 0.2, 1)], 1, shape)
        compiled = self.kernels()
        tokens, rates, seeds = tensors([self.draw(random.Random(number)) for number in range(16)])
        for number, stream in enumerate(
            [0, 1, 16, -1, 2**31, 2**62, -(2**63)]
        ):  # of several types, and multiples of 16
            sequence.sequence_bits(tokens[number], rates[number], seeds[number], stream, shape)
        check([self.draw(random.Random(number)) for number in range(5)], 16, (16, 35, 64))
        assert self.kernels() == compiled

    @staticmethod
    def kernels() -> int:
        return sum(len(cache[0]) for cache in sequence._draw.device_caches.values())

    def test_a_captured_graph_takes_up_new_tokens_rates_and_seeds(self) -> None:
        """Which shows as well that nothing waits for the device: that cannot be captured."""
        shape = (4, 70, 96)
        held = tensors([(DROPOUT, 0.2, 1), (Runs(0, 0), 0.0, 2)])
        sequence.sequence_bits(*held, 5, shape)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            bits, kept = sequence.sequence_bits(*held, 5, shape)
        for number in range(6):
            children = [self.draw(random.Random(10 * number + k)) for k in range(2)]
            for value, new in zip(held, tensors(children), strict=True):
                value.copy_(new)
            graph.replay()
            for child, its_bits, its_kept in zip(children, bits, kept, strict=True):
                expected, count = plain(child, 5, shape)
                assert torch.equal(its_bits.cpu(), expected), child
                assert its_kept.item() == count, child

    def test_more_values_than_32_bits_can_count(self) -> None:
        """The last line of 2**32 + 2**20 draws, from its counters; and the whole is counted."""
        length, channels, rate, seed = 2**12 + 1, 2**20, 0.25, 4
        bits, kept = sequence.sequence_bits(*tensors([(Runs(length, 0), rate, seed)]), 0, (length, channels))
        counters = torch.arange(channels // 4) + (length - 1) * channels // 4
        draws = mix(mix(torch.tensor(seed)) + counters * GOLDEN).view(torch.int16)
        dropped = draws < (rate - 0.5) * 2**16
        assert torch.equal(bits[0, -1].cpu(), torch.from_numpy(np.packbits(dropped.numpy(), bitorder="little")))
        total = length * channels
        # Binomial: six standard deviations, p of 2e-9.
        assert abs(kept.item() - (1 - rate) * total) < 6 * (rate * (1 - rate) * total) ** 0.5
