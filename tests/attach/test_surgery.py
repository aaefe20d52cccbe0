"""Models that are changed while a policy is attached: what would be lost in silence is an error."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torchvision.models import resnet18

import autodropout as ad
from attach.zoo import everywhere

IMAGE = torch.randn(1, 3, 160, 160)


@pytest.fixture(scope="module")
def four_groups() -> ad.ConvSpace:
    return ad.space(resnet18(), IMAGE)


def policy_of(space: ad.ConvSpace, *groups: tuple[int, bool]) -> ad.ConvPolicy:
    """One (size, residual) per group."""
    return space.decode(tuple(index for size, residual in groups for index in (size, 0, 0, 0, int(residual), 0, 0, 0)))


class TestSurgery:
    """Modules replaced after attaching: what would be lost in silence is an error, what is merely wrapped is not."""

    def test_sync_batch_norm(self, four_groups: ad.ConvSpace) -> None:
        model = resnet18().train()
        ad.attach(model, policy_of(four_groups, *[(1, True)] * 4), rate=0.3, example=IMAGE)
        converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        with pytest.raises(RuntimeError, match=r"layer1\.0\.bn1 was replaced after a policy was attached"):
            converted(IMAGE)
        with pytest.raises(RuntimeError, match="was replaced after a policy was attached"):
            torch.compile(converted, backend="aot_eager")(IMAGE)
        torch.compiler.reset()
        assert converted.eval()(IMAGE).isfinite().all(), "in eval mode there is nothing to lose"

    def test_attaching_to_sync_batch_norms(self, four_groups: ad.ConvSpace) -> None:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(resnet18())
        on = ad.attach(model, policy_of(four_groups, *[(1, True)] * 4), rate=0.3, example=IMAGE)
        assert len(on.sites) == 24

    def test_a_block_with_norms_in_it(self, four_groups: ad.ConvSpace) -> None:
        model = resnet18().train()
        ad.attach(model, policy_of(four_groups, *[(1, True)] * 4), rate=0.3, example=IMAGE)
        model.fc = nn.Linear(512, 5)
        model(torch.randn(2, 3, 160, 160))  # nothing of ours was in there
        model.layer3 = resnet18().layer3
        with pytest.raises(RuntimeError, match=r"layer3\.0\.bn1 was replaced after a policy was attached"):
            model(IMAGE)

    def test_checkpoint_wrappers(self, four_groups: ad.ConvSpace) -> None:
        model = resnet18().train()
        ad.attach(model, policy_of(four_groups, *[(1, True)] * 4), rate=0.3, example=IMAGE)
        for stage in (model.layer1, model.layer2):
            for number, block in enumerate(stage):
                stage[number] = checkpoint_wrapper(block)
        model(torch.randn(2, 3, 160, 160)).sum().backward()
        torch.compile(model, backend="aot_eager", fullgraph=True)(torch.randn(2, 3, 160, 160)).sum().backward()
        torch.compiler.reset()


class Feeding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.first, self.last, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x)[0]
        y: torch.Tensor = self.head(x + self.last(self.first(x).relu()))
        return y


class Adapter(nn.Module):
    """A linear layer with a low-rank one beside it, as adapters are put around layers."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner, self.down = inner, nn.Linear(inner.in_features, 2)
        self.up = nn.Linear(2, inner.out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x) + self.up(self.down(x))
        return y


def test_an_adapter_put_around_a_module_with_drops_is_an_error() -> None:
    """They would act on what the module alone takes and returns. Put around one without drops, it is none."""
    torch.manual_seed(0)
    model, x = Feeding().train(), torch.randn(2, 5, 16)
    policy = everywhere(model, x)
    on = ad.attach(model, policy, rate=0.3, example=x)
    model.head = Adapter(model.head)
    model(x)
    model.last = Adapter(model.last)
    with pytest.raises(
        RuntimeError, match=r"^last \(Adapter\) was put around a module after .* wrap first, then attach"
    ):
        model(x)
    assert str(on).splitlines()[-1] == "not seen whole, since in: last (Adapter); detach and attach again"
    model.eval()(x)
    on.detach()
    on = ad.attach(model.train(), policy, rate=0.3, example=x)
    model(x)
    assert {row.site.place.path for row in on.sites if row.role == "feedforward.output"} == {"last"}


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning")
def test_hooks_that_are_moved_to_a_fused_module_say_so(four_groups: ad.ConvSpace) -> None:
    model = resnet18().train()
    ad.attach(model, policy_of(four_groups, *[(1, True)] * 4), rate=0.3, example=IMAGE)
    torch.ao.quantization.fuse_modules_qat(model, [["layer1.0.conv2", "layer1.0.bn2"]], inplace=True)
    with pytest.raises(
        RuntimeError, match=r"^a ConvBn2d was given the hooks .* call detach\(\) first, fuse, and attach"
    ):
        model(torch.randn(2, 3, 160, 160))


def test_symbolic_traces_of_an_attached_model_are_refused(four_groups: ad.ConvSpace) -> None:
    model = resnet18().train()
    on = ad.attach(model, policy_of(four_groups, *[(1, True)] * 4), rate=0.3, example=IMAGE)
    with pytest.raises(RuntimeError, match=r"torch.fx cannot trace a model while a policy is attached; call detach"):
        torch.fx.symbolic_trace(model)
    torch.fx.symbolic_trace(model.eval())
    on.detach()
    torch.fx.symbolic_trace(model.train())
