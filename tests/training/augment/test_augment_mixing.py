"""Mixup and CutMix: targets that are probabilities and match what was mixed; weights from the right distribution."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autodropout.training.augment import MIXES, CutMix, Mix, Mixup, NoMix, mixing
from autodropout.training.augment.mixing import beta, blend, one_hot, partners


class Shares(nn.Module):
    """Images in which every pixel of image i is in colour i give the share of each colour: what CutMix's labels are."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))


def colours(count: int, height: int, width: int) -> Tensor:
    return torch.eye(count)[:, :, None, None].expand(-1, -1, height, width)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("kind", [Mixup, CutMix])
@pytest.mark.parametrize("size", [(9, 14), (8, 8)])
def test_labels_are_mixed_as_the_images_are(kind: type, per_sample: bool, size: tuple[int, int]) -> None:
    mix = kind(12, probability=1.0, per_sample=per_sample)
    for _ in range(20):
        logits, target = mix(Shares(), colours(12, *size), torch.arange(12))
        torch.testing.assert_close(logits, target)
        torch.testing.assert_close(target.sum(1), torch.ones(12))
        assert target.dtype == torch.float32
        own = target.diag()
        mixed = own[own < 1 - 1e-6]
        assert len(mixed.unique()) <= 1 or per_sample or (mixed.max() - mixed.min()) < 1e-5


def test_cutmix_pastes_one_box() -> None:
    """What comes from the partner is a full rectangle, and all of the batch has it at the same place."""
    seen = []

    def model(images: Tensor) -> Tensor:
        seen.append(images)
        return images.mean((2, 3))

    images = torch.arange(6.0)[:, None, None, None].expand(-1, 2, 10, 13)
    CutMix(6, probability=1.0)(model, images, torch.arange(6))
    changed = (seen[0] != images).any(1)
    moved = changed.any(2).any(1)
    assert moved.sum() >= 2
    box = changed[moved][0]
    assert torch.equal(changed[moved], box.expand(int(moved.sum()), -1, -1))
    assert torch.equal(box, box.any(1, keepdim=True) & box.any(0, keepdim=True))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_weights_come_from_beta(alpha: float) -> None:
    """Mean 1/2 and variance 1/(8 alpha + 4) of 40,000 draws within 4.9 standard errors, p < 1e-6."""
    draws = beta(alpha, 40_000, torch.device("cpu")).double()
    variance = 1 / (8 * alpha + 4)
    assert draws.min() >= 0
    assert draws.max() <= 1
    assert abs(draws.mean() - 0.5) < 4.9 * variance**0.5 / 200
    assert abs(draws.var() - variance) < 4.9 * ((draws - 0.5) ** 2).std() / 200


def test_partners_are_a_uniform_permutation() -> None:
    """The partner of image 0, of 8, in 8,000 batches: chi-square below the 1e-6 quantile of 7 degrees of freedom."""
    orders = torch.stack([partners(torch.zeros(8, 1)) for _ in range(8000)])
    assert torch.equal(orders.sort(1).values, torch.arange(8).expand(8000, -1))
    counts = orders[:, 0].bincount(minlength=8)
    assert ((counts - 1000) ** 2 / 1000).sum() < 40.5


def test_probability_is_of_the_batch() -> None:
    """Half of 4,000 batches are left as they are, within 4.9 standard errors, p < 1e-6."""
    images, labels = colours(4, 8, 8), torch.arange(4)
    mix = Mixup(4, alpha=8.0, probability=0.5)
    untouched = sum(torch.equal(mix(Shares(), images, labels)[0], torch.eye(4)) for _ in range(4000))
    never_moved = 0.5 / 24  # of the mixed ones: the permutation is the identity
    expected = 0.5 + never_moved
    assert abs(untouched / 4000 - expected) < 4.9 * (expected * (1 - expected) / 4000) ** 0.5
    logits, target = Mixup(4, probability=0.0)(Shares(), images, labels)
    assert torch.equal(logits, torch.eye(4))
    assert torch.equal(target, torch.eye(4))


def test_none_is_the_model_and_one_hot_labels() -> None:
    logits, target = NoMix(5)(Shares(), colours(5, 2, 2), torch.tensor([1, 0, 4, 4, 2]))
    assert torch.equal(logits, torch.eye(5))
    assert torch.equal(target, F.one_hot(torch.tensor([1, 0, 4, 4, 2]), 5).float())


def test_blend_keeps_values_to_the_bit() -> None:
    values = torch.randn(6, 3, 4, 4, dtype=torch.bfloat16)
    order = torch.randperm(6)
    assert torch.equal(blend(values, order, torch.ones(1)), values)
    torch.testing.assert_close(blend(values.float(), order, torch.zeros(6)), values[order].float())
    assert blend(values, order, torch.rand(6)).dtype == torch.bfloat16


def test_seeds_repeat() -> None:
    images, labels = torch.rand(8, 3, 6, 6), torch.arange(8)
    for mix in (Mixup(8), CutMix(8)):
        torch.manual_seed(4)
        first = mix(Shares(), images, labels)
        torch.manual_seed(4)
        again = mix(Shares(), images, labels)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


def test_gradients_reach_the_images() -> None:
    images = torch.rand(4, 3, 5, 5, requires_grad=True)
    logits, _ = CutMix(3, probability=1.0)(Shares(), images, torch.tensor([0, 1, 2, 0]))
    logits.sum().backward()
    torch.testing.assert_close(images.grad.sum(), torch.tensor(12.0))  # each logit is a mean; each pixel is used once


@pytest.mark.parametrize(
    ("name", "setting", "expected"),
    [
        ("none", "cifar", NoMix(10)),
        ("mixup", "cifar", Mixup(10, alpha=1.0)),
        ("mixup", "imagenet", Mixup(10, alpha=0.2)),
        ("cutmix", "cifar", CutMix(10, alpha=1.0, probability=0.5)),
        ("cutmix", "imagenet", CutMix(10, alpha=1.0, probability=1.0)),
    ],
)
def test_by_name(name: str, setting: str, expected: Mix) -> None:
    assert mixing(name, 10, setting=setting) == expected


def test_mistakes() -> None:
    assert len(MIXES) == 5
    for make, message in (
        (lambda: Mixup(1), "classes must be at least 2, got 1"),
        (lambda: Mixup(10, alpha=0.0), "alpha must be positive, got 0.0"),
        (lambda: CutMix(10, probability=1.1), r"probability .* got 1.1"),
        (lambda: mixing("remix", 10), "no mix is called 'remix'"),
        (lambda: mixing("mixup", 10, setting="svhn"), "'svhn'"),
        (lambda: mixing("moex", 10), "'moex' needs the model"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_one_graph_when_compiled() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 6))

    @torch.compile(fullgraph=True, backend="eager")
    def loss(images: Tensor, labels: Tensor, mix: Mix) -> Tensor:
        logits, target = mix(model, images, labels)
        return F.cross_entropy(logits, target)

    for mix in (NoMix(6), Mixup(6, alpha=0.3), CutMix(6)):
        assert loss(torch.rand(5, 3, 4, 4), torch.arange(5), mix).isfinite()


def test_one_hot_of_the_range() -> None:
    assert torch.equal(one_hot(torch.tensor([2, 0]), 3), torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
