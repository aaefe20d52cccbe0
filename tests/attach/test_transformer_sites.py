"""Which sites are found, in libraries' models and in plain PyTorch, and how they are shown to a drop."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformer_tools import (
    BATCH,
    DECODER_LAYER,
    DECODERS,
    ENCODER_LAYER,
    HEADS,
    HUGGING_FACE,
    INNER,
    LENGTH,
    ROLES,
    SIZE,
    TARGET,
    WIDTH,
    Block,
    FirstHead,
    Scale,
    Spy,
    assert_layers,
    build,
    expected_shape,
    find,
    put,
    run,
    t5,
)


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_all_eleven_sites_of_hugging_face_models(name, attn):
    model, example = build(name, attn=attn)
    layers = [ENCODER_LAYER] * 2 + (DECODER_LAYER * 2 if name in DECODERS else [])
    finding = find(model, example)
    assert_layers(finding, layers, key_heads=2 if name == "llama" else HEADS)
    paths = dict(model.named_modules())
    assert all(site.name.rpartition(":")[0] in paths for site in finding.sites)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_layers(batch_first, norm_first):
    model, example = build("encoder", batch_first=batch_first, norm_first=norm_first)
    assert_layers(find(model, example), [ENCODER_LAYER] * 2)
    model, example = build("decoder", batch_first=batch_first, norm_first=norm_first)
    assert_layers(find(model, example), DECODER_LAYER * 2)


def test_torch_transformer():
    model = nn.Transformer(WIDTH, HEADS, 1, 1, INNER, batch_first=True)
    finding = find(model, (torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, TARGET, WIDTH)))
    assert_layers(finding, [ENCODER_LAYER, *DECODER_LAYER])


@pytest.mark.parametrize("ff", ["relu", "gated-gelu"])
def test_gate_and_up_share_one_mask(ff):
    """One site at the input of the feed-forward, whether one or two linear layers read it."""
    model, example = t5(ff=ff)
    finding = find(model, example)
    drops = put(model, finding, Spy, only=lambda site: site.role == "feedforward.input")
    model.train()
    run(model, example)
    assert len(drops) == 4
    assert all(len(drop.rule.seen) == 1 for drop in drops.values())


STYLES = {
    "module": set(),
    "module after": set(),
    "module inline": set(),
    "module inline dropout": set(),
    "module interleaved": set(),
    "module time first": set(),
    "fused": {"attention.probabilities"},
    "fused after inline": {"attention.probabilities"},
    "bare": {"attention.probabilities"},
}


@pytest.mark.parametrize("style", STYLES)
def test_blocks_in_plain_pytorch(style):
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(style), Block(style)), torch.randn(BATCH, LENGTH, WIDTH)
    x = x.transpose(0, 1).contiguous() if "time first" in style else x
    finding = find(model, x)
    missing = STYLES[style]
    assert {site.role for site in finding.sites} == set(ROLES) - missing
    for site in finding.sites:
        assert site.shape == expected_shape(site.role, LENGTH, LENGTH, HEADS), site.name
    assert all(any(f"{n}: {role}: " in reason for reason in finding.unreached) for n in "01" for role in missing)
    drops = put(model, finding, Spy)
    with torch.no_grad():
        expected = model.eval()(x)
        torch.testing.assert_close(model.train()(x), expected)
    assert [drop.rule.seen for drop in drops.values()] == [[site.shape] for site in finding.sites]


@pytest.mark.parametrize("style", [style for style in STYLES if "module" in style])
def test_plain_blocks_are_masked_where_they_say(style):
    """Against the same block computed by hand with every tensor scaled."""
    torch.manual_seed(0)
    block, x = Block(style), torch.randn(BATCH, LENGTH, WIDTH)
    plain = copy.deepcopy(block)
    plain.style = style.replace("time first", "")
    given = x.transpose(0, 1).contiguous() if "time first" in style else x
    block.train()
    finding = find(block, given)
    by = {site.role: 1.5 + 0.1 * number for number, site in enumerate(finding.sites)}
    for site in finding.sites:
        rule = FirstHead(by[site.role]) if len(site.shape) == 4 else Scale(by[site.role])
        put(block, finding, rule, only=lambda other, site=site: other is site)
    actual = block(given)

    def head(h, role):
        return torch.cat((h[:, :1] * by[role], h[:, 1:]), 1)

    def attention(y):
        q, k, v = plain.split(y)
        q, k, v = head(q, "attention.query"), head(k, "attention.key"), head(v, "attention.value")
        weights = head(torch.softmax(q @ k.transpose(-2, -1) * SIZE**-0.5, -1), "attention.probabilities")
        context = head(weights @ v, "attention.context").transpose(1, 2).flatten(2)
        return plain.proj(context) * by["attention.output"]

    def feed(y):
        hidden = F.gelu(plain.fc1(y * by["feedforward.input"])) * by["feedforward.hidden"]
        return plain.fc2(hidden) * by["feedforward.output"]

    skip_a, skip_f = by["attention.residual"], by["feedforward.residual"]
    if "after" in style:
        y = plain.norm1(x * skip_a + attention(x))
        y = plain.norm2(y * skip_f + feed(y))
    else:
        y = x * skip_a + attention(plain.norm1(x))
        y = y * skip_f + feed(plain.norm2(y))
    torch.testing.assert_close(actual.transpose(0, 1) if "time first" in style else actual, y, atol=2e-5, rtol=2e-5)


class Stack(nn.Sequential):
    """Blocks one after another, with a forward that is not torch's: torch 2.11 compiles those child by child."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self:
            x = block(x)
        return x


@pytest.mark.parametrize("whole", [True, False], ids=["the model", "each block"])
@pytest.mark.parametrize("style", ["module", "module after", "module inline dropout"])
def test_plain_blocks_compile(style, whole):
    """By all three ways to a skip input. A block compiled by itself gets graphs of their own for its hooks."""
    torch.manual_seed(0)
    model, x = Stack(Block(style), Block(style)).train(), torch.randn(BATCH, LENGTH, WIDTH)
    finding = find(model, x)
    put(model, finding, Scale(1.5))
    expected, graphs = model(x), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # the compiler looks
        for module in [model] if whole else model:
            module.compile(fullgraph=True, backend=backend)
        torch.testing.assert_close(model(x), expected)
    assert len(graphs) == 1 or not whole


class LowRank(nn.Module):
    """A linear layer with an adapter beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.drop = base, nn.Dropout(0.0)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(self.drop(x))) * 0.5


def test_a_linear_layer_with_an_adapter_is_one_linear_layer():
    torch.manual_seed(0)
    block, x = Block("module inline"), torch.randn(BATCH, LENGTH, WIDTH)
    block.qkv, block.proj, block.fc1, block.fc2 = map(LowRank, (block.qkv, block.proj, block.fc1, block.fc2))
    block.mlp = nn.Identity()
    finding = find(block, x)
    assert_layers(finding, [ENCODER_LAYER])
    reference = copy.deepcopy(block.train())
    put(block, finding, Scale(2.0), only=lambda site: site.role in ("attention.output", "feedforward.hidden"))
    with torch.no_grad():
        reference.proj.register_forward_hook(lambda module, args, output: output * 2)
        reference.fc2.register_forward_pre_hook(lambda module, args: args[0] * 2)
    torch.testing.assert_close(block(x), reference(x))
