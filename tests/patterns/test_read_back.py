"""Where masks may be fused with reductions of rows, on versions of torch whose compiler races and on others."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.codegen.common import DeferredLine
from torch._inductor.codegen.triton import TritonKernel, TritonScheduling

from autodropout.layers import SequenceRule, rules
from autodropout.patterns import read_back
from autodropout.patterns.read_back import fuses_rows, mend_compiler
from autodropout.spaces import SequencePattern


@pytest.fixture(params=[True, False], ids=["races", "does not race"])
def races(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """A process that has compiled nothing; what is mended in it is not when it ends."""
    monkeypatch.setattr(read_back, "RACES", request.param)
    monkeypatch.setattr(read_back, "_mended", False)
    monkeypatch.setattr(TritonScheduling, "kernel_type", TritonKernel)
    with torch.compiler.config.patch(cache_key_tag="a user's"):
        yield request.param


def test_rows_are_fused_once_the_compiler_is_mended(races: bool) -> None:
    assert fuses_rows() is not races
    mend_compiler()
    assert fuses_rows()


def test_a_compiler_is_mended_once_and_where_it_races(races: bool) -> None:
    mend_compiler()
    first = TritonScheduling.kernel_type, torch.compiler.config.cache_key_tag
    mend_compiler()
    assert (TritonScheduling.kernel_type, torch.compiler.config.cache_key_tag) == first
    assert (TritonScheduling.kernel_type is not TritonKernel) is races
    assert (torch.compiler.config.cache_key_tag != "a user's") is races, "what lies on disk was compiled otherwise"
    assert torch.compiler.config.cache_key_tag.startswith("a user's")


@pytest.mark.parametrize("races", [True], indirect=True)
@pytest.mark.usefixtures("races")
def test_there_is_a_barrier_before_what_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code itself, which takes a GPU, is looked at in `training/test_stacked_gpu.py`."""
    mend_compiler()
    written: list[Any] = []
    lines = SimpleNamespace(writeline=written.append)
    monkeypatch.setattr(TritonKernel, "get_load_buffer", lambda self, indexing: lines)
    monkeypatch.setattr(TritonKernel, "load", lambda self, name, index: self.get_load_buffer(index) and name)
    kernel = TritonScheduling.kernel_type.__new__(TritonScheduling.kernel_type)
    kernel.cse = SimpleNamespace(invalidated_stores={"stored"})
    assert kernel.load("given", 0) == "given"
    assert not written
    assert kernel.load("stored", 0) == "stored"
    kernel.get_load_buffer(0)  # not for a load
    (barrier,) = written
    assert isinstance(barrier, DeferredLine)
    assert (barrier.name, barrier.line) == ("stored", "tl.debug_barrier()")


def test_a_mask_in_compiled_code_is_fused_or_put_on_by_a_kernel(races: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's code without a GPU: its kernel is another function here, which says that it was asked."""
    asked: list[Tensor] = []
    monkeypatch.setattr(rules, "on_gpu", lambda h: True)
    monkeypatch.setattr(rules, "put_on", lambda h, bits, kept, last: asked.append(h) or h)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    rule, h = SequenceRule(SequencePattern(size=20, stride=5, share_t=False, share_c=False)), torch.randn(2, 40, 9)
    tokens, rate, seed = torch.tensor(rule.tokens(), dtype=torch.int32), torch.tensor(0.5), torch.tensor(3)
    bits, kept = rule.bits(h, tokens, rate, seed, 1)
    rule.put(h, bits, kept)
    assert bool(asked) is races
    asked.clear()
    mend_compiler()
    fused = rule.put(h, bits, kept)
    assert not asked
    assert torch.equal(fused, rule(h, rate, seed ^ 1))
