"""Pipelines as a whole: what they give back, by name and by hand; what they refuse; one graph under the compiler."""

import pytest
import torch
import torch._inductor.config
from torch._dynamo.testing import CompileCounterWithBackend
from torchvision.transforms.v2 import functional as TF

from autodropout.training.augment import (
    AUGMENTATIONS,
    CIFAR_MEAN,
    CIFAR_STD,
    Augment,
    augmentation,
    imagenet_eval,
    imagenet_train,
    plain,
    randaugment,
    standard,
    uda_strong,
)

GREY = ((0.3,), (0.4,))


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """The compiler counts graphs per source line, whichever pipeline they are of, and gives up at 8."""
    torch.compiler.reset()


def test_normalization_is_torchvisions() -> None:
    images = torch.randint(256, (5, 3, 6, 9), dtype=torch.uint8)
    expected = TF.normalize(images / 255, list(CIFAR_MEAN), list(CIFAR_STD))
    torch.testing.assert_close(plain(CIFAR_MEAN, CIFAR_STD)(images), expected)
    torch.testing.assert_close(plain(CIFAR_MEAN, CIFAR_STD)(images / 255), expected)
    torch.testing.assert_close(plain(CIFAR_MEAN, CIFAR_STD)((images / 255).double()), expected)


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_pipeline_by_name(name: str, dtype: torch.dtype, channels: int) -> None:
    mean, std = (CIFAR_MEAN, CIFAR_STD) if channels == 3 else GREY
    size = 24 if name.startswith("imagenet") else None
    augment = augmentation(name, mean, std, size=size)
    images = torch.randint(256, (6, channels, 30, 26), dtype=torch.uint8)
    images = images if dtype == torch.uint8 else images / 255
    before = images.clone()
    torch.manual_seed(1)
    out = augment(images)
    torch.manual_seed(1)
    assert torch.equal(out, augment(images))
    assert torch.equal(images, before)
    assert out.shape == ((6, channels, 24, 24) if size else images.shape)
    assert out.dtype == torch.float32
    assert out.is_contiguous()
    low, high = (torch.tensor([(level - m) / s for m, s in zip(mean, std, strict=True)]) for level in (0, 1))
    assert (out.amin((0, 2, 3)) >= low - 1e-5).all()
    assert (out.amax((0, 2, 3)) <= high + 1e-5).all()
    assert not augment.state_dict()
    assert torch.equal(augment(images), out) == (name in ("none", "imagenet_eval"))


def test_testing_draws_nothing() -> None:
    images = torch.rand(3, 3, 20, 20)
    before = torch.get_rng_state()
    plain(CIFAR_MEAN, CIFAR_STD)(images)
    imagenet_eval(size=14)(images)
    assert torch.equal(before, torch.get_rng_state())


def test_cutout_blanks_squares_of_the_mean() -> None:
    """Centres are uniform over cells, so of a 12x12 image the square of 4 covers 44/12 cells a side on average; over
    4,000 images within 4.9 standard errors, p < 1e-6."""
    images = torch.ones(4000, 1, 12, 12)
    out = standard(*GREY, pad=0, cutout=4)(images)
    blank = out == 0
    assert torch.equal(blank | torch.isclose(out, torch.tensor(0.7 / 0.4)), torch.ones_like(blank))
    sides = blank.any(3).sum(2).double(), blank.any(2).sum(2).double()
    for side in sides:
        assert side.min() == 2
        assert side.max() == 4
        assert abs(side.mean() - 44 / 12) < 4.9 * side.std() / 4000**0.5
    assert torch.equal(blank.sum((1, 2, 3)).double(), (sides[0] * sides[1]).squeeze(1))


def test_autocast_does_not_coarsen_images() -> None:
    images = torch.randint(256, (2, 3, 20, 20), dtype=torch.uint8)
    expected = imagenet_eval(size=14)(images)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(imagenet_eval(size=14)(images), expected)


def test_outside_is_the_mean_after_a_move() -> None:
    """RandAugment's pixels from outside become zeros, to the rounding of one byte."""
    augment = randaugment((0.4,), (0.5,), n=1, m=30, pad=0, flip=False, cutout=0)
    out = augment(torch.full((500, 1, 16, 16), 255, dtype=torch.uint8))
    moved = out[(out.abs() < 0.01).any(3).any(2).squeeze(1)]
    assert len(moved) > 50


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 8, 8), r"got \(3, 8, 8\)"),
        (torch.zeros(2, 1, 8, 8), r"\(N, 3, H, W\) and not empty, got \(2, 1, 8, 8\)"),
        (torch.zeros(0, 3, 8, 8), r"not empty, got \(0, 3, 8, 8\)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), "torch.int64"),
    ],
)
def test_bad_images(images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        standard(CIFAR_MEAN, CIFAR_STD)(images)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"1 or 3 numbers each, got \(0.5, 0.5\)"):
        plain((0.5, 0.5), (1.0, 1.0))
    with pytest.raises(ValueError, match=r"std must be positive, got \(0.0,\)"):
        plain((0.5,), (0.0,))
    with pytest.raises(ValueError, match="cutout must be at least 0, got -2"):
        standard(*GREY, cutout=-2)
    with pytest.raises(ValueError, match="no augmentation is called 'autoaugment'"):
        augmentation("autoaugment", *GREY)
    with pytest.raises(ValueError, match="size=32 means nothing to 'standard'"):
        augmentation("standard", *GREY, size=32)


@pytest.mark.parametrize(
    "augment",
    [standard(CIFAR_MEAN, CIFAR_STD), uda_strong(CIFAR_MEAN, CIFAR_STD, n=1), imagenet_train(size=10)],
    ids=["standard", "uda", "imagenet"],
)
def test_one_graph_for_every_batch_size(augment: Augment) -> None:
    """fullgraph, with the very images of eager, and one graph more for a last batch that is smaller."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(augment, fullgraph=True, backend=counter)
    for count in (8, 5, 3):
        images = torch.randint(256, (count, 3, 16, 20), dtype=torch.uint8)
        torch.manual_seed(2)
        expected = augment(images)
        torch.manual_seed(2)
        torch.testing.assert_close(compiled(images), expected, rtol=0, atol=1e-6)
    assert counter.frame_count <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_compiled_to_kernels(name: str) -> None:
    """With eager's random numbers, the very images of eager."""
    augment = augmentation(name, CIFAR_MEAN, CIFAR_STD, size=24 if name.startswith("imagenet") else None)
    images = torch.randint(256, (8, 3, 30, 34), dtype=torch.uint8)
    torch.manual_seed(2)
    expected = augment(images)
    torch.manual_seed(2)
    with torch._inductor.config.patch(fallback_random=True):
        got = torch.compile(augment, fullgraph=True)(images)
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)
