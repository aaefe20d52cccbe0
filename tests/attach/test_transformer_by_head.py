"""Masks of heads in code compiled for a GPU: put on by an operator of its own, and the same as elsewhere."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import autodropout as ad
from autodropout.attach.attachment import Attachment
from autodropout.attach.transformer import layouts
from autodropout.attach.transformer.layouts import Heads
from autodropout.layers import Drop, SequenceRule
from autodropout.models.transformer_xl import TransformerXL, TransformerXLSize
from autodropout.patterns.by_head import put_by_head

SIZE = TransformerXLSize(layers=2, width=16, heads=3, head_size=6, inner=24, memory=5)
PATTERN = ad.SequencePattern(size=10, stride=10, share_t=False, share_c=False)
BY_HEAD = ("attention.query", "attention.key", "attention.value", "attention.context")
WORDS = torch.randint(0, 23, (2, 7), generator=torch.Generator().manual_seed(0))
MEMORY = torch.randn(2, 2, 5, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that the operator is given from now on."""
    made: list[tuple[int, ...]] = []

    def noted(h: Tensor, bits: Tensor, scale: Tensor, heads: int) -> Tensor:
        made.append(tuple(h.shape))
        return put_by_head(h, bits, scale, heads)

    monkeypatch.setattr(layouts, "put_by_head", noted)
    return made


def network() -> tuple[TransformerXL, Attachment]:
    torch.manual_seed(0)
    model = TransformerXL(23, SIZE).train()
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.5)
    policy = ad.TransformerPolicy(sites=dict.fromkeys((*BY_HEAD, "attention.output"), PATTERN))
    return model, ad.attach(model, policy, rate=0.4, example=(WORDS, MEMORY), live=True)


def test_alone(calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    model, on = network()
    on.draw_from(torch.tensor(5))

    def everything() -> list[Tensor]:
        hidden, _ = model(WORDS, MEMORY)
        return [hidden, *torch.autograd.grad(hidden.square().sum(), list(model.layers.parameters()))]

    plain = everything()
    assert calls == []
    monkeypatch.setattr(layouts, "compiled_for_gpu", lambda h: True)
    assert all(map(torch.equal, everything(), plain))
    assert calls == [(2, 7, 18), (2, 12, 18), (2, 12, 18), (2, 7, 18)] * 2
    on.set_rate(0.0)
    assert not torch.equal(everything()[0], plain[0]), "masks were there"


def test_side_by_side(calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each child with its own weights, pattern, rate and seed."""
    model, on = network()
    drops = [site.drop for site in on.sites]
    weights = {
        name: torch.stack([value.detach(), 0.9 * value.detach()]).requires_grad_()
        for name, value in model.named_parameters()
        if name.startswith("layers")
    }
    tokens = torch.tensor([[10, 10, 0, 0], [20, 0, 1, 0]], dtype=torch.int32)
    rates, seeds = torch.tensor([0.4, 0.2]), torch.tensor([5, 6])

    def of_child(weights: dict[str, Tensor], tokens: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        for drop in drops:
            drop.tokens, drop.rate, drop.noise = tokens, rate, seed
        return functional_call(model, weights, (WORDS, MEMORY))[0]

    def everything() -> list[Tensor]:
        hidden = vmap(of_child)(weights, tokens, rates, seeds)
        return [hidden, *torch.autograd.grad(hidden.square().sum(), list(weights.values()))]

    plain = everything()
    assert calls == []
    monkeypatch.setattr(layouts, "compiled_for_gpu", lambda h: True)
    assert all(map(torch.equal, everything(), plain))
    assert len(calls) == 8


def test_a_step_compiles_to_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(layouts, "compiled_for_gpu", lambda h: torch.compiler.is_compiling())
    model, on = network()
    on.draw_from(torch.tensor(5))
    targets: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        targets.extend(node.target for node in graph.graph.nodes)
        return graph

    expected = model(WORDS, MEMORY)[0]
    found = torch.compile(model, fullgraph=True, backend=backend)(WORDS, MEMORY)[0]
    torch.testing.assert_close(found, expected)
    assert sum("put_by_head" in str(target) for target in targets) == 8
    torch.compiler.reset()


SIDE_BY_SIDE = Heads(count=3, size=4, offset=0, stride=4)


@pytest.mark.parametrize(
    ("layout", "channels", "taken"),
    [
        (SIDE_BY_SIDE, 12, True),
        (SIDE_BY_SIDE, 36, False),  # query, key and value in one
        (replace(SIDE_BY_SIDE, offset=12), 36, False),
        (replace(SIDE_BY_SIDE, stride=12), 36, False),  # interleaved by head
        (replace(SIDE_BY_SIDE, time_first=True), 12, False),
    ],
)
def test_other_layouts_stay_as_they_are(
    layout: Heads, channels: int, taken: bool, calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = Drop(SequenceRule(PATTERN), 0.4, 3, live=True)
    drop.noise = torch.tensor(5)
    h = torch.randn(5, 6, channels)
    plain = layout.apply(drop, h)
    monkeypatch.setattr(layouts, "compiled_for_gpu", lambda h: True)
    assert torch.equal(layout.apply(drop, h), plain)
    assert bool(calls) == taken
    assert not torch.equal(plain, h)


def test_other_drops_stay_as_they_are(calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not live, one whose seeds come from a generator, and what is no drop at all."""
    monkeypatch.setattr(layouts, "compiled_for_gpu", lambda h: True)
    h = torch.randn(5, 6, 12)
    fixed = Drop(SequenceRule(PATTERN), 0.4, 3)
    fixed.noise = torch.tensor(5)
    for drop in (fixed, Drop(SequenceRule(PATTERN), 0.4, 3, live=True), lambda h: 2 * h):
        assert not torch.equal(SIDE_BY_SIDE.apply(drop, h), h)
    assert calls == []
