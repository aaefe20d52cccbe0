"""What an attachment says of itself: where a pattern drops nothing, what the model drops anyway, that it is off."""

import copy
import pickle

import pytest
import timm
import torch
import torchvision
from torch import nn
from transformer_tools import bart, gpt2

import autodropout as ad
from autodropout.layers import DropBlock

MAPS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


X = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0))


def on_resnet18(example: torch.Tensor = MAPS, **options: bool) -> ad.Attachment:
    model = torchvision.models.resnet18(num_classes=5)
    policy = ad.space(model, example).decode((2, 0, 0, 0, 1, 0, 0, 0) * 4)
    return ad.attach(model, policy, rate=0.3, example=example, **options)


def on_encoder(dropout: float = 0.0) -> ad.Attachment:
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)
    return ad.attach(model, ad.baseline("dropout"), rate=0.1, example=torch.randn(2, 9, 16))


class TestTable:
    """Sites that are alike share a row; what a user must know to read the rates stands above."""

    def test_of_a_convnet(self) -> None:
        lines = str(on_resnet18(torch.randn(2, 3, 160, 160))).splitlines()
        assert lines[0] == "Attachment of a convnet policy on ResNet: 24 of 24 sites, rate 0.3"
        assert lines[1] == (
            'rates rise linearly with depth, up to 0.3 at the last site; depth="constant" gives it to all'
        )
        assert lines[3].split() == ["group", "maps", "pattern"]
        assert [line.split(maxsplit=2)[1] for line in lines[4:8]] == ["40x40", "20x20", "10x10", "5x5"]
        assert {line.split(maxsplit=2)[2] for line in lines[4:8]} == {
            "size=2 stride=1 repeat=1 residual rotate=0 shear_x=0.0 shear_y=0.0"
        }
        assert [line.split() for line in lines[9:16]] == [
            ["group", "role", "sites", "first", "last", "rate"],
            ["1", "main", "4", "layer1.0.bn1", "layer1.1.bn2", "0.01875", "to", "0.075"],
            ["1", "identity", "2", "layer1.0:identity", "layer1.1:identity", "0.0375", "to", "0.075"],
            ["2", "main", "4", "layer2.0.bn1", "layer2.1.bn2", "0.09375", "to", "0.15"],
            ["2", "shortcut", "1", "layer2.0.downsample.1", "0.1125"],
            ["2", "identity", "1", "layer2.1:identity", "0.15"],
            ["3", "main", "4", "layer3.0.bn1", "layer3.1.bn2", "0.1688", "to", "0.225"],
        ]
        assert lines[-1] == r'each site on a line of its own: print(*on.sites, sep="\n")'

    def test_of_a_convnet_at_one_rate(self) -> None:
        on = ad.attach(torchvision.models.resnet18(), ad.baseline("dropblock"), MAPS, rate=0.1, depth="constant")
        assert "linearly" not in str(on)
        assert [line.split(maxsplit=2)[2] for line in str(on).splitlines()[3:7]] == ["DropBlock(block=7)"] * 4

    def test_of_a_transformer(self) -> None:
        """Layers that are alike in one row, in which no role stands twice."""
        model, example = bart()
        lines = str(ad.attach(model, ad.load("ptb-controller"), example)).splitlines()
        assert lines[0] == (
            "Attachment of a transformer policy on BartForConditionalGeneration: 46 of 58 sites, rate 0.0625"
        )
        table = [
            line.split()
            for line in lines[2 : lines.index(r'each site on a line of its own: print(*on.sites, sep="\n")')]
        ]
        assert table[0] == ["site", "layers", "in", "shape", "rate", "pattern"]
        assert len(table) == 1 + 11 + 11 + 7
        query = ["attention.query", "2"]
        assert [row[:4] for row in table if row[0] == "attention.query"] == [
            [*query, "model.encoder.layers.*.self_attn", "2x4x9x8"],
            [*query, "model.decoder.layers.*.self_attn", "2x4x7x8"],
            [*query, "model.decoder.layers.*.encoder_attn", "2x4x7x8"],
        ]
        assert ["feedforward.input", "2", "model.encoder.layers.*", "2x9x32", "-"] in table

    def test_of_layers_that_differ_in_width(self) -> None:
        model = torchvision.models.swin_t(weights=None)
        on = ad.attach(
            model, ad.baseline("dropout", sites=("feedforward.hidden",)), torch.randn(1, 3, 64, 64), rate=0.1
        )
        hidden = next(line for line in str(on).splitlines() if line.startswith("feedforward.hidden"))
        assert hidden.split() == [
            "feedforward.hidden", "12", "features.*.*.mlp", "1x256x384", "to", "1x4x3072", "0.1", "Dropout()",
        ]  # fmt: skip
        why = "not a view of one linear layer's output"
        assert f"not reached, in features.1.0.attn and 11 more: attention.query: {why}" in str(on)
        assert str(on).count(why) == 3
        assert "\neach of them: on.unreached\n" in str(on)
        assert len(on.unreached) == 72

    def test_of_one_module(self) -> None:
        on = ad.attach(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), ad.baseline("dropout"), X, rate=0.1)
        assert str(on).splitlines()[-3].split()[:4] == ["feedforward.residual", "1", "the", "model"]

    def test_each_site(self) -> None:
        on = on_resnet18(torch.randn(2, 3, 160, 160))
        assert str(on.sites[0]) == (
            "layer1.0.bn1 (main, group 1, 2x64x40x40): size=2 stride=1 repeat=1 residual rotate=0 shear_x=0.0 "
            "shear_y=0.0, rate 0.01875"
        )
        on = on_encoder()
        assert str(on.sites[0]) == "self_attn:attention.query (layer 0, 2x2x9x8): -"


class TestEmptyPatterns:
    def test_maps_too_small_for_a_pattern(self) -> None:
        on = on_resnet18()
        assert sorted({row.shape[2] for row in on.sites}) == [1, 2, 4, 8]
        for row in on.sites:
            if row.shape[2] >= 5:
                assert str(row).endswith(f", rate {row.rate:.4g}")
            else:
                assert str(row).endswith("): - (size=2 is 0x0 cells here)")
                h = torch.ones(row.shape)
                assert torch.equal(row.drop(h), h), "as the table says"
        assert sum(line.endswith("  - (size=2 is 0x0 cells here)") for line in str(on).splitlines()) == 9
        assert [f"size={g.pattern.size}" in str(g) and "0x0 cells" in str(g) for g in on.policy.at(32).groups] == [
            False, True, True, True,
        ]  # fmt: skip

    def test_one_side_is_enough(self) -> None:
        on = on_resnet18(torch.randn(2, 3, 16, 64))  # the first group's maps: 4 x 16
        assert str(on.sites[0]).endswith(": - (size=2 is 0x6 cells here)")

    def test_live(self) -> None:
        assert str(on_resnet18(live=True)) == str(on_resnet18()).replace("rate 0.3\n", "rate 0.3, live\n", 1)


def test_what_was_replaced_is_lost() -> None:
    """The table is what one looks at then."""
    on = on_resnet18(torch.randn(2, 3, 160, 160))
    on.model.train().layer1[0] = nn.Identity()
    assert (
        str(on).splitlines()[-1]
        == "lost, since replaced: layer1.0, layer1.0.conv1, layer1.0.bn1, layer1.0.bn2; detach and attach again"
    )


class TestAtRest:
    """Frozen parts do not drop, and the table says so."""

    def test_frozen_normalizations(self) -> None:
        on = on_resnet18(torch.randn(2, 3, 160, 160))
        on.model.train()
        assert "at rest" not in str(on)
        for module in on.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        assert str(on).endswith("\nat rest: 19 of 24 sites with a pattern, in modules in eval mode")  # 5 are identities
        on.model.eval()
        assert "at rest" not in str(on), "nothing is meant to drop"

    def test_a_frozen_stage(self) -> None:
        on = on_resnet18(torch.randn(2, 3, 160, 160))
        on.model.train().layer1.eval()
        assert str(on).endswith("\nat rest: 6 of 24 sites with a pattern, in modules in eval mode")

    def test_a_frozen_layer_of_a_transformer(self) -> None:
        model, example = gpt2()
        on = ad.attach(model, ad.load("ptb-controller"), example=example)
        model.train()
        model.transformer.h[0].eval()
        assert "\nat rest: 8 of 16 sites with a pattern, in modules in eval mode\n" in str(on)

    def test_a_frozen_module_within_the_one_that_names_the_site(self) -> None:
        model, example = gpt2()
        pattern = ad.SequencePattern(size=10, stride=0, share_t=False, share_c=False)
        on = ad.attach(model, ad.TransformerPolicy(sites={"feedforward.output": pattern}), rate=0.1, example=example)
        model.train()
        for row in on.sites:
            if row.role == "feedforward.output":
                assert row.site.place.path != row.name.partition(":")[0]
                model.get_submodule(row.site.place.path).eval()
        assert "\nat rest: 2 of 2 sites with a pattern, in modules in eval mode" in str(on)


class TestOwnDropout:
    def last(self, on: ad.Attachment) -> str:
        return str(on).splitlines()[-1]

    def test_none(self) -> None:
        assert "own dropout" not in str(on_resnet18())
        assert "own dropout" not in str(on_encoder())

    def test_of_torch(self) -> None:
        """Three `nn.Dropout`, and the number that `nn.MultiheadAttention` keeps."""
        assert self.last(on_encoder(0.25)) == "the model's own dropout stays: 4 modules, 0.25"

    def test_of_hugging_face(self) -> None:
        model, example = gpt2()
        on = ad.attach(model, ad.load("ptb-controller"), example=example)
        assert self.last(on) == "the model's own dropout stays: 7 modules, 0.1"  # 3 a layer, and the embedding's
        model, example = bart()
        on = ad.attach(model, ad.load("ptb-controller"), example=example)
        assert self.last(on).startswith("the model's own dropout stays: ")  # functions, of numbers that modules keep

    def test_of_vision_libraries(self) -> None:
        example = torch.randn(1, 3, 64, 64)
        model = torchvision.models.efficientnet_b0()
        on = ad.attach(model, ad.baseline("dropblock"), rate=0.1, example=example)
        assert self.last(on) == "the model's own dropout stays: 16 modules, 0.0125 to 0.2"  # StochasticDepth, a head
        model = timm.create_model("resnet18", drop_path_rate=0.1)
        on = ad.attach(model, ad.baseline("dropblock"), rate=0.1, example=example)
        assert self.last(on) == "the model's own dropout stays: 7 modules, 0.0143 to 0.1"

    @pytest.mark.parametrize("name", ["efficientnet_b0", "mobilenetv3_small_050", "resnet18", "regnetx_002"])
    def test_before_the_head_of_timm(self, name: str) -> None:
        """A function in the first three, a module in the last, which is not counted twice."""
        model = timm.create_model(name, drop_rate=0.3)
        on = ad.attach(model, ad.baseline("dropblock"), rate=0.1, example=torch.randn(1, 3, 64, 64))
        assert self.last(on) == "the model's own dropout stays: 1 module, 0.3"

    def test_of_ours(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), ad.DropLayer(DropBlock(3), 0.5))
        on = ad.attach(model, ad.baseline("dropout"), rate=0.1, example=MAPS)
        assert self.last(on) == "the model's own dropout stays: 1 module, 0.5"


class TestDetached:
    def test_it_says_so(self) -> None:
        on = on_resnet18(live=True)
        policy, rates = on.policy, [row.rate for row in on.sites]
        assert not on.detached
        on.detach()
        assert on.detached
        assert str(on) == "Attachment of a convnet policy on ResNet: detached"
        assert repr(on) == f"<{on}>"
        calls = (
            lambda: on.set_rate(0.1), lambda: on.set_policy(policy), lambda: on.draw_from(None), on.draw_together,
            lambda: on.draw_ahead(2), lambda: ad.RateSchedule(on, "linear", rate=0.1, steps=3),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(RuntimeError, match=r"^this attachment was taken off its model by detach\(\): attach"):
                call()
        assert [row.rate for row in on.sites] == rates

    def test_twice_is_once(self) -> None:
        on = on_resnet18()
        on.detach()
        on.detach()
        again = ad.attach(on.model, on.policy, rate=0.1, example=MAPS)
        on.detach()
        assert not again.detached
        assert on.detached

    def test_copies_are_on_their_own_models(self) -> None:
        on = on_encoder()
        twins = [copy.deepcopy(on.model), pickle.loads(pickle.dumps(on.model))]
        on.detach()
        for twin in twins:
            its = ad.attached(twin)
            assert not its.detached
            its.set_rate(0.2)


def test_in_one_line() -> None:
    assert repr(on_resnet18(live=True)) == "<Attachment of a convnet policy on ResNet: 6 of 24 sites, rate 0.3, live>"
    assert repr(on_encoder()) == (
        "<Attachment of the baseline 'dropout' on TransformerEncoderLayer: 4 of 11 sites, rate 0.1>"
    )
