"""A drop acts on exactly the tensor its site names: scaling there equals scaling weights, or a forward edited by
hand.
"""

import copy
import inspect
import re
import textwrap

import pytest
import torch
from torch import nn
from transformer_tools import (
    FEEDFORWARD,
    HEADS,
    HUGGING_FACE,
    MODELS,
    PER_HEAD,
    SIZE,
    WIDTH,
    FirstHead,
    Scale,
    build,
    find,
    put,
    run,
)

# Weights of the first layer: where query, key and value come from (module, first row or column), the output
# projection, the first and the last linear layers of the feed-forward.
WEIGHTS = {
    "bert": (
        "encoder.layer.0.attention.self.{query,key,value}", "encoder.layer.0.attention.output.dense",
        ["encoder.layer.0.intermediate.dense"], "encoder.layer.0.output.dense",
    ),
    "gpt2": (
        "transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj",
        ["transformer.h.0.mlp.c_fc"], "transformer.h.0.mlp.c_proj",
    ),
    "llama": (
        "model.layers.0.self_attn.{q_proj,k_proj,v_proj}", "model.layers.0.self_attn.o_proj",
        ["model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"], "model.layers.0.mlp.down_proj",
    ),
    "vit": (
        "layers.0.attention.{q_proj,k_proj,v_proj}", "layers.0.attention.o_proj",
        ["layers.0.mlp.fc1"], "layers.0.mlp.fc2",
    ),
    "t5": (
        "encoder.block.0.layer.0.SelfAttention.{q,k,v}", "encoder.block.0.layer.0.SelfAttention.o",
        ["encoder.block.0.layer.1.DenseReluDense.wi"], "encoder.block.0.layer.1.DenseReluDense.wo",
    ),
    "bart": (
        "model.encoder.layers.0.self_attn.{q_proj,k_proj,v_proj}", "model.encoder.layers.0.self_attn.out_proj",
        ["model.encoder.layers.0.fc1"], "model.encoder.layers.0.fc2",
    ),
    "encoder": ("layers.0.self_attn", "layers.0.self_attn.out_proj", ["layers.0.linear1"], "layers.0.linear2"),
}  # fmt: skip
WEIGHTS["roberta"] = WEIGHTS["bert"]

# The sums of the first layer as they stand in the library's source, attention then feed-forward: the module, the
# expression, the skip input in it, and how many times the expression stands before the one meant.
DOUBLED = {
    "bert": [
        ("encoder.layer.0.attention.output", "hidden_states + input_tensor", "input_tensor", 0),
        ("encoder.layer.0.output", "hidden_states + input_tensor", "input_tensor", 0),
    ],
    "gpt2": [
        ("transformer.h.0", "attn_output + residual", "residual", 0),
        ("transformer.h.0", "residual + feed_forward_hidden_states", "residual", 0),
    ],
    "llama": [("model.layers.0", "residual + hidden_states", "residual", n) for n in range(2)],
    "vit": [("layers.0", "hidden_states + residual", "residual", n) for n in range(2)],
    "t5": [(f"encoder.block.0.layer.{n}", "hidden_states + self", "hidden_states", 0) for n in range(2)],
    "bart": [("model.encoder.layers.0", "residual + hidden_states", "residual", n) for n in range(2)],
    "encoder": [("layers.0", "x + self._sa_block(x", "x", 0), ("layers.0", "x + self._ff_block(x)", "x", 0)],
}
DOUBLED["roberta"] = DOUBLED["bert"]


def first_layer(role: str):
    return lambda site: site.layer == 0 and site.role == role


def scale(model: nn.Module, name: str, role: str, by: float, first_head: bool) -> None:
    """Scale weights so that the model computes what a drop that scales the tensor at `role` would make of it."""
    projections, output, firsts, last = WEIGHTS[name]
    part = slice(SIZE) if first_head else slice(None)
    with torch.no_grad():
        if role in PER_HEAD[:3]:
            for tensor in projection(model, projections, PER_HEAD.index(role)):
                tensor[part] *= by
        elif role in PER_HEAD:
            by_input(model.get_submodule(output))[:, part] *= by
        elif role == "feedforward.input":
            for path in firsts:
                model.get_submodule(path).weight *= by
        else:
            module = model.get_submodule(output if role == "attention.output" else last)
            module.weight *= by
            if role != "feedforward.hidden" and module.bias is not None:
                module.bias *= by


def by_input(linear: nn.Module) -> torch.Tensor:
    """Its weight as (outputs, inputs): GPT-2's layers hold the transpose."""
    return linear.weight if isinstance(linear, nn.Linear) else linear.weight.T


def projection(model: nn.Module, paths: str, which: int):
    """Weight and bias of query, key or value, output channels first."""
    if "{" in paths:
        stem, _, names = paths.partition("{")
        linear = model.get_submodule(stem + names.rstrip("}").split(",")[which])
        return [tensor for tensor in (linear.weight, linear.bias) if tensor is not None]
    packed = model.get_submodule(paths)
    if isinstance(packed, nn.MultiheadAttention):
        tensors = packed.in_proj_weight, packed.in_proj_bias
    else:
        tensors = packed.weight.T, packed.bias
    return [tensor[which * WIDTH : (which + 1) * WIDTH] for tensor in tensors]


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in WEIGHTS] + [(name, {"attn": "eager"}) for name in WEIGHTS if name in HUGGING_FACE],
)
def test_scaling_a_site_equals_scaling_weights(name, options):
    model, example = build(name, **options)
    model.train()
    finding = find(model, example)
    plain = run(model, example)
    for role in (*PER_HEAD, "attention.output", *FEEDFORWARD[:3]):
        rule = FirstHead(3.0) if role in PER_HEAD else Scale(2.0)
        changed, reference = copy.deepcopy(model), copy.deepcopy(model)
        put(changed, finding, rule, only=first_layer(role))
        scale(reference, name, role, rule.by, role in PER_HEAD)
        expected = run(reference, example)
        assert not torch.allclose(plain, expected, atol=1e-4), f"{role}: the weights do not matter"
        torch.testing.assert_close(
            run(changed, example), expected, atol=3e-5, rtol=3e-5, msg=lambda m, r=role: f"{r}: {m}"
        )


def with_doubled_skip(model: nn.Module, name: str, which: int) -> nn.Module:
    """A copy whose first layer doubles one skip input in its source."""
    model = copy.deepcopy(model)
    path, expression, skip, before = DOUBLED[name][which]
    module = model.get_submodule(path)
    forward = inspect.unwrap(type(module).forward)
    source = textwrap.dedent(inspect.getsource(forward))
    pattern = r"\s+".join(map(re.escape, expression.split()))  # the source may break the line
    match = list(re.finditer(pattern, source))[before]
    doubled = re.sub(rf"\b{skip}\b", f"2 * {skip}", match.group(), count=1)
    namespace = dict(forward.__globals__)
    exec(source[: match.start()] + doubled + source[match.end() :], namespace)
    module.forward = namespace["forward"].__get__(module)
    return model


@pytest.mark.parametrize("which", [0, 1], ids=["attention", "feedforward"])
@pytest.mark.parametrize("name", DOUBLED)
def test_doubling_a_skip_input_doubles_it_for_the_sum_alone(name, which):
    model, example = build(name)
    model.train()
    expected = run(with_doubled_skip(model, name, which), example)
    assert not torch.allclose(run(model, example), expected, atol=1e-4)
    role = ("attention.residual", "feedforward.residual")[which]
    put(model, find(model, example), Scale(2.0), only=first_layer(role))
    torch.testing.assert_close(run(model, example), expected, atol=3e-5, rtol=3e-5)


@pytest.mark.parametrize("name", MODELS)
def test_all_sites_at_once_do_what_each_does_alone(name):
    """To first order: scaling every tensor by 1 + e moves the output by the sum of the single moves."""
    model, example = build(name)
    model.train()
    finding = find(model, example)
    up, down = copy.deepcopy(model), copy.deepcopy(model)
    sides = put(up, finding, Scale(1 + 1e-3)), put(down, finding, Scale(1 - 1e-3))

    def move(*active):
        for name, *pair in zip(sides[0], *(side.values() for side in sides), strict=True):
            for drop in pair:
                drop.set_rate(0.5 if name in active else 0.0)
        with torch.no_grad():
            return run(up, example) - run(down, example)

    singles = sum(move(site) for site in sides[0])
    assert (move(*sides[0]) - singles).norm() < 0.02 * singles.norm()


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_encoder_layer_equals_its_formula(batch_first, norm_first):
    """Every site of nn.TransformerEncoderLayer, scaled by a factor of its own, against the layer written down."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    x = torch.randn((2, 9, WIDTH) if batch_first else (9, 2, WIDTH))
    layer.train()
    finding = find(layer, x)
    by = {site.role: 1.0 + 0.1 * number for number, site in enumerate(finding.sites)}
    for site in finding.sites:
        put(layer, finding, Scale(by[site.role]), only=lambda other, site=site: other is site)
    actual = layer(x)

    def attention(y):
        qkv = nn.functional.linear(y, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias)
        q, k, v = qkv.unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)  # (N, heads, T, D) each
        q, k, v = q * by["attention.query"], k * by["attention.key"], v * by["attention.value"]
        weights = torch.softmax(q @ k.transpose(-2, -1) * SIZE**-0.5, -1) * by["attention.probabilities"]
        context = (weights @ v * by["attention.context"]).transpose(1, 2).flatten(2)
        return layer.self_attn.out_proj(context) * by["attention.output"]

    def feed(y):
        hidden = torch.relu(layer.linear1(y * by["feedforward.input"])) * by["feedforward.hidden"]
        return layer.linear2(hidden) * by["feedforward.output"]

    y = x if batch_first else x.transpose(0, 1)
    if norm_first:
        y = y * by["attention.residual"] + attention(layer.norm1(y))
        y = y * by["feedforward.residual"] + feed(layer.norm2(y))
    else:
        y = layer.norm1(y * by["attention.residual"] + attention(y))
        y = layer.norm2(y * by["feedforward.residual"] + feed(y))
    torch.testing.assert_close(actual, y if batch_first else y.transpose(0, 1), atol=1e-5, rtol=1e-5)
