"""Which variants of a policy are trained after a search."""

import pytest

import autodropout as ad
from autodropout.recipes import after
from autodropout.spaces import Provenance

CONV = ad.ConvSpace(groups=((32, 32), (16, 16), (8, 8)), resolution=(32, 32))
TEXT = ad.TransformerSpace()


def conv_policy(*sizes: int) -> ad.ConvPolicy:
    """Groups with patterns of these sizes, otherwise all alike."""
    rest = CONV.encode(CONV.sample(seed=0))[1:8]
    return CONV.decode([index for size in sizes for index in (size, *rest)])


def sizes(policy: ad.ConvPolicy) -> list[int]:
    return [group.pattern.size for group in policy.groups]


def test_ablations_of_a_convnet_policy() -> None:
    found = {variant.name: variant for variant in after.ablations(conv_policy(2, 0, 3), rate=0.3)}
    assert list(found) == ["whole", "without group 1", "without group 3", "moved to the next group", "none"]
    assert sizes(found["without group 1"].regularizer) == [0, 0, 3]
    assert sizes(found["without group 3"].regularizer) == [2, 0, 0]
    assert sizes(found["moved to the next group"].regularizer) == [3, 2, 0]
    assert [group.searched_at for group in found["moved to the next group"].regularizer.groups] == list(CONV.groups)
    assert (found["none"].regularizer, found["none"].rate) == (None, 0.0)
    assert all(variant.rate == 0.3 for name, variant in found.items() if name != "none")


def test_ablations_of_a_transformer_policy() -> None:
    policy = TEXT.sample(seed=1)
    active = [name for name, pattern in policy.sites.items() if not pattern.is_none]
    found = {variant.name: variant for variant in after.ablations(policy, rate=0.2)}
    assert [name for name in found if name.startswith("without")] == [f"without {name}" for name in active]
    for name in active:
        emptied = found[f"without {name}"].regularizer
        assert [site for site in emptied.sites if emptied.sites[site] != policy.sites[site]] == [name]
    moved = found["moved to the next site"].regularizer
    assert list(moved.sites.values()) == [list(policy.sites.values())[-1], *list(policy.sites.values())[:-1]]
    assert found["variational dropout everywhere"].regularizer.name == "variational_dropout"


def test_a_policy_that_looks_the_same_when_moved_is_not_trained_twice() -> None:
    names = [variant.name for variant in after.ablations(conv_policy(2, 2, 2), rate=0.3)]
    assert "moved to the next group" not in names
    (pattern, *_) = TEXT.sample(seed=1).sites.values()
    found = Provenance(rate=0.1)  # which makes no other policy of it
    same = ad.TransformerPolicy(sites=dict.fromkeys(TEXT.sites, pattern), provenance=found)
    assert "moved to the next site" not in [variant.name for variant in after.ablations(same, rate=0.2)]


def test_transfer_to_a_larger_convnet_scales_what_is_shown_and_keeps_the_tokens() -> None:
    policy = conv_policy(2, 0, 3)
    larger = ad.ConvSpace(groups=((64, 64), (32, 32), (16, 16)), resolution=(64, 64))
    moved = after.transferred(policy, larger)
    assert [group.at for group in moved.groups] == list(larger.groups)
    assert moved.groups[0].cells().size == (24, 24), "two fifths of 64, in whole fifths"
    assert CONV.encode(moved) == CONV.encode(policy)


def test_transfer_between_transformers_changes_nothing() -> None:
    policy = TEXT.sample(seed=1)
    assert after.transferred(policy, TEXT) is policy


@pytest.mark.parametrize(
    ("policy", "space", "message"),
    [
        (TEXT.sample(seed=0), CONV, "a Transformer policy cannot go on a ConvNet"),
        (conv_policy(1, 1, 1), TEXT, "a ConvNet policy cannot go on a Transformer"),
        (conv_policy(1, 1, 1), ad.ConvSpace(groups=((8, 8),)), "the policy has 3 groups, the model has 1"),
        (TEXT.sample(seed=1), ad.TransformerSpace(sites=("attention.query",)), "which the model lacks"),
    ],
)
def test_policies_that_do_not_fit_are_refused(policy: ad.Policy, space: ad.ConvSpace, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        after.transferred(policy, space)


def test_rates() -> None:
    policy = conv_policy(1, 1, 1)
    assert [(variant.name, variant.rate) for variant in after.rates(policy, [0.1, 0.25])] == [
        ("rate 0.1", 0.1),
        ("rate 0.25", 0.25),
    ]
