"""Attention and layers out of the ordinary: what keeps its meaning, and what is said of what cannot be reached."""

import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformer_tools import (
    ATTENTION,
    BATCH,
    ENCODER_LAYER,
    HEADS,
    INNER,
    LENGTH,
    ROLES,
    SIZE,
    TARGET,
    WIDTH,
    Block,
    Scale,
    Spy,
    assert_layers,
    find,
    gpt2,
    llama,
    put,
)

from autodropout.attach.hooks import remove_all
from autodropout.attach.sites import NoSites


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


class Experts(nn.Module):
    """Each token goes to one feed-forward of three; what they give is gathered in place."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.gate = Separate(batch_first=True), nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(Block("module").mlp for _ in range(3))

    def forward(self, x):
        x = self.attention(x)
        chosen = self.gate(x).argmax(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            y[mine] = expert(x[mine])
        return x + y


def test_experts_that_write_in_place_are_seen_and_said_to_be_no_feed_forward():
    finding = find(Experts(), torch.randn(BATCH, LENGTH, WIDTH))
    assert [site.role for site in finding.sites] == list(ATTENTION)
    assert len(finding.unreached) == 1
    assert "linear modules, which are not one feed-forward of two steps" in finding.unreached[0]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:_compile flag on create_bl")
def test_flex_attention_is_reached_but_for_its_probabilities():
    """Its mask is no tensor."""
    finding = find(*llama("flex_attention"))
    assert [site.role for site in finding.sites] == 2 * [role for role in ROLES if role != "attention.probabilities"]
    assert "attention.probabilities: 'flex_attention' attention is more than" in finding.unreached[0]


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

    with pytest.raises(
        NoSites, match=r"(?s)^this model has no sites of a Transformer\n.*not reached: the model: all sites: a subclass"
    ):
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
