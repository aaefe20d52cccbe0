"""Masks on probabilities that a fused attention need not give up: equal to the mask on the probabilities themselves."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

import autodropout as ad
from autodropout.attach.transformer import attention, folding, interface
from autodropout.spaces import SequencePattern, TransformerPolicy

LENGTH = 12
ROWS = {"size": 10, "stride": 5, "share_t": False, "share_c": True}
RUNS_OF_ROWS = {"size": 10, "stride": 5, "share_t": True, "share_c": True}
COLUMNS = {"size": 20, "stride": 0, "share_t": True, "share_c": False}
NEITHER = {"size": 10, "stride": 5, "share_t": True, "share_c": False}
EACH = {"size": 20, "stride": 0, "share_t": False, "share_c": False}


def encoder_layer() -> tuple[nn.Module, Tensor]:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), torch.randn(3, LENGTH, 16)


def bert() -> tuple[nn.Module, Tensor]:
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertModel(config), torch.randint(0, 50, (3, LENGTH))


def llama() -> tuple[nn.Module, Tensor]:
    """Causal, and two queries' heads share a key's."""
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    return LlamaModel(config), torch.randint(0, 50, (3, LENGTH))


def output(model: nn.Module, example: Tensor) -> Tensor:
    result = model(example)
    return result if isinstance(result, Tensor) else result.last_hidden_state


def policy(**tokens: int) -> TransformerPolicy:
    return TransformerPolicy(sites={"attention.probabilities": SequencePattern(**tokens)})


@pytest.mark.parametrize("build", [encoder_layer, bert, llama])
@pytest.mark.parametrize("tokens", [ROWS, RUNS_OF_ROWS, COLUMNS, NEITHER, EACH])
def test_folded_or_not_the_output_is_the_same(build, tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = build()
    on = ad.attach(model, policy(**tokens), rate=0.5, example=example)
    on.draw_from(torch.tensor(0x1234567890ABCDEF))
    explicit, original = [], attention.attend
    for module in (attention, interface):
        monkeypatch.setattr(module, "attend", lambda *a: (explicit.append(1), original(*a))[1])
    folded = output(model, example)
    shares_keys = build is llama
    expected = tokens in (ROWS, RUNS_OF_ROWS) or (tokens is COLUMNS and not shares_keys)
    assert (not explicit) == expected
    for module in (attention, interface):
        monkeypatch.setattr(module, "folds", lambda *a: None)
    torch.testing.assert_close(folded, output(model, example), rtol=1e-4, atol=1e-5)
    assert explicit
    on.set_rate(0.0)
    assert not torch.allclose(folded, output(model, example), atol=1e-3), "the mask acts"


@pytest.mark.parametrize("name", ["word_dropout", "variational_dropout", "stochastic_depth", "dropout"])
def test_baselines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = encoder_layer()
    baseline = ad.baseline(name, sites=("attention.probabilities",))
    on = ad.attach(model, baseline, rate=0.5, example=example)
    on.draw_from(torch.tensor(0x1234567890ABCDEF))
    used = []
    sdpa = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a: (used.append(1), sdpa(*a))[1])
    folded = model(example)
    assert bool(used) == (name != "dropout")
    monkeypatch.setattr(attention, "folds", lambda *a: None)
    torch.testing.assert_close(folded, model(example), rtol=1e-4, atol=1e-5)


def test_weights_that_are_asked_for_are_masked_ones() -> None:
    module = nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, LENGTH, 16)
    ad.attach(module, policy(**ROWS), rate=1.0, example=(x, x, x))
    _, weights = module(x, x, x, need_weights=True)
    assert (weights == 0).any()


def test_a_live_drop_is_not_folded() -> None:
    model, example = encoder_layer()
    on = ad.attach(model, policy(**ROWS), rate=0.5, example=example, live=True)
    (drop,) = (row.drop for row in on.sites if row.role == "attention.probabilities")
    assert folding.folds(drop, torch.zeros(1, 2, LENGTH, 8), torch.zeros(1, 2, LENGTH, 8)) is None
