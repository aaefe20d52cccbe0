"""What must hold on every Transformer while drops are attached, and after they are taken off."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformer_tools import (
    DECODERS,
    HUGGING_FACE,
    LENGTH,
    MODELS,
    TARGET,
    Noise,
    Scale,
    Spy,
    build,
    encoder,
    find,
    llama,
    put,
    quiet_dropout,
    run,
)  # fmt: skip

from autodropout.attach.hooks import remove_all

EAGER = [(name, {"attn": "eager"}) for name in HUGGING_FACE]
CASES = [pytest.param(name, {}, id=name) for name in MODELS] + [pytest.param(n, o, id=f"{n}-eager") for n, o in EAGER]


def picture(model: nn.Module):
    """Everything attaching could leave behind, compared by identity where values would lie."""
    parts = {}
    for path, module in model.named_modules():
        own = {key: id(value) for key, value in module.__dict__.items() if key != "training"}
        hooks = {
            key: dict(value) for key, value in module.__dict__.items() if key.endswith(("hooks", "kwargs", "called"))
        }
        config = getattr(getattr(module, "config", None), "_attn_implementation", None)
        parts[path] = (list(module.__dict__), own, hooks, config)
    return parts


def gradients(model: nn.Module, example, forward=None, seed: int = 3):
    model.zero_grad()
    torch.manual_seed(seed)
    output = run(model if forward is None else forward, example)
    output.square().mean().backward()
    return [output.detach()] + [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(one, other, tolerance=1e-5):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_site_acts_once_in_training_and_never_in_eval(name, options):
    model, example = build(name, **options)
    finding = find(model, example)
    drops = put(model, finding, Spy)  # a spy for each
    model.train()
    run(model, example)
    assert {site.name: [site.shape] for site in finding.sites} == {name: drop.rule.seen for name, drop in drops.items()}
    model.eval()
    run(model, example)
    assert all(len(drop.rule.seen) == 1 for drop in drops.values())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_eval_is_bit_identical_and_removal_leaves_no_trace(name, options):
    model, example = build(name, dropout=True, **options)
    before, state = picture(model), {key: value.clone() for key, value in model.state_dict().items()}
    model.eval()
    with torch.no_grad():
        expected = run(model, example)
    with_graph = run(model, example)
    finding = find(model, example)
    assert picture(model) == before
    put(model, finding, Scale(2.0))
    with torch.no_grad():
        assert torch.equal(run(model, example), expected)
    assert torch.equal(run(model, example), with_graph)
    assert list(model.state_dict()) == list(state)
    remove_all(model)
    assert picture(model) == before
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(run(model, example), expected)


def test_looking_changes_neither_random_state_nor_mode():
    model, example = build("bert", dropout=True)
    model.train()
    model.encoder.layer[0].eval()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    find(model, example)
    assert torch.equal(torch.rand(3), expected)
    assert modes == [module.training for module in model.modules()]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_fused_encoder_layer_stays_fused_in_eval(norm_first, padded, monkeypatch):
    """It is not fused when there is a hook anywhere inside, and its outputs then differ by rounding."""
    model, x = encoder(norm_first=norm_first)
    model.eval()
    padding = torch.zeros(x.shape[:2], dtype=torch.bool)
    padding[:, -2:] = padded
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
    put(model, find(model, x), Scale(2.0))
    fused, calls = torch._transformer_encoder_layer_fwd, []
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args: calls.append(1) or fused(*args))
    with torch.no_grad():
        assert torch.equal(model(x, src_key_padding_mask=padding), expected)
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "encoder", "decoder"])
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_has_drops_of_its_own(name, way):
    model, example = build(name)
    model.train()
    drops = put(model, find(model, example), Scale(2.0))
    double = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    changed = run(model, example)
    torch.testing.assert_close(run(double, example), changed)
    for drop in drops.values():
        drop.set_rate(0.0)
    assert not torch.allclose(run(model, example), changed)
    torch.testing.assert_close(run(double, example), changed)
    remove_all(double)
    torch.testing.assert_close(run(double, example), run(model, example))


COMPILED = [name for name in MODELS if name != "bart"]  # whose layer drop is a branch on a random number: no full graph


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_to_one_graph_that_does_the_same(name):
    model, example = build(name)
    model.train()
    drops = put(model, find(model, example), Noise())
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for rate in (0.5, 0.3, 0.1):
        for drop in drops.values():
            drop.set_rate(rate)
        assert_same(gradients(model, example, compiled), gradients(model, example))
    assert len(graphs) == 1


@pytest.mark.parametrize("name", ["gpt2", "encoder"])
def test_compiled_backward(name):
    model, example = build(name)
    model.train()
    put(model, find(model, example), Noise())
    expected = gradients(model, example)
    torch.compiler.reset()
    assert_same(gradients(model, example, torch.compile(model, fullgraph=True, backend="aot_eager")), expected)


@pytest.mark.slow
def test_inductor():
    model, example = build("llama")
    model.train()
    put(model, find(model, example), Scale(1.5))
    expected = gradients(model, example)
    torch.compiler.reset()
    assert_same(gradients(model, example, torch.compile(model, fullgraph=True)), expected, 1e-4)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_gradient_checkpointing_recomputes_the_same(name, reentrant):
    model, example = build(name)
    model.train()
    put(model, find(model, example), Noise())
    expected = gradients(model, example)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant and name != "vit":
        model.enable_input_require_grads()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad")  # pixels need no gradient
        assert_same(gradients(model, example), expected)


def test_checkpointing_inside_a_compiled_graph():
    model, example = build("llama")
    model.train()
    put(model, find(model, example), Noise())
    expected = gradients(model, example)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    torch.compiler.reset()
    assert_same(gradients(model, example, torch.compile(model, fullgraph=True, backend="aot_eager")), expected)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reentrant: bool | None = None
        self.stem = nn.Linear(32, 32)
        self.layers = encoder(norm_first=True)[0].layers

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_torch_layers(reentrant):
    torch.manual_seed(0)
    model, x = quiet_dropout(Checkpointed()), encoder()[1]
    model.train()
    put(model, find(model, x), Noise())
    expected = gradients(model, x)
    model.reentrant = reentrant
    assert_same(gradients(model, x), expected)


@pytest.mark.parametrize("name", MODELS)
def test_autocast(name):
    model, example = build(name)
    model.train()
    drops = put(model, find(model, example), Noise())
    for drop in drops.values():
        drop.set_rate(0.1)
    with torch.autocast("cpu", torch.bfloat16):
        low = run(model, example)
    low.float().square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_caches_hold_clean_keys_and_values():
    model, example = llama()
    model.train()
    with torch.no_grad():
        expected = model(**example, use_cache=True).past_key_values.layers[0]
        put(
            model,
            find(model, example),
            Scale(2.0),
            only=lambda site: site.layer == 0 and site.role.endswith(("key", "value")),
        )
        cached = model(**example, use_cache=True).past_key_values.layers[0]
    assert torch.equal(cached.keys, expected.keys)
    assert torch.equal(cached.values, expected.values)


def test_changing_the_attention_implementation_while_attached_is_an_error():
    model, example = build("bert")
    put(model, find(model, example), Scale(2.0))
    model.set_attn_implementation("eager")
    with pytest.raises(RuntimeError, match="'eager' while a policy was attached"):
        run(model, example)


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "bart"])
def test_padding_is_still_ignored(name, attn):
    """What stands in padded places must not matter, whichever implementation made the mask."""
    model, example = build(name, attn=attn)
    model.train()
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, -3:] = 0
    put(model, find(model, {**example, "attention_mask": mask}), Scale(1.5))
    other = example["input_ids"].clone()
    other[1, -3:] = 7
    seen = TARGET if name in DECODERS else LENGTH - 3
    outputs = [
        run(model, {**example, "input_ids": ids, "attention_mask": mask}) for ids in (example["input_ids"], other)
    ]
    torch.testing.assert_close(outputs[0][:, :seen], outputs[1][:, :seen])
    assert torch.isfinite(outputs[0]).all()
