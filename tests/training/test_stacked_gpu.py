"""Language models side by side on a CUDA device: captured steps are eager ones, and a warm crowd stays as it is."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from language_tools import curves_alone, curves_together, everywhere, small, write_text
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache, run_and_get_code

from autodropout.models.relative_attention import relative_attention, relative_attention_backward
from autodropout.models.transformer_xl import TransformerXLSize
from autodropout.training import language_crowd
from autodropout.training.language import LanguageTraining
from autodropout.training.language_crowd import Crowd
from autodropout.training.run import Run
from autodropout.training.word_nats import word_nats, word_nats_backward
from autodropout.training.word_rows import add_rows
from two_samples import LIMIT, student_t

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),  # advice, on every compilation
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),  # torch captures one to prepare its pool
]

GPU = Run(device="cuda")
SIZE = TransformerXLSize(
    layers=2, width=64, heads=2, head_size=32, inner=128, memory=16, embedding_dropout=0.1, softmax_dropout=0.2
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def _cold() -> None:
    language_crowd._warm.clear()


def training(folder: Path, **changes) -> LanguageTraining:
    return small(folder, **{"size": SIZE, "segment": 16, "evaluate_every": 2, "evaluation_memory": 16} | changes)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_twenty_captured_steps_are_those_of_children_alone(
    folder: Path, precision: str, tolerance: float, rate: float
) -> None:
    """Compiled, captured and stacked against eager `fit`: the same masks, so that only rounding differs."""
    how, run = training(folder), replace(GPU, precision=precision)
    policies = [everywhere(), how.space().sample(seed=1), None]
    together = torch.tensor(curves_together(how, policies, rate, [5, 6, 7], run))
    alone = torch.tensor(curves_alone(how, policies, rate, [5, 6, 7], run))
    torch.testing.assert_close(together, alone, rtol=tolerance, atol=0)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 1e-2)])
def test_a_child_compiled_alone_is_the_eager_one(folder: Path, precision: str, tolerance: float) -> None:
    """Its attention is one kernel, its policy live: the same masks, so that only rounding differs."""
    how, run = training(folder), replace(GPU, precision=precision)
    policies = [everywhere(), None]
    compiled = torch.tensor(curves_alone(how, policies, 0.3, [5, 6], replace(run, compile=True)))
    eager = torch.tensor(curves_alone(how, policies, 0.3, [5, 6], run))
    torch.testing.assert_close(compiled, eager, rtol=tolerance, atol=0)


RACING = {"size": replace(SIZE, width=256, heads=8, inner=1024, memory=70), "batch": 16, "segment": 70}
"""At this size, and 12 side by side, torch 2.11 left alone makes normalizations that race (`patterns/read_back.py`):
no gradient behind them was the same in two runs."""


def test_twins_stay_together_to_the_bit(folder: Path) -> None:
    """Children with one seed and policy in several slots of a crowd, and in a second run: nothing is left to chance."""
    how = training(folder, **RACING)
    policies, seeds, slots = [everywhere(), how.space().sample(seed=1), everywhere(share_t=True)], [5, 6, 7], 12
    crowd = Crowd(how, replace(GPU, precision="bfloat16"), slots)
    runs = []
    for _ in range(2):
        with crowd.lane.active():
            crowd.begin(slots // 3 * policies, 0.2, slots // 3 * seeds)
            for _ in range(20):
                crowd.train_step()
            runs.append({name: weight.detach().clone() for name, weight in crowd.stack.weights.items()})
            crowd.lane.wait()  # they are compared on another stream
    for name, weight in runs[0].items():
        assert torch.equal(weight, runs[1][name]), name
        assert all(torch.equal(weight[:3], weight[first : first + 3]) for first in range(3, slots, 3)), name


def test_no_kernel_reads_back_what_it_stored_without_a_barrier(folder: Path) -> None:
    """The same by the code: a race may pass unseen."""
    with fresh_cache():  # what is taken from disk is not written again
        _, written = run_and_get_code(Crowd, training(folder, **RACING), replace(GPU, precision="bfloat16"), 12)
    read_back = 0
    for kernel in (kernel for code in written for kernel in code.split("async_compile.triton(")[1:]):
        _, *loops = kernel.split("for r0_offset in")
        stored: set[str] = set()
        for loop in loops:
            for name in stored:
                before, read, _ = loop.partition(f"tl.load({name} ")
                read_back += bool(read)
                assert not read or "tl.debug_barrier()" in before, kernel.split("'")[1]
            stored |= set(re.findall(r"tl\.store\((\w+) ", loop))
    assert read_back, "normalizations of this size are gone through twice"


def test_scores_of_eight_seeds_are_those_of_children_alone(folder: Path) -> None:
    """In the end, captured and rounded against eager: one distribution (Student's t, p = 0.001)."""
    how, seeds = training(folder, steps=100, evaluate_every=50), list(range(8))
    alone = [how.fit(everywhere(), 0.2, seed, GPU).reward for seed in seeds]
    together = how.fit_many([everywhere()] * 8, 0.2, seeds, replace(GPU, precision="bfloat16"))
    assert student_t(together, alone) < LIMIT


def test_the_kernels_of_a_step_are_the_plain_operations() -> None:
    """In bfloat16, which Triton's interpreter does not round to as a GPU does."""
    scores, bias = 5 * torch.randn(2, 1000, 300).bfloat16(), torch.randn(2, 1000)
    targets, weights = torch.randint(1000, (300,)), torch.randn(2, 300)
    nats, logs = word_nats(scores, bias, targets)
    of_scores, of_bias = word_nats_backward(weights, scores, bias, targets, logs)
    on_gpu = [value.cuda() for value in (scores, bias, targets)]
    torch.testing.assert_close([one.cpu() for one in word_nats(*on_gpu)], [nats, logs], rtol=1e-5, atol=1e-5)
    found = word_nats_backward(weights.cuda(), *on_gpu, logs.cuda())
    torch.testing.assert_close([one.cpu() for one in found], [of_scores, of_bias], rtol=1e-2, atol=1e-4)

    gradient, rows = torch.randn(2, 50, 38).bfloat16(), torch.randn(2, 300, 38)
    read, found = torch.randint(50, (300,)), gradient.cuda()
    add_rows(found, rows.cuda(), read.cuda())
    add_rows(gradient, rows, read)
    torch.testing.assert_close(found.cpu(), gradient, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("heads", "size", "before"), [(3, 38, 70), (4, 32, 0)])
def test_the_kernels_of_attention_are_the_plain_operations(heads: int, size: int, before: int) -> None:
    """In bfloat16, in rows that lie apart; the same twice."""
    length, reach = 70, 70 + before
    query, key, value, gradient = (
        torch.randn(2, 3, tokens, heads * size + 4).bfloat16()[..., : heads * size]
        for tokens in (length, reach, reach, length)
    )
    query = query * size**-0.5
    by_distance = torch.randn(2, heads, 3 * length, reach + 8 - reach % 8).bfloat16()
    bits = torch.randint(256, (2, 3, heads, length, (reach + 7) // 8), dtype=torch.uint8)
    inputs, sizes = (query, key, value, by_distance, bits, torch.tensor([1.5, 2.0])), (heads, before)
    there = tuple(value.cuda() for value in inputs)
    expected = relative_attention(*inputs, *sizes)
    found = relative_attention(*there, *sizes)
    torch.testing.assert_close([one.cpu() for one in found], list(expected), rtol=2e-2, atol=2e-2)
    expected = relative_attention_backward(gradient, *inputs, *expected, *sizes)
    found, again = (relative_attention_backward(gradient.cuda(), *there, *found, *sizes) for _ in range(2))
    assert all(map(torch.equal, found, again))
    # Gradients of scores are rounded before up to 140 of them are summed up, with both signs.
    torch.testing.assert_close([one.cpu() for one in found], list(expected), rtol=2e-2, atol=0.15)


def test_a_second_job_compiles_and_captures_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = training(folder)
    captured: list[int] = []
    begin = torch.cuda.CUDAGraph.capture_begin
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "capture_begin", lambda self, *a, **k: (captured.append(1), begin(self, *a, **k))[1]
    )
    counters.clear()
    how.fit_many([everywhere(), everywhere(share_c=True)], 0.3, [1, 2], GPU)
    before = len(captured), dict(counters["stats"])
    assert before[0]
    jobs = [([how.space().sample(seed=3), None], 0.1, [3, 4]), ([everywhere(share_t=True)], 0.2, [5])]
    warm = [how.fit_many(*job, GPU) for job in jobs]
    assert (len(captured), dict(counters["stats"])) == before
    for job, rewards in zip(jobs, warm, strict=True):
        language_crowd._warm.clear()
        assert rewards == pytest.approx(how.fit_many(*job, GPU), rel=1e-4)


def test_memory_does_not_grow(folder: Path) -> None:
    how = training(folder, steps=400, cosine_share=0.05)
    crowd = Crowd(how, replace(GPU, precision="bfloat16"), 4)
    with crowd.lane.active():
        crowd.begin([everywhere()] * 4, 0.3, range(4))
        for _ in range(how.averages_from + 1):
            crowd.train_step()
        crowd.average()
        crowd.reading.nats(averaged=True)
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for _ in range(300):
            crowd.train_step()
            crowd.average()
        assert all(torch.tensor(crowd.reading.nats(averaged=True)).isfinite())
        assert all(weight.isfinite().all() for weight in crowd.stack.weights.values())
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
