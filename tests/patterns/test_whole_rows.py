"""Where masks may be fused with reductions of rows, on versions of torch whose compiler races and on others."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

from autodropout.layers import SequenceRule, rules
from autodropout.patterns import whole_rows as module
from autodropout.patterns.whole_rows import LONGEST, fuses_rows, in_whole_rows, whole_rows
from autodropout.spaces import SequencePattern


@pytest.fixture(params=[True, False], ids=["races", "does not race"])
def races(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(module, "RACES", request.param)
    return request.param


def test_rows_are_fused_where_they_are_whole(races: bool) -> None:
    assert fuses_rows() is not races
    with whole_rows():
        with whole_rows():
            assert fuses_rows()
        assert fuses_rows()
    assert fuses_rows() is not races
    with suppress(KeyError), whole_rows():
        raise KeyError
    assert fuses_rows() is not races


def test_what_was_compiled_otherwise_is_not_taken_from_disk(races: bool) -> None:
    before = torch.compiler.config.cache_key_tag
    with whole_rows():
        assert (torch.compiler.config.cache_key_tag != before) is races
    assert torch.compiler.config.cache_key_tag == before


def node(name: str, size: int, after: tuple[str, ...] = (), *, reduces: bool = False) -> SimpleNamespace:
    """What torch's compiler knows of one operation of a kernel, as far as it is asked for."""
    return SimpleNamespace(
        group=("cuda", (size, 1)),
        ancestors=set(after),
        is_reduction=lambda: reduces,
        get_operation_names=lambda: {name},
    )


def kernel(rows: int, values: int, *nodes: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(
        numel=rows,
        reduction_numel=values,
        scheduler_nodes=lambda: nodes,
        reduction_nodes=lambda: [one for one in nodes if one.is_reduction()],
    )


@pytest.fixture
def _torch_would_not(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(InductorChoices, "should_use_persistent_reduction", staticmethod(lambda *_: False))
    sizes = SimpleNamespace(statically_known_leq=lambda small, large: small <= large)
    with V.set_graph_handler(SimpleNamespace(sizevars=sizes)):
        yield


@pytest.mark.usefixtures("_torch_would_not")
def test_which_rows_are_held_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RACES", True)
    total = node("total", 8, reduces=True)
    normalized = kernel(8, 256, node("sum", 8 * 256), total, node("result", 8 * 256, ("sum", "total")))
    too_long = kernel(8, LONGEST + 1, total, node("result", 8 * (LONGEST + 1), ("total",)))
    summed = kernel(8, 256, node("given", 8 * 256), total, node("rounded", 8, ("total",)))
    with whole_rows():
        found = [V.choices.should_use_persistent_reduction(one, False) for one in (normalized, too_long, summed)]
    assert found == [True, False, False]
    assert not V.choices.should_use_persistent_reduction(normalized, False)


def test_a_mask_in_compiled_code_is_fused_or_put_on_by_a_kernel(races: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's code without a GPU: its kernel is another function here, which says that it was asked."""
    asked: list[Tensor] = []
    monkeypatch.setattr(rules, "on_gpu", lambda h: True)
    monkeypatch.setattr(rules, "put_on", lambda h, bits, kept, last: asked.append(h) or h)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    rule, h = SequenceRule(SequencePattern(size=20, stride=5, share_t=False, share_c=False)), torch.randn(2, 40, 9)
    tokens, rate, seed = torch.tensor(rule.tokens(), dtype=torch.int32), torch.tensor(0.5), torch.tensor(3)
    bits, kept = rule.bits(h, tokens, rate, seed, 1)
    with whole_rows():
        fused = rule.put(h, bits, kept)
    assert not asked
    assert torch.equal(fused, rule(h, rate, seed ^ 1))
    rule.put(h, bits, kept)
    assert bool(asked) is races


def test_a_compiled_function_is_always_called_inside(races: bool) -> None:
    assert in_whole_rows(lambda number, *, more: (fuses_rows(), number + more))(1, more=2) == (True, 3)
    assert fuses_rows() is not races


def test_a_backward_is_compiled_inside_too(races: bool) -> None:
    """It runs outside, and on a GPU in a thread of its own: by then it must have been compiled."""
    asked: list[bool] = []

    def compiler(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        asked.append(fuses_rows())
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    compiled = in_whole_rows(torch.compile(lambda h: h.sin() * h, backend=backend))
    total = compiled(torch.ones(3, requires_grad=True)).sum()
    assert len(asked) == (2 if races else 1)
    total.backward()
    assert asked == [True, True]
