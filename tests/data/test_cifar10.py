"""CIFAR-10's binary files: what they hold, how they are divided, what is wrong with broken ones."""

from pathlib import Path

import numpy as np
import pytest
import real_data
import torch

from autodropout.data import MissingData, cifar10

FILES = (*cifar10.TRAINING_FILES, cifar10.TEST_FILE)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of 40 images, the classes in turn. The first pixels number an image, the others are its channel's."""
    monkeypatch.setattr(cifar10, "PER_FILE", 40)
    (tmp_path / "cifar10").mkdir()
    for number, name in enumerate(FILES):
        rows = np.zeros((40, cifar10.ROW), np.uint8)
        rows[:, 0] = np.arange(40) % 10
        for channel in range(3):
            rows[:, 1 + 1024 * channel : 1 + 1024 * (channel + 1)] = channel
        rows[:, 1], rows[:, 2] = number, np.arange(40)
        (tmp_path / "cifar10" / name).write_bytes(rows.tobytes())
    return tmp_path


def numbers(images: torch.Tensor) -> set[int]:
    return {40 * int(image[0, 0, 0]) + int(image[0, 0, 1]) for image in images}


def test_images_and_labels(small: Path) -> None:
    data = cifar10.load(train=100, validation=50, data=small)
    for part, count in ((data.train, 100), (data.validation, 50), (data.test, 40)):
        assert part.images.shape == (count, 3, 32, 32)
        assert part.images.dtype == torch.uint8
        assert part.labels.dtype == torch.int64
        assert part.labels.bincount().tolist() == [count // 10] * 10
        assert [number % 10 for number in map(int, part.images[:, 0, 0, 1])] == part.labels.tolist()
        assert part.images[:, :, 31, 31].tolist() == [[0, 1, 2]] * count
    assert numbers(data.test.images) == set(range(200, 240))


def test_the_parts_share_no_image_and_are_nested(small: Path) -> None:
    """The 4,000 labels of CIFAR-10-4K are one set however they are used; a validation image stays one."""
    search = cifar10.semi(train=60, validation=20, data=small)
    final = cifar10.semi(train=80, validation=0, data=small)
    larger = cifar10.load(train=180, validation=20, data=small)
    parts = [numbers(part) for part in (search.train.images, search.validation.images, search.unlabelled)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 200
    assert numbers(final.train.images) == parts[0] | parts[1]
    assert numbers(final.unlabelled) == parts[2]
    assert len(final.validation) == 0
    assert numbers(larger.validation.images) == parts[1]
    assert numbers(cifar10.load(200, 0, data=small).train.images) == set(range(200))
    assert numbers(cifar10.load(60, 20, data=small, seed=1).train.images) != parts[0]


def test_a_truncated_file(small: Path) -> None:
    file = small / "cifar10/data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3.bin has 122,919 bytes, not the 122,920 of 40 images"):
        cifar10.load(10, 10, data=small)


def test_a_label_that_is_no_class(small: Path) -> None:
    file = small / "cifar10/test_batch.bin"
    content = bytearray(file.read_bytes())
    content[7 * cifar10.ROW] = 10
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"test_batch.bin: image 7 has the label 10, the classes are 0 to 9"):
        cifar10.load(10, 10, data=small)


def test_counts_that_cannot_be(small: Path) -> None:
    with pytest.raises(ValueError, match="got 15"):
        cifar10.load(15, 10, data=small)
    with pytest.raises(ValueError, match="there are 200"):
        cifar10.semi(200, 10, data=small)


def test_without_files(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="autodropout data get cifar10"):
        cifar10.load(data=tmp_path)


def test_the_real_ones() -> None:
    folder = real_data.folder_of(cifar10.folder)
    data = cifar10.load(data=folder)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [45_000, 5_000, 10_000]
    assert data.train.labels.bincount().tolist() == [4_500] * 10
    assert data.validation.labels.bincount().tolist() == [500] * 10
    scaled = data.train.images[:, :, ::4, ::4].double() / 255  # a sixteenth of the pixels will do
    assert torch.allclose(scaled.mean((0, 2, 3)), torch.tensor(cifar10.MEAN, dtype=torch.float64), atol=0.01)
    assert torch.allclose(scaled.std((0, 2, 3)), torch.tensor(cifar10.STD, dtype=torch.float64), atol=0.01)
    assert int(data.validation.images[:100].sum(dtype=torch.int64)) == 35_693_058, "the splits have changed"
