"""Which site gets what, and every way in which attaching is refused."""

import pickle
from collections import UserDict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torchvision.models import resnet18, resnet50
from torchvision.models.convnext import CNBlockConfig, ConvNeXt

import autodropout as ad
from autodropout.layers import DropBlock, Dropout, StochasticDepth

IMAGE = torch.randn(1, 3, 160, 160)
TRANSFORMER = ad.TransformerSpace().sample(seed=0)


@pytest.fixture(scope="module")
def four_groups() -> ad.ConvSpace:
    return ad.space(resnet18(), IMAGE)


def policy_of(space: ad.ConvSpace, *groups: tuple[int, bool]) -> ad.ConvPolicy:
    """One (size, residual) per group."""
    return space.decode(tuple(index for size, residual in groups for index in (size, 0, 0, 0, int(residual), 0, 0, 0)))


def test_the_space_of_resnet50_has_the_papers_four_groups() -> None:
    space = ad.space(resnet50(), torch.randn(1, 3, 224, 224))
    assert space.groups == ((56, 56), (28, 28), (14, 14), (7, 7))
    assert space.resolution == (224, 224)
    assert space.count == 2_764_800**4
    assert ad.space(resnet50(), torch.randn(1, 3, 224, 224), stem=True).groups[0] == (112, 112)


def test_the_resolution_is_found_wherever_the_image_is() -> None:
    class Batched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

        def forward(self, batch: Mapping[str, torch.Tensor], scale: float = 1.0) -> torch.Tensor:
            return self.body(batch["image"]) * scale

    batch = {"label": torch.zeros(1), "image": torch.randn(1, 3, 12, 20)}
    for example in ((batch,), {"batch": batch, "scale": 0.5}, UserDict(batch=batch)):  # the last as BatchFeature is one
        assert ad.space(Batched(), example).resolution == (12, 20)
    assert ad.space(Batched().body, torch.randn(3, 12, 20)[None]).resolution == (12, 20)


def test_groups_and_residual_decide_where_patterns_go(four_groups: ad.ConvSpace) -> None:
    on = ad.attach(
        resnet18(), policy_of(four_groups, (1, False), (0, True), (2, True), (0, False)), rate=0.2, example=IMAGE
    )
    for row in on.sites:
        if row.group == 1:
            assert (row.rule is not None) == (row.role == "main")
        else:
            assert (row.rule is not None) == (row.group == 3)


def test_rates_are_linear_over_the_main_branch(four_groups: ad.ConvSpace) -> None:
    on = ad.attach(resnet18(), policy_of(four_groups, *[(1, True)] * 4), rate=0.32, example=IMAGE)
    main = [row for row in on.sites if row.role == "main"]
    assert len(main) == 16
    assert [row.rate for row in main] == pytest.approx([0.02 * k for k in range(1, 17)])
    last = {row.site.block: row.rate for row in main}
    shortcuts = [row for row in on.sites if row.role != "main"]
    assert [row.role for row in shortcuts] == ["identity"] * 2 + ["shortcut", "identity"] * 3
    assert all(row.rate == last[row.site.block] for row in shortcuts)
    on.set_rate(0.16)
    assert main[-1].rate == pytest.approx(0.16)
    assert main[0].rate == pytest.approx(0.01)


def test_constant_over_depth_on_request(four_groups: ad.ConvSpace) -> None:
    on = ad.attach(resnet18(), policy_of(four_groups, *[(1, True)] * 4), rate=0.3, example=IMAGE, depth="constant")
    assert [row.rate for row in on.sites] == pytest.approx([0.3] * len(on.sites))


def test_a_policy_follows_the_models_resolution(four_groups: ad.ConvSpace) -> None:
    """Searched at 160, put on a model fed with 320: rectangles and gaps in cells double."""
    on = ad.attach(resnet18(), policy_of(four_groups, *[(1, True)] * 4), rate=0.3, example=torch.randn(1, 3, 320, 320))
    tiling = on.sites[0].rule.tiling(*on.sites[0].shape[2:])
    assert on.sites[0].shape[2:] == (80, 80)
    assert (tiling.size, tiling.stride) == ((16, 16), (2, 2))


def test_a_recorded_rate_is_the_default(four_groups: ad.ConvSpace) -> None:
    policy = four_groups.decode((1, 0, 0, 0, 0, 0, 0, 0) * 4, ad.Provenance(rate=0.25))
    assert ad.attach(resnet18(), policy, example=IMAGE).rate == 0.25
    assert ad.attach(resnet18(), policy, rate=0.5, example=IMAGE).rate == 0.5


def test_the_example_comes_third(four_groups: ad.ConvSpace) -> None:
    """As it comes second in `ad.space`."""
    assert ad.attach(resnet18(), four_groups.sample(seed=0), IMAGE, rate=0.3).rate == 0.3


class TestWrapped:
    """What wraps a model as a whole is looked through, whether it came before the policy or after it."""

    def test_attached_before(self) -> None:
        model = resnet18()
        on = ad.attach(model, ad.baseline("dropout"), rate=0.1, example=IMAGE)
        assert ad.attached(nn.DataParallel(model)) is on
        assert ad.attached(torch.compile(nn.DataParallel(model))) is on
        average = AveragedModel(model)  # a copy
        assert ad.attached(average) is ad.attached(average.module)
        assert ad.attached(average).model is average.module

    def test_attached_after(self) -> None:
        model = resnet18()
        wrapped = nn.DataParallel(model)
        assert ad.space(wrapped, IMAGE) == ad.space(model, IMAGE)
        on = ad.attach(wrapped, ad.baseline("dropout"), rate=0.1, example=IMAGE)
        assert ad.attached(model) is on
        assert ad.attached(wrapped) is on
        assert on.sites[0].name == "layer1.0.bn1"
        on.detach()
        assert ad.attached(wrapped) is None


def test_attached_on_the_meta_device(four_groups: ad.ConvSpace) -> None:
    with torch.device("meta"):
        model = resnet18()
    on = ad.attach(model, policy_of(four_groups, *[(1, True)] * 4), rate=0.3, example=IMAGE.to("meta"))
    assert [row.rate for row in on.sites if row.role == "main"][-1] == pytest.approx(0.3)
    assert str(on).splitlines()[-2].endswith("  0.3")
    model.to_empty(device="cpu").load_state_dict(resnet18().state_dict())
    image = torch.randn(2, 3, 160, 160)
    assert not torch.equal(model.train()(image), model(image))


class TestBaselines:
    def test_dropblock(self) -> None:
        on = ad.attach(resnet18(), ad.baseline("dropblock", block=3, groups=(3, 4)), rate=0.1, example=IMAGE)
        assert {row.rule for row in on.sites if row.group in (1, 2)} == {None}
        assert all((row.rule == DropBlock(3)) == (row.role == "main") for row in on.sites if row.group in (3, 4))

    def test_stochastic_depth_goes_to_the_end_of_each_branch(self) -> None:
        on = ad.attach(resnet18(), ad.baseline("stochastic_depth"), rate=0.1, example=IMAGE)
        assert [row.name for row in on.sites if row.rule] == [f"layer{i}.{j}.bn2" for i in (1, 2, 3, 4) for j in (0, 1)]
        assert {row.rule for row in on.sites} == {None, StochasticDepth()}

    def test_on_a_transformer(self) -> None:
        model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        on = ad.attach(model, ad.baseline("dropout"), rate=0.1, example=torch.randn(2, 9, 16))
        roles = [row.role for row in on.sites if row.rule == Dropout()]
        assert roles == ["attention.probabilities", "attention.output", "feedforward.hidden", "feedforward.output"]


def test_a_policy_that_comes_to_nothing_on_small_maps_says_so() -> None:
    model, large, small = resnet18(), torch.randn(1, 3, 160, 160), torch.randn(1, 3, 64, 64)
    nothing = ad.space(model, large).decode((0,) * 32)
    third = ad.space(model, large).decode((0,) * 16 + (2, 0, 1, 0, 0, 0, 0, 0) + (0,) * 8)  # of 10x10 cells; 4x4 here
    with pytest.warns(UserWarning, match="drops nothing here: on maps this small its rectangles have no cells"):
        on = ad.attach(model, third, rate=0.1, example=small)
    assert "0 of" in repr(on)
    on.detach()
    for policy, example in ((third, large), (nothing, small)):  # warnings are errors: one acts, one was never meant to
        ad.attach(model, policy, rate=0.1, example=example).detach()


class TestRefused:
    def test_stochastic_depth_where_zeros_would_not_stay_zeros(self) -> None:
        model = ConvNeXt([CNBlockConfig(8, None, 2)], num_classes=2)
        with pytest.raises(ValueError, match="'stochastic_depth' goes to branch end, which this model lacks"):
            ad.attach(model, ad.baseline("stochastic_depth"), rate=0.1, example=IMAGE)

    def test_a_policy_for_another_kind_of_model(self, four_groups: ad.ConvSpace) -> None:
        on_convnet = r" cannot go on a ConvNet, which this model is\n  looked for nn\.MultiheadAttention"
        with pytest.raises(ad.NoSites, match=f"^a Transformer policy{on_convnet}"):
            ad.attach(resnet18(), TRANSFORMER, rate=0.1, example=IMAGE)
        with pytest.raises(ad.NoSites, match=f"^the baseline 'word_dropout'{on_convnet}"):
            ad.attach(resnet18(), ad.baseline("word_dropout"), rate=0.1, example=IMAGE)
        with pytest.raises(ad.NoSites, match=f"^kind='transformer'{on_convnet}"):
            ad.attach(resnet18(), ad.baseline("dropout"), rate=0.1, example=IMAGE, kind="transformer")
        encoder = nn.TransformerEncoderLayer(16, 2, 32)
        for what, name in (
            (four_groups.sample(seed=0), "a ConvNet policy"),
            (ad.baseline("dropblock"), "the baseline"),
        ):
            with pytest.raises(
                ad.NoSites, match=f"^{name}.* cannot go on a Transformer, which this model is\n.* normalizations"
            ):
                ad.attach(encoder, what, rate=0.1, example=torch.randn(9, 2, 16))

    def test_a_policy_on_a_model_of_neither_kind(self, four_groups: ad.ConvSpace) -> None:
        for policy, looked_for in (
            (TRANSFORMER, "this model has no sites of a Transformer"),
            (four_groups.sample(seed=0), "this model has no sites of a ConvNet"),
        ):
            with pytest.raises(ad.NoSites, match=f"^{looked_for}\n  looked for"):
                ad.attach(nn.Linear(3, 3), policy, rate=0.1, example=torch.randn(2, 3))

    def test_a_kind_that_is_not_the_policys(self, four_groups: ad.ConvSpace) -> None:
        with pytest.raises(ValueError, match="a ConvNet policy cannot go on a Transformer, which kind='transformer'"):
            ad.attach(resnet18(), four_groups.sample(seed=0), rate=0.1, example=IMAGE, kind="transformer")

    def test_another_number_of_groups(self, four_groups: ad.ConvSpace) -> None:
        with pytest.raises(ValueError, match=r"4 groups \(searched at 40x40.*the model has 5 \(80x80"):
            ad.attach(resnet18(), four_groups.sample(seed=0), rate=0.1, example=IMAGE, stem=True)

    def test_a_site_the_model_lacks(self) -> None:
        attention = Attention()
        policy = ad.TransformerSpace(sites=("attention.query", "feedforward.hidden")).decode((1, 0, 0, 0, 1, 0, 0, 0))
        with pytest.raises(ValueError, match=r"asks for feedforward\.hidden, which this model lacks; found: attention"):
            ad.attach(attention, policy, rate=0.1, example=torch.randn(2, 9, 16))
        idle = ad.TransformerSpace(sites=("attention.query", "feedforward.hidden")).decode((1, 0, 0, 0, 0, 0, 0, 0))
        ad.attach(attention, idle, rate=0.1, example=torch.randn(2, 9, 16)).detach()

    def test_a_model_with_no_site(self) -> None:
        """That comes first, then what was looked for and seen, a thing a line."""
        with pytest.raises(ad.NoSites) as refused:
            ad.attach(nn.LSTM(3, 3), ad.baseline("dropout"), rate=0.1, example=torch.randn(2, 3))
        lines = str(refused.value).splitlines()
        assert [line[:27] for line in lines] == [
            "this model has no sites",
            "  of a ConvNet: looked for ",
            "  saw run: LSTM",
            "  of a Transformer: looked ",
        ]
        again = pickle.loads(pickle.dumps(refused.value))
        assert str(again) == str(refused.value), "as it comes out of a child's process"

    def test_a_baseline_that_has_nowhere_to_go(self) -> None:
        plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        with pytest.raises(
            ValueError, match="'stochastic_depth' goes to branch end, which this model lacks; found: main"
        ):
            ad.attach(plain, ad.baseline("stochastic_depth"), rate=0.1, example=IMAGE)

    def test_groups_that_a_model_lacks(self) -> None:
        there = (
            r"its groups are 1 \(40x40: main, identity\); 2 \(20x20: main, shortcut, identity\); 3 .*; 4 \(5x5: main"
        )
        with pytest.raises(ValueError, match=rf"'dropblock' goes to main of group 9, 10, which .* lacks; {there}"):
            ad.attach(resnet18(), ad.baseline("dropblock", groups=(9, 10)), rate=0.1, example=IMAGE)
        with pytest.raises(ValueError, match=rf"goes to main of group 3, 5, which .* lacks; {there}"):  # of both
            ad.attach(resnet18(), ad.baseline("dropblock", groups=(3, 5)), rate=0.1, example=IMAGE)
        shortcuts = ad.baseline("dropout", sites=("shortcut",), groups=(1,))
        with pytest.raises(ValueError, match=rf"'dropout' goes to shortcut of group 1, which .* lacks; {there}"):
            ad.attach(resnet18(), shortcuts, rate=0.1, example=IMAGE)
        with pytest.raises(ValueError, match="of group 1, and a transformer has no groups"):
            ad.attach(Attention(), ad.baseline("dropout", groups=(1,)), rate=0.1, example=torch.randn(2, 9, 16))

    @pytest.mark.parametrize(
        ("policy", "message"),
        [
            ("ptb-controller", r"got 'ptb-controller'; ad\.load\('ptb-controller'\) reads a policy"),
            (Path("mine.json"), r"mine\.json'\); ad\.load\('mine\.json'\) reads a policy"),
            ("dropblock", r"got 'dropblock'; ad\.baseline\('dropblock'\) is"),
            ({"kind": "convnet"}, "got a dict; ad.load, a space's sample and ad.baseline return such"),
            (None, "got None; ad.load"),
            (SimpleNamespace(policy=TRANSFORMER), r"got a SimpleNamespace, whose policy is its `\.policy`"),
            (nn.Identity(), "got an Identity; ad.load"),
        ],
    )
    def test_what_is_no_policy(self, policy: object, message: str) -> None:
        with pytest.raises(TypeError, match=f"^attach wants a policy or a baseline, .*{message}"):
            ad.attach(resnet18(), policy, rate=0.1, example=IMAGE)

    def test_what_is_no_model(self) -> None:
        with pytest.raises(
            TypeError, match="the model first and then the policy, got a TransformerPolicy and a ResNet"
        ):
            ad.attach(TRANSFORMER, resnet18(), rate=0.1, example=IMAGE)
        for model, got in ((None, "None"), ("resnet18", "'resnet18'"), (resnet18, "a function")):
            with pytest.raises(TypeError, match=f"the model must be an nn.Module, got {got}"):
                ad.attach(model, TRANSFORMER, rate=0.1, example=IMAGE)
        with pytest.raises(TypeError, match=r"the model must be an nn\.Module, got a Tensor"):
            ad.space(IMAGE, resnet18())
        with pytest.raises(TypeError, match=r"the model must be an nn\.Module, got an Attachment"):
            ad.attached(ad.attach(resnet18(), ad.baseline("dropout"), rate=0.1, example=IMAGE))

    @pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), "0.3", True])
    def test_rates(self, rate: object, four_groups: ad.ConvSpace) -> None:
        with pytest.raises(ValueError, match=f"rate must be a number in .* got {rate!r}"):
            ad.attach(resnet18(), four_groups.sample(seed=0), rate=rate, example=IMAGE)
        on = ad.attach(resnet18(), four_groups.sample(seed=0), rate=0.5, example=IMAGE)
        with pytest.raises(ValueError, match=f"rate must be a number in .* got {rate!r}"):
            on.set_rate(rate)
        assert on.rate == 0.5

    def test_no_rate_at_all(self, four_groups: ad.ConvSpace) -> None:
        with pytest.raises(ValueError, match="no rate was given, and the policy records none"):
            ad.attach(resnet18(), four_groups.sample(seed=0), example=IMAGE)
        with pytest.raises(ValueError, match="no rate was given, and a baseline has none of its own"):
            ad.attach(resnet18(), ad.baseline("dropout"), example=IMAGE)

    def test_depth_and_kind(self, four_groups: ad.ConvSpace) -> None:
        with pytest.raises(ValueError, match="got 'quadratic'"):
            ad.attach(resnet18(), four_groups.sample(seed=0), rate=0.1, example=IMAGE, depth="quadratic")
        with pytest.raises(ValueError, match="got 'rnn'"):
            ad.space(resnet18(), IMAGE, kind="rnn")
        with pytest.raises(ValueError, match="got 'rnn'"):
            ad.attach(resnet18(), four_groups.sample(seed=0), rate=0.1, example=IMAGE, kind="rnn")

    def test_a_refusal_leaves_the_model_bare(self, four_groups: ad.ConvSpace) -> None:
        model = resnet18()
        with pytest.raises(ValueError, match="groups"):
            ad.attach(model, four_groups.sample(seed=0), rate=0.1, example=IMAGE, stem=True)
        assert ad.attached(model) is None
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Attention(nn.Module):
    """Attention and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


def test_the_space_of_an_attached_transformer_is_what_it_was() -> None:
    """Though its attention, torch's own, is then another function; another kind is looked for all the same."""
    layer, x = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(2, 5, 16)
    before = ad.space(layer, x)
    ad.attach(layer, before.sample(seed=0), rate=0.1, example=x)
    assert ad.space(layer, x) == before
    with pytest.raises(ad.NoSites):
        ad.space(layer, x, kind="convnet")
