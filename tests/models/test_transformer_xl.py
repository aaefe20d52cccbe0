"""Transformer-XL: as its formulas have it, written out slowly; an exact memory; every site of a policy in its place."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autodropout as ad
from autodropout.attach import discover
from autodropout.layers.drop import Drop
from autodropout.models import transformer_xl
from autodropout.models.transformer_xl import (
    TransformerXL,
    TransformerXLSize,
    VariationalDropout,
    aligned,
    distance_encoding,
    fuse,
)
from autodropout.recipes.language import TRANSFORMER_XL
from autodropout.spaces import TRANSFORMER_SITES

WORDS = 23


def size(**changes) -> TransformerXLSize:
    return TransformerXLSize(
        **{"layers": 2, "width": 8, "heads": 3, "head_size": 4, "inner": 10, "memory": 5} | changes
    )


def network(seed: int = 0, **changes) -> TransformerXL:
    """In float64, with weights large enough for a mistake to show."""
    torch.manual_seed(seed)
    model = TransformerXL(WORDS, size(**changes)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.5)
    return model


def text(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, WORDS, (rows, length), generator=torch.Generator().manual_seed(seed))


# The formulas, written out


Mark = Callable[[str, Tensor], Tensor]


def unmarked(role: str, h: Tensor) -> Tensor:
    return h


def encoding_of(distance: int, width: int) -> Tensor:
    angles = [distance / 10_000 ** (2 * i / width) for i in range(width // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def slow_attention(layer: nn.Module, x: Tensor, memory: Tensor, mark: Mark) -> Tensor:
    """One score at a time."""
    attention, (rows, length, width), before = layer.attention, x.shape, memory.shape[1]
    known = torch.cat((memory, x), 1)  # (N, S, C)

    def split(h: Tensor) -> Tensor:
        return h.unflatten(-1, (attention.heads, -1)).transpose(-3, -2)  # (N, heads, T, D)

    query = mark("attention.query", split(x @ attention.query.weight.T))
    key = mark("attention.key", split(known @ attention.key.weight.T))
    value = mark("attention.value", split(known @ attention.value.weight.T))
    scores = torch.full((rows, attention.heads, length, before + length), -torch.inf, dtype=x.dtype)
    for n in range(rows):
        for head in range(attention.heads):
            u, v = attention.content_bias[head, 0], attention.distance_bias[head, 0]
            for i in range(length):
                for j in range(before + i + 1):
                    encoded = attention.distance.weight @ encoding_of(before + i - j, width)
                    place = encoded.unflatten(0, (attention.heads, -1))[head]
                    q = query[n, head, i]
                    score = (q + u) @ key[n, head, j] + (q + v) @ place
                    scores[n, head, i, j] = score / math.sqrt(len(u))
    probabilities = mark("attention.probabilities", scores.softmax(-1))
    context = mark("attention.context", probabilities @ value)  # (N, heads, T, D)
    return mark("attention.output", context.transpose(1, 2).flatten(2) @ attention.output.weight.T)


def slow_layer(layer: nn.Module, x: Tensor, memory: Tensor, mark: Mark) -> Tensor:
    first, _, last = layer.feedforward
    x = layer.norm1(mark("attention.residual", x) + slow_attention(layer, x, memory, mark))
    hidden = (mark("feedforward.input", x) @ first.weight.T + first.bias).relu()
    branch = mark("feedforward.output", mark("feedforward.hidden", hidden) @ last.weight.T + last.bias)
    return layer.norm2(mark("feedforward.residual", x) + branch)


@torch.no_grad()
def slow(model: TransformerXL, tokens: Tensor, memory: Tensor, mark: Mark = unmarked) -> Tensor:
    x = model.embedding.weight[tokens] * math.sqrt(model.size.width)
    for layer, earlier in zip(model.layers, memory, strict=True):
        x = slow_layer(layer, x, earlier, mark)
    return x


@pytest.mark.parametrize(("length", "before"), [(4, 0), (4, 3), (3, 5), (1, 0), (1, 4), (5, 1)])
def test_it_computes_its_formulas(length: int, before: int) -> None:
    model = network()
    memory = torch.randn(2, 2, before, 8, dtype=torch.float64)
    hidden, _ = model(text(2, length), memory)
    torch.testing.assert_close(hidden, slow(model, text(2, length), memory), rtol=1e-5, atol=1e-6)  # encodings: float32
    if not before:
        assert torch.equal(hidden, model(text(2, length))[0]), "no memory and an empty one are the same"


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("length", "before"), [(4, 0), (3, 5), (7, 2), (9, 0)])
def test_compiled_for_a_gpu_it_is_the_same(
    length: int, before: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hidden states and gradients, also with a mask on the probabilities that are not made there."""
    model, tokens = network().train(), text(2, length)
    memory = torch.randn(2, 2, before, 8, dtype=torch.float64)
    drops: list[Drop | None] = [None] * len(model.layers)
    if masked:
        pattern = ad.SequencePattern(size=20, stride=10, share_t=False, share_c=False)
        policy = ad.TransformerPolicy(sites={"attention.probabilities": pattern})
        on = ad.attach(model, policy, rate=0.4, example=(text(1, 2), memory[:, :1]), live=True)
        on.draw_from(torch.tensor(5))
        drops = [bound.drop for bound in on.sites if bound.role == "attention.probabilities"]

    def everything() -> list[Tensor]:
        hidden, _ = model(tokens, memory)
        return [hidden, *torch.autograd.grad(hidden.square().sum(), list(model.layers.parameters()))]

    plain = everything()
    fuse(model, drops)
    assert all(map(torch.equal, everything(), plain)), "not compiled, it is as it was"
    monkeypatch.setattr(transformer_xl, "compiled_for_gpu", lambda x: True)
    fused = everything()
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)  # encodings: float32
    assert not torch.equal(fused[0], plain[0]), "another path"
    if masked:
        on.set_rate(0.0)
        assert (everything()[0] - fused[0]).abs().max() > 1e-3, "the mask is there"


def test_encodings() -> None:
    for row, distance in zip(distance_encoding(200, 6), range(200, -1, -1), strict=True):
        torch.testing.assert_close(row, encoding_of(distance, 6).float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("length", "reach"), [(1, 1), (1, 4), (3, 3), (3, 7)])
def test_aligning_scores_is_a_view(length: int, reach: int) -> None:
    by_distance = torch.randn(2, 3, length, reach + 1)
    by_key = aligned(by_distance)
    assert by_key.shape == (2, 3, length, reach)
    assert by_key.untyped_storage().data_ptr() == by_distance.untyped_storage().data_ptr()
    for t in range(length):
        for s in range(reach - length + t + 1):
            distance = reach - length + t - s
            assert torch.equal(by_key[..., t, s], by_distance[..., t, reach - distance])


# Memory


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("cuts", [(4, 4), (1, 3, 2, 2), (7, 1)])
def test_segment_by_segment_is_all_at_once_where_memory_reaches(layers: int, cuts: tuple[int, ...]) -> None:
    model, tokens = network(layers=layers, memory=8), text(2, 8)
    whole, _ = model(tokens)
    memory, parts = None, []
    for part in tokens.split(cuts, 1):
        hidden, memory = model(part, memory)
        parts.append(hidden)
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_a_memory_as_long_as_a_segment_gives_each_word_its_own_reach() -> None:
    """One layer, segments of 4, memory 4: word t of the second sees the first t words of the first too, and no more."""
    model, tokens = network(layers=1, memory=4), text(2, 12)
    _, memory = model(tokens[:, :4])
    second, memory = model(tokens[:, 4:8], memory)
    third, _ = model(tokens[:, 8:], memory)
    torch.testing.assert_close(second, model(tokens[:, :8])[0][:, 4:])
    torch.testing.assert_close(third, model(tokens[:, 4:])[0][:, 4:])
    assert not torch.allclose(third, model(tokens)[0][:, 8:])


def test_what_is_remembered() -> None:
    model, tokens = network(), text(2, 4)
    earlier = torch.randn(2, 2, 3, 8, dtype=torch.float64)
    inputs = torch.stack([model.embedding(tokens) * math.sqrt(8), model(tokens, earlier)[0]])
    inputs[1] = slow_layer(model.layers[0], inputs[0], earlier[0], unmarked)
    known = torch.cat((earlier, inputs), 2)  # (layers, N, 7, C)
    for remember, kept in ((None, 5), (0, 0), (2, 2), (7, 7), (9, 7)):
        memory = model(tokens, earlier, remember)[1]
        torch.testing.assert_close(memory, known[:, :, 7 - kept :], rtol=1e-5, atol=1e-6)
        assert not memory.requires_grad
    assert model.blank_memory(3).shape == (2, 3, 5, 8)
    assert not model.blank_memory(3).any()


def test_no_word_sees_a_later_one() -> None:
    model, tokens = network(), text(2, 6)
    changed = tokens.clone()
    changed[:, 3] = (tokens[:, 3] + 1) % WORDS
    one, other = model(tokens)[0], model(changed)[0]
    assert torch.equal(one[:, :3], other[:, :3])
    assert (one[:, 3:] != other[:, 3:]).any(-1).all()


# Dropouts of its own, and the softmax


def test_variational_dropout() -> None:
    h = torch.ones(50, 7, 40)
    drop = VariationalDropout(0.25, site=0)
    dropped = drop(h)
    assert torch.equal(dropped, dropped[:, :1].expand_as(h)), "one draw for all words"
    values = dropped[:, 0].unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 1 / 0.75]))
    share = (dropped[:, 0] == 0).double().mean().item()
    assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 2000)  # p = 6e-5, and the seed is fixed
    assert drop.eval()(h) is h
    assert VariationalDropout(0.0, site=0)(h) is h


def test_the_model_uses_its_dropouts_and_ties_its_softmax() -> None:
    model = network(embedding_dropout=0.5, softmax_dropout=0.6)
    model.train()
    h = torch.ones(4, 3, 8, dtype=torch.float64)
    assert model.softmax_dropout(h).unique().tolist() == pytest.approx([0.0, 1 / 0.4])
    assert not torch.equal(model(text(2, 4))[0], model(text(2, 4))[0]), "fresh masks for each call"
    expected = h @ model.embedding.weight.T + model.softmax_bias
    torch.testing.assert_close(model.logits(h), expected)
    assert model.logits(h).shape == (4, 3, WORDS)


@pytest.mark.parametrize(("vocabulary", "count"), [(10_000, 26_362_960), (33_278, 35_231_878)])
def test_parameters_of_the_papers_models(vocabulary: int, count: int) -> None:
    """24 and 35 million, says the paper; the module's docstring says how that comes."""
    with torch.device("meta"):
        model = TransformerXL(vocabulary, TRANSFORMER_XL)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_an_untrained_model_expects_every_word() -> None:
    model = TransformerXL(1000, size(layers=16, width=64, heads=4, head_size=16, inner=128)).eval()
    logits = model.logits(model(torch.arange(40).view(2, 20))[0])
    assert 0.05 < logits.std() < 0.5  # sqrt(64) * 0.02 = 0.16


# Policies


def test_all_eleven_sites_of_every_layer() -> None:
    model = network(layers=3)
    finding = discover(model, (text(2, 4), model.blank_memory(2)))
    assert finding.unreached == ()
    assert [(site.layer, site.role) for site in finding.sites] == [
        (layer, role) for layer in range(3) for role in TRANSFORMER_SITES
    ]
    shapes = {site.role: site.shape for site in finding.sites}
    of_query, of_key, of_token = (2, 3, 4, 4), (2, 3, 9, 4), (2, 4, 8)
    assert shapes == {
        "attention.query": of_query,
        "attention.key": of_key,  # memory and segment together
        "attention.value": of_key,
        "attention.probabilities": (2, 3, 4, 9),
        "attention.context": of_query,
        "attention.output": of_token,
        "attention.residual": of_token,
        "feedforward.input": of_token,
        "feedforward.hidden": (2, 4, 10),
        "feedforward.output": of_token,
        "feedforward.residual": of_token,
    }


class Ramp:
    """Everything times its own number: where it acts, and on which layout, is plain to see."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        return ramped(h)


def ramped(h: Tensor) -> Tensor:
    return h * torch.linspace(0.5, 2.0, h.numel(), dtype=h.dtype).view(h.shape)


@pytest.mark.parametrize("role", TRANSFORMER_SITES)
def test_a_drop_acts_where_its_site_says(role: str) -> None:
    model, tokens = network(), text(2, 4)
    memory = torch.randn(2, 2, 5, 8, dtype=torch.float64)
    expected = slow(model, tokens, memory, lambda at, h: ramped(h) if at == role else h)
    remembered = model(tokens, memory)[1]
    for number, site in enumerate(discover(model, (tokens, memory)).sites):
        if site.role == role:
            site.place.put(model, Drop(Ramp(), 0.5, number))
    hidden, masked = model.train()(tokens, memory)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(masked[0], remembered[0]), "the first layer remembers what it was given, without its masks"


def test_a_step_compiles_to_one_graph_and_back() -> None:
    """Forward, memory handed on, backward; and the rate may change."""
    model = network().float().train()
    tokens, memory = text(2, 4), model.blank_memory(2)
    on = ad.attach(model, ad.space(model, (tokens, memory)).sample(seed=3), rate=0.5, example=(tokens, memory))
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def results(forward: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(7)
        hidden, remembered = forward(tokens, memory)
        hidden, remembered = forward(tokens, remembered)
        model.logits(hidden).logsumexp(-1).sum().backward()
        return [hidden, remembered, *(parameter.grad for parameter in model.parameters())]

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for rate in (0.5, 0.2):
        on.set_rate(rate)
        for one, other in zip(results(compiled), results(model), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers .* got 0"),
        ({"heads": -1}, "heads .* got -1"),
        ({"width": 7}, "width must be even, .* got 7"),
        ({"memory": -1}, "memory .* got -1"),
        ({"softmax_dropout": 1.0}, r"softmax_dropout must lie in \[0, 1\), got 1.0"),
    ],
)
def test_mistakes(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        size(**changes)


def test_a_model_without_words_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="vocabulary must be at least 1, got 0"):
        TransformerXL(0, size())
