"""Policies that ask for more than a model has: fused attention has no probabilities to mask."""

from collections.abc import Iterator

import pytest
import timm
import torch
from torch import nn
from transformer_tools import BATCH, LENGTH, WIDTH, Block

import autodropout as ad

PROBABILITIES = "attention.probabilities"
X = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def fused() -> nn.Module:
    """Blocks in nanoGPT's manner: projections of one's own around `scaled_dot_product_attention`."""
    torch.manual_seed(0)
    return nn.Sequential(Block("fused"), Block("fused"), Block("fused"))


def vit() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=5)


def policy_at(*sites: str) -> ad.TransformerPolicy:
    return ad.TransformerSpace(sites=sites).decode((1, 0, 0, 0) * len(sites))


@pytest.fixture
def unfused() -> Iterator[None]:
    timm.layers.set_fused_attn(False)
    yield
    timm.layers.set_fused_attn(True)


@pytest.mark.parametrize(("build", "example", "layers"), [(fused, X, 3), (vit, IMAGE, 2)])
def test_a_bundled_policy_on_fused_attention(build, example, layers) -> None:
    policy, model = ad.load("ptb-controller"), build().train()
    with pytest.raises(ValueError, match=r"asks for attention\.probabilities, which this model lacks") as refused:
        ad.attach(model, policy, example=example)
    first, *lines = str(refused.value).splitlines()
    assert first.count(PROBABILITIES) == 1
    assert [line.strip()[:55] for line in lines] == [
        f"not reached: {PROBABILITIES} in {layers} layers: they ",
        "unfused attention makes them reachable: softmax, an nn.",
        "skip_missing=True attaches the rest",
    ]
    assert "timm.layers.set_fused_attn(False) before building the model" in lines[1]
    assert ad.attached(model) is None

    on = ad.attach(model, policy, example=example, skip_missing=True)
    asked = {site for site, pattern in policy.sites.items() if not pattern.is_none}
    assert {row.role for row in on.sites if row.rule is not None} == asked - {PROBABILITIES}
    assert len(on.unreached) == layers
    assert all(f"{PROBABILITIES}: they exist only inside" in reason for reason in on.unreached)
    (told,) = [line for line in str(on).splitlines() if f"{PROBABILITIES}: they exist only inside" in line]
    assert told.startswith("not reached, in ")
    assert f" and {layers - 1} more: " in told
    assert not torch.equal(model(example), model(example))


@pytest.mark.usefixtures("unfused")
def test_the_remedy_for_timm_is_one() -> None:
    on = ad.attach(vit(), ad.load("ptb-controller"), example=IMAGE)
    assert on.unreached == ()
    assert sum(row.role == PROBABILITIES for row in on.sites) == 2


def test_skipping_changes_nothing_where_nothing_is_missing() -> None:
    on = ad.attach(fused(), policy_at("attention.query"), rate=0.1, example=X, skip_missing=True)
    same = ad.attach(fused(), policy_at("attention.query"), rate=0.1, example=X)
    assert str(on) == str(same)


def test_a_policy_of_which_nothing_is_left() -> None:
    for skip in (False, True):
        with pytest.raises(ValueError, match=r"(?s)in 3 layers: they exist.*nothing of the policy is left") as refused:
            ad.attach(fused(), policy_at(PROBABILITIES), rate=0.1, example=X, skip_missing=skip)
        assert "skip_missing=True" not in str(refused.value)


def test_what_no_layer_has_is_listed_too() -> None:
    attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
    policy = policy_at("attention.query", "feedforward.hidden")
    with pytest.raises(ValueError, match=r"asks for feedforward\.hidden, which this model lacks") as refused:
        ad.attach(attention, policy, rate=0.1, example=(X, X, X))
    assert "unfused" not in str(refused.value)
    on = ad.attach(attention, policy, rate=0.1, example=(X, X, X), skip_missing=True)
    assert on.unreached[-1] == "the model: feedforward.hidden: no layer has it"


def test_a_baseline_for_fused_probabilities_names_them_once() -> None:
    baseline = ad.baseline("dropout", sites=(PROBABILITIES,))
    with pytest.raises(ValueError, match=r"(?s)'dropout' goes to attention\.prob.*in 3 layers:.*unfused") as refused:
        ad.attach(fused(), baseline, rate=0.1, example=X)
    assert len(str(refused.value).splitlines()) == 3


def test_live() -> None:
    on = ad.attach(fused(), policy_at("attention.query"), rate=0.1, example=X, live=True, skip_missing=True)
    before = on.unreached
    on.set_policy(policy_at(PROBABILITIES, "attention.output"))
    assert {row.role for row in on.sites if row.rule is not None} == {"attention.output"}
    assert on.unreached == before
    with pytest.raises(ValueError, match="nothing of the policy is left"):
        on.set_policy(policy_at(PROBABILITIES))
    strict = ad.attach(fused(), policy_at("attention.query"), rate=0.1, example=X, live=True)
    with pytest.raises(ValueError, match="skip_missing=True attaches the rest"):
        strict.set_policy(policy_at(PROBABILITIES, "attention.output"))
    assert strict.policy == policy_at("attention.query")
