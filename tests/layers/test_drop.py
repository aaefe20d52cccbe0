"""The drop object: when it does nothing, how its rate changes, and that seeds behave as `nn.Dropout`'s."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from autodropout.layers import Drop, DropBlock, DropLayer, Dropout, baseline
from autodropout.layers.baselines import BASELINES
from autodropout.spaces import ConvPattern

MAP = torch.ones(4, 6, 9, 9)


def test_rate_zero_and_eval_return_the_tensor_itself() -> None:
    assert Drop(Dropout(), 0.0, site=0)(MAP) is MAP
    assert DropLayer(Dropout(), 0.5).eval()(MAP) is MAP
    empty = torch.ones(0, 6, 9, 9)
    assert Drop(DropBlock(3), 0.5, site=0)(empty) is empty


def test_no_randomness_is_taken_where_nothing_is_dropped() -> None:
    before = torch.get_rng_state()
    Drop(Dropout(), 0.0, site=0)(MAP)
    assert torch.equal(before, torch.get_rng_state())


def test_made_without_values_or_in_inference_mode() -> None:
    """A model on the meta device gets its values later; nobody gives the rate back to a drop."""
    with torch.device("meta"):
        drops = [Drop(DropBlock(3), 0.5, site=0)]
    drops.append(Drop(DropBlock(3), 0.5, site=0, device=torch.device("meta")))
    with torch.inference_mode():
        drops.append(Drop(DropBlock(3), 0.5, site=0))
    expected = Drop(DropBlock(3), 0.25, site=0)
    torch.manual_seed(0)
    mask = expected(MAP)
    for drop in drops:
        assert drop(MAP.to("meta")).is_meta
        drop.set_rate(0.25)
        torch.manual_seed(0)
        assert torch.equal(drop(MAP), mask)


def test_manual_seed_repeats_masks_and_sites_differ() -> None:
    first, second = Drop(Dropout(), 0.5, site=0), Drop(Dropout(), 0.5, site=1)
    torch.manual_seed(3)
    one, two = first(MAP), first(MAP)
    torch.manual_seed(3)
    again = first(MAP)
    torch.manual_seed(3)
    elsewhere = second(MAP)
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    assert not torch.equal(one, elsewhere)


def test_the_rate_may_change_between_forward_and_backward() -> None:
    layer = DropLayer(Dropout(), 0.5)
    h = MAP.clone().requires_grad_()
    out = layer(h)
    layer.set_rate(0.1)
    out.sum().backward()
    assert torch.equal(h.grad, out.detach())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_recomputes_the_same_mask(use_reentrant: bool) -> None:
    layer = DropLayer(DropBlock(3), 0.3)
    seen = []

    def block(h: torch.Tensor) -> torch.Tensor:
        seen.append(layer(h * 1.0))
        return seen[-1] * h

    h = MAP.clone().requires_grad_()
    checkpoint(block, h, use_reentrant=use_reentrant).sum().backward()
    first, recomputed = seen
    assert torch.equal(first, recomputed)


def test_a_copy_has_a_rate_of_its_own() -> None:
    layer = DropLayer(Dropout(), 0.5)
    twin = copy.deepcopy(layer)
    twin.set_rate(0.0)
    assert twin(MAP) is MAP
    assert (layer(MAP) == 0).any()


def test_the_layer_adds_nothing_to_the_state() -> None:
    assert not DropLayer(Dropout(), 0.5).state_dict()
    assert "rate=0.5" in repr(DropLayer(Dropout(), 0.5))


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_rates_outside_the_unit_interval_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=str(rate)):
        Drop(Dropout(), rate, site=0)
    drop = Drop(Dropout(), 0.5, site=0)
    with pytest.raises(ValueError, match="rate must be a number in"):
        drop.set_rate(rate)
    assert drop.rate.item() == 0.5


@pytest.mark.parametrize(
    ("rule", "got"),
    [
        (baseline("dropout"), r"a Baseline, whose rule is its `\.rule`"),
        ("dropout", "'dropout'"),
        (ConvPattern.none(), "a ConvPattern"),
        (Dropout, "the class Dropout"),
        (torch.nn.Dropout(0.1), "a Dropout, a module"),
        (0.1, "0.1"),
    ],
)
def test_what_is_no_rule_is_refused_at_once(rule: object, got: str) -> None:
    with pytest.raises(TypeError, match=rf"called with \(h, rate, seed\).* in autodropout\.layers: .*; got {got}$"):
        DropLayer(rule, 0.1)


def test_a_function_can_be_a_rule() -> None:
    assert torch.equal(DropLayer(lambda h, rate, seed: h * 2, 0.1)(MAP), MAP * 2)


class TestBaselines:
    @pytest.mark.parametrize("name", BASELINES)
    def test_each_has_a_rule_and_somewhere_to_go(self, name: str) -> None:
        peer = baseline(name)
        assert peer.convnet or peer.transformer
        assert Drop(peer.rule, 0.5, site=0)(MAP).shape == MAP.shape

    def test_options(self) -> None:
        assert baseline("dropblock", block=5).rule == DropBlock(5)
        assert baseline("dropblock", groups=(3, 4)).groups == (3, 4)
        assert baseline("dropblock", groups=[3, 4]) == baseline("dropblock", groups=(3, 4))
        assert baseline("dropout", sites=("attention.query",)).transformer == ("attention.query",)
        assert baseline("dropout", sites=("main", "shortcut")).convnet == ("main", "shortcut")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"name": "dropbox"}, "no baseline is called 'dropbox'"),
            ({"name": "dropout", "block": 3}, "block=3 means nothing to 'dropout'"),
            ({"name": "dropblock", "block": 0}, "at least 1 cell, got 0"),
            ({"name": "dropout", "sites": ("attention.quary",)}, "attention.quary"),
            ({"name": "dropout", "sites": ()}, r"got \(\)"),
            ({"name": "dropblock", "sites": ("attention.query",)}, "'dropblock' cannot go to"),
            ({"name": []}, r"no baseline is called \[\]"),
            ({"name": "dropout", "sites": 3}, r"as in sites=\('main',\), got 3"),
            ({"name": "dropout", "groups": ()}, r"as in groups=\(3, 4\), got \(\)"),
            ({"name": "dropout", "groups": (0, 1)}, r"numbered 1, 2, .*, got \(0, 1\)"),
            ({"name": "dropout", "groups": (1.5,)}, r"numbered 1, 2, .*, got \(1\.5,\)"),
        ],
    )
    def test_mistakes(self, options: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            baseline(**options)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"name": "dropout", "groups": 3}, r"a tuple of group numbers, as in groups=\(3, 4\), got 3"),
            ({"name": "dropblock", "block": 2.5}, "block must be a whole number of cells, got 2.5"),
            ({"name": "dropblock", "block": "7"}, "got '7'"),
            ({"name": "dropblock", "block": True}, "got True"),
        ],
    )
    def test_types(self, options: dict, message: str) -> None:
        with pytest.raises(TypeError, match=message):
            baseline(**options)
