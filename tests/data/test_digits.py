"""The digits: three parts that share no image, each class as often as any other, the same at every call."""

import subprocess
import sys

import pytest
import torch

from autodropout.data import Labelled
from autodropout.data.digits import load
from autodropout.training import Pictures


def test_sizes_and_shapes() -> None:
    data = load()
    assert [len(part) for part in (data.train, data.validation, data.test)] == [200, 600, 997]
    for part in (data.train, data.validation, data.test):
        assert part.images.shape == (len(part), 1, 20, 20)
        assert part.images.dtype == torch.float32
        assert part.labels.dtype == torch.int64
        assert part.images.min() == -1.0
        assert part.images.max() <= 1.0
    assert load(train=100, validation=300, size=24).train.images.shape == (100, 1, 24, 24)


def test_the_parts_are_disjoint_and_together_everything() -> None:
    sklearn_datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    data = load(size=8)  # as they are: no two of the 1,797 images are equal
    seen = [image.numpy().tobytes() for part in (data.train, data.validation, data.test) for image in part.images]
    bundled = torch.tensor(sklearn_datasets.load_digits().images, dtype=torch.float32) / 8 - 1
    assert len(set(seen)) == 1797
    assert set(seen) == {image.numpy().tobytes() for image in bundled}


def test_labels_stay_with_their_images() -> None:
    """Train and test show the same digits: a nearest neighbour of 200 images is mostly right."""
    data = load()
    distances = torch.cdist(data.test.images.flatten(1), data.train.images.flatten(1))  # (997, 200)
    named = data.train.labels[distances.argmin(1)]
    assert (named == data.test.labels).float().mean() > 0.9


def test_classes_are_balanced() -> None:
    data = load()
    assert data.train.labels.bincount().tolist() == [20] * 10
    assert data.validation.labels.bincount().tolist() == [60] * 10
    assert data.test.labels.bincount().tolist() == [98, 102, 97, 103, 101, 102, 101, 99, 94, 100]


def test_validation_images_stay_and_smaller_sets_lie_in_larger_ones() -> None:
    few, many = load(train=100, validation=300), load(train=1_000, validation=300)
    assert torch.equal(few.validation.images, many.validation.images)
    assert torch.equal(few.train.images, many.train.images[:100])
    half = Pictures(name="digits", train=100, validation=300).load_semi()
    whole = Pictures(name="digits", train=100, validation=300).load()
    assert torch.equal(half.train.images, whole.train.images), "the labels of both kinds of training"
    assert torch.equal(half.validation.images, whole.validation.images)


def test_the_splits_never_change() -> None:
    """Scores of different days are compared: that the same images were drawn is pinned by their sum."""
    assert load.__wrapped__(size=8).train.images.double().sum().item() == -5094.375
    again = load.__wrapped__()
    assert torch.equal(again.validation.images, load().validation.images)
    assert not torch.equal(load(seed=1).train.images, load().train.images)


def test_enlarging_keeps_the_picture() -> None:
    """At three times the size the middle of each 3x3 cells is the pixel it came from."""
    assert torch.allclose(load(size=24).train.images[..., 1::3, 1::3], load(size=8).train.images, atol=1e-6)


def test_noise_lies_behind_the_digits() -> None:
    """Each image's own, the same in every split; strokes at their full brightness stay as they are."""
    plain, noisy = load(train=100), load(train=100, noise=True)
    assert torch.equal(plain.test.labels, noisy.test.labels)
    assert (noisy.train.images >= plain.train.images).all()
    behind = noisy.train.images[plain.train.images == -1]  # uniform over 256 values: 4.5 standard errors, p of 7e-6
    assert abs(behind.mean()) < 4.5 * 0.578 / len(behind) ** 0.5
    assert abs(behind.var() - 1 / 3) < 4.5 * 0.298 / len(behind) ** 0.5
    assert len({image.numpy().tobytes() for image in noisy.train.images[:, :, 0]}) == 100, "no two have the same noise"
    more = load(train=1_000, noise=True)
    assert torch.equal(more.train.images[:100], noisy.train.images)
    assert torch.equal(more.validation.images, noisy.validation.images)


def test_the_noise_never_changes() -> None:
    pixels = Pictures(name="digits-on-noise", train=200, validation=600).load().train.images
    assert pixels.dtype == torch.uint8
    assert pixels.sum(dtype=torch.int64).item() == 12_183_800


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 205}, "train .* got 205"),
        ({"validation": 0}, "validation .* got 0"),
        ({"train": 1000, "validation": 740}, "no 8 to test with: 1000 [+] 740"),
        ({"size": 4}, "size .* got 4"),
    ],
)
def test_mistakes(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(**options)


def test_images_and_labels_must_fit() -> None:
    with pytest.raises(ValueError, match=r"got \(3, 1, 8, 8\) and \(2,\)"):
        Labelled(torch.zeros(3, 1, 8, 8), torch.zeros(2, dtype=torch.int64))


def test_without_scikit_learn_the_error_says_what_to_do() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from autodropout.data import digits\n"
        "try: digits.load()\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    assert done.stdout == "the digits come with scikit-learn: pip install scikit-learn\n"
