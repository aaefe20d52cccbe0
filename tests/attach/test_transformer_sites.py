"""Which sites are found, how they are shown to a drop, and what is said of those that are not."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformer_tools import (
    ATTENTION,
    BATCH,
    DECODERS,
    FEEDFORWARD,
    HEADS,
    HUGGING_FACE,
    INNER,
    LENGTH,
    ROLES,
    SIZE,
    TARGET,
    WIDTH,
    FirstHead,
    Scale,
    Spy,
    build,
    find,
    gpt2,
    put,
    run,
    t5,
)  # fmt: skip

from autodropout.attach.hooks import remove_all
from autodropout.attach.sites import NoSites


def expected_shape(role: str, length: int, sources: int, key_heads: int) -> tuple[int, ...]:
    if role in ("attention.query", "attention.context"):
        return BATCH, HEADS, length, SIZE
    if role in ("attention.key", "attention.value"):
        return BATCH, key_heads, sources, SIZE
    if role == "attention.probabilities":
        return BATCH, HEADS, length, sources
    return BATCH, length, INNER if role == "feedforward.hidden" else WIDTH


def assert_layers(finding, layers, key_heads=HEADS):
    """`layers`: the roles, the length and the source length of each."""
    assert [site.layer for site in finding.sites] == [n for n, layer in enumerate(layers) for _ in layer[0]]
    for number, (roles, length, sources) in enumerate(layers):
        found = [site for site in finding.sites if site.layer == number]
        assert [site.role for site in found] == list(roles)
        for site in found:
            assert site.shape == expected_shape(site.role, length, sources, key_heads), site.name
    names = [site.name for site in finding.sites]
    assert len(set(names)) == len(names)
    assert finding.unreached == ()
    assert finding.kind == "transformer"


ENCODER_LAYER = (ROLES, LENGTH, LENGTH)
DECODER_LAYER = [(ATTENTION, TARGET, TARGET), (ATTENTION + FEEDFORWARD, TARGET, LENGTH)]


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


class Block(nn.Module):
    """A block as users write it. `style` says how: attention fused or not, feed-forward inline, norm after the sum."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.attn_drop = nn.Dropout(0.0)
        self.fc1, self.fc2 = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.mlp = nn.Sequential(self.fc1, nn.GELU(), self.fc2)

    def split(self, x):
        if "interleaved" in self.style:
            return self.qkv(x).unflatten(-1, (HEADS, 3, SIZE)).permute(3, 0, 2, 1, 4).unbind()
        if "time first" in self.style:
            return self.qkv(x).unflatten(-1, (3, HEADS, SIZE)).permute(2, 1, 3, 0, 4).unbind()
        return [part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]

    def attention(self, x):
        q, k, v = self.split(x)  # (N, heads, T, D)
        if "fused" in self.style:
            context = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = torch.softmax(q @ k.transpose(-2, -1) * SIZE**-0.5, -1)
            context = (self.attn_drop(weights) if "module" in self.style else weights) @ v
        axes = (2, 0, 1, 3) if "time first" in self.style else (0, 2, 1, 3)
        return self.proj(context.permute(axes).flatten(2))

    def feed(self, x):
        if "inline" not in self.style:
            return self.mlp(x)
        x = self.fc2(F.gelu(self.fc1(x)))
        return F.dropout(x, 0.0, self.training) if "dropout" in self.style else x

    def forward(self, x):
        if "after" in self.style:
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.feed(x))
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


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


def test_what_is_not_understood_is_said():
    """A soft cap bends the scores, unseen on small ones; experts are tensors, and no modules."""
    options = {"vocab_size": 60, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 1}
    options["num_attention_heads"] = HEADS
    ids = {"input_ids": torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH)}
    config = transformers.Gemma2Config(**options, num_key_value_heads=2, head_dim=SIZE, attn_implementation="eager")
    finding = find(transformers.Gemma2Model(config), ids)
    assert [site.role for site in finding.sites] == [role for role in ROLES if role != "attention.probabilities"]
    assert "attention.probabilities: 'eager' attention is more than" in finding.unreached[0]
    config = transformers.MixtralConfig(**options, num_key_value_heads=2, num_local_experts=2)
    finding = find(transformers.MixtralModel(config), ids)
    assert [site.role for site in finding.sites] == list(ATTENTION)
    assert "feedforward.residual: a branch without linear modules" in finding.unreached[0]


class Separate(nn.Module):
    """`nn.MultiheadAttention` in a user's own block, with options."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, **options)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x, **options):
        y = self.norm(x)
        return x + self.attn(y, y, y, **options)[0]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masks", ["none", "causal", "causal hint", "boolean", "per head", "padding", "both"])
def test_multihead_attention_keeps_its_meaning(batch_first, need_weights, masks):
    """With drops that change nothing, training mode gives what it gives without them, under every kind of mask."""
    torch.manual_seed(0)
    model = Separate(batch_first=batch_first).train()
    x = torch.randn((BATCH, LENGTH, WIDTH) if batch_first else (LENGTH, BATCH, WIDTH))
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1, -4:] = True
    options = {
        "none": {}, "causal": {"attn_mask": causal}, "causal hint": {"attn_mask": causal, "is_causal": True},
        "boolean": {"attn_mask": causal < 0}, "per head": {"attn_mask": torch.randn(BATCH * HEADS, LENGTH, LENGTH)},
        "padding": {"key_padding_mask": padding}, "both": {"attn_mask": causal < 0, "key_padding_mask": padding},
    }[masks] | {"need_weights": need_weights}  # fmt: skip
    expected = model(x, **options)
    finding = find(model, x)
    assert [site.role for site in finding.sites] == list(ATTENTION)
    drops = put(model, finding, Spy)
    torch.testing.assert_close(model(x, **options), expected)
    weights = model.attn(x, x, x, **options)[1]
    assert all(len(drop.rule.seen) > 0 for drop in drops.values())
    remove_all(model)
    torch.testing.assert_close(weights, model.attn(x, x, x, **options)[1])


def test_multihead_attention_with_other_key_sizes_and_unbatched():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, HEADS, kdim=12, vdim=20, bias=False).train()
    inputs = torch.randn(LENGTH, WIDTH), torch.randn(TARGET, 12), torch.randn(TARGET, 20)
    expected = attention(*inputs)
    finding = find(attention, inputs)
    assert [site.shape for site in finding.sites][3] == (1, HEADS, LENGTH, TARGET)
    put(attention, finding, Spy())
    for mine, theirs in zip(attention(*inputs), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_row_that_may_attend_to_nothing_stays_finite():
    torch.manual_seed(0)
    model, x = Separate(batch_first=True).train(), torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    put(model, find(model, x.detach()), Scale(1.5))
    output = model(x, key_padding_mask=torch.tensor([[False] * LENGTH, [True] * LENGTH]), need_weights=False)
    output.sum().backward()
    assert torch.isfinite(output).all()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize(("option", "reason"), [("add_bias_kv", "learned key"), ("add_zero_attn", "zero key")])
def test_appended_keys_are_refused_inside_and_reached_outside(option, reason):
    finding = find(Separate(batch_first=True, **{option: True}), torch.randn(BATCH, LENGTH, WIDTH))
    assert [site.role for site in finding.sites] == ["attention.output", "attention.residual"]
    assert len(finding.unreached) == 1
    assert reason in finding.unreached[0]


def test_a_layer_with_code_of_its_own_is_refused():
    class Own(nn.TransformerEncoderLayer):
        def forward(self, src):
            return super().forward(src) * 2

    with pytest.raises(NoSites, match=r"(?s)no site of a Transformer.*not reached: the model: all sites: a subclass"):
        find(Own(WIDTH, HEADS, INNER, batch_first=True), torch.randn(BATCH, LENGTH, WIDTH))


def test_upcast_attention_of_gpt2_is_reached_by_its_modules():
    """It goes past the attention interface; its parts are modules' inputs and outputs all the same."""
    model, example = gpt2("eager", reorder_and_upcast_attn=True)
    assert_layers(find(model, example), [ENCODER_LAYER] * 2)


class Parallel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))

    def forward(self, x):
        y = self.norm(x)
        return x + (self.attn(y, y, y)[0] + self.mlp(y))


def test_attention_and_feed_forward_side_by_side_have_one_skip_input():
    finding = find(Parallel(), torch.randn(BATCH, LENGTH, WIDTH))
    assert [site.role for site in finding.sites] == list(ROLES[:-1])
    assert len(finding.unreached) == 1
    assert "feedforward.residual: no sum" in finding.unreached[0]


class Shared(nn.Module):
    """One normalization before both branches: a module that runs twice."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.block, self.times = Block("module"), times
        self.block.norm2 = self.block.norm1

    def forward(self, x):
        for _ in range(self.times):
            x = self.block(x)
        return x


def test_a_module_that_runs_for_two_purposes_is_not_hooked():
    """The change for the second sum would begin in the shared normalization, which begins the first branch too."""
    finding = find(Shared(), torch.randn(BATCH, LENGTH, WIDTH))
    assert "feedforward.residual" not in {site.role for site in finding.sites}
    assert any("feedforward.residual: block.norm1 runs elsewhere" in reason for reason in finding.unreached)


def test_a_block_that_runs_twice_is_one_layer():
    torch.manual_seed(0)
    model = Shared(times=2).train()
    model.block.norm2 = nn.LayerNorm(WIDTH)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    finding = find(model, x)
    assert_layers(finding, [ENCODER_LAYER])
    drops = put(model, finding, Spy)
    model(x)
    assert all(len(drop.rule.seen) == 2 for drop in drops.values())


def test_a_checkpoint_that_cuts_a_branch_is_an_error():
    """A reentrant checkpoint hands detached tensors to its recomputation: the skip input's mask would be lost."""

    class Cut(Block):
        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            y = self.norm2(x)
            return x + (checkpoint(self.mlp, y, use_reentrant=True) if self.training else self.mlp(y))

    model, x = Cut("module").train(), torch.randn(BATCH, LENGTH, WIDTH)
    put(model, find(model, x), Scale(1.5))
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        model(x)


@pytest.mark.parametrize(
    "model", [nn.Linear(WIDTH, WIDTH), Parallel().mlp, nn.Sequential(nn.Linear(WIDTH, 8), nn.Softmax(-1))]
)
def test_a_model_without_attention_has_no_site(model):
    with pytest.raises(NoSites, match=r"looked for nn\.MultiheadAttention"):
        find(model, torch.randn(BATCH, LENGTH, WIDTH))
