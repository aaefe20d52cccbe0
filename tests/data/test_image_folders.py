"""ImageNet and Imagenette: their splits, on small folders of the same layout; the real Imagenette where it is there."""

from pathlib import Path

import pytest
import real_data
import torch
from image_tools import CLASSES, folder_of_images, picture

from autodropout.data import MissingData, imagenet, imagenette


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """imagenet/ with three classes of 6, 5 and 8 images."""
    monkeypatch.setattr(imagenet, "CLASSES", 3)
    folder_of_images(tmp_path / "imagenet", dict(zip(CLASSES, (6, 5, 8), strict=True)))
    return tmp_path


def seen(images: torch.Tensor) -> set[tuple[int, int]]:
    """The class and the number of each image, from its color."""
    return {(int(image[0, 0, 0]), int(image[1, 0, 0])) for image in images}


def test_parts_are_balanced_disjoint_and_nested(three: Path) -> None:
    search = imagenet.load(6, 3, size=8, data=three)
    assert search.train.labels.bincount().tolist() == [2, 2, 2]
    assert search.validation.labels.bincount().tolist() == [1, 1, 1]
    assert search.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    for part in (search.train, search.validation, search.test):
        assert part.images.shape == (len(part), 3, 8, 8)
        assert part.images[:, 0, 0, 0].tolist() == part.labels.tolist()  # a label stays with its image
    tenth = imagenet.semi(9, 3, size=8, data=three)
    parts = [seen(part) for part in (tenth.train.images, tenth.validation.images, tenth.unlabelled)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 19
    assert seen(search.validation.images) == parts[1]
    assert seen(search.train.images) < parts[0]  # the search's images lie in the labelled tenth
    final = imagenet.load(None, 0, size=8, data=three)
    assert len(final.train) == 19
    assert len(final.validation) == 0
    assert len(imagenet.load(None, 3, size=8, data=three).train) == 16
    assert seen(imagenet.load(6, 3, size=8, data=three, seed=1).train.images) != seen(search.train.images)


def test_the_default_counts_are_the_papers() -> None:
    """80,000 + 5,000 inside 128 of each of the 1,000 classes."""
    search, tenth = imagenet.load.__defaults__, imagenet.semi.__defaults__
    assert search == (80_000, 5_000)
    assert sum(tenth) == 128_000
    assert tenth[1] == search[1]
    assert sum(search) <= sum(tenth)


def test_only_what_is_wanted_is_decoded(three: Path) -> None:
    imagenet.load(6, 3, size=8, data=three)
    (pixels,) = (three / "imagenet").glob("train-0.8px.*.uint8")
    assert pixels.stat().st_size == 9 * 3 * 8 * 8


def test_val_without_class_folders(three: Path) -> None:
    folder = three / "imagenet"
    for number, file in enumerate(sorted((folder / "val").rglob("*.JPEG"))):
        file.rename(folder / f"val/{number}.JPEG")
    for name in CLASSES:
        (folder / "val" / name).rmdir()
    with pytest.raises(ValueError, match=r"val has no class folders, and .* neither val.txt nor LOC_val_solution.csv"):
        imagenet.load(6, 3, size=8, data=three)
    (folder / "val.txt").write_text("".join(f"{number}.JPEG {number // 2}\n" for number in range(6)))
    assert imagenet.load(6, 3, size=8, data=three).test.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_kaggles_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "CLASSES", 3)
    folder = folder_of_images(tmp_path / "ILSVRC/Data/CLS-LOC", dict.fromkeys(CLASSES, 3), test=0)
    picture(folder / "val/ILSVRC2012_val_00000001.JPEG", (2, 0, 0))
    (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\nILSVRC2012_val_00000001,n03 1 2 3 4\n")
    assert imagenet.load(3, 3, size=8, data=tmp_path).test.labels.tolist() == [2]


def test_folders_that_are_not_imagenets(three: Path) -> None:
    with pytest.raises(ValueError, match=r"train has 3 class folders, not 10"):
        imagenette.load(data=three / "imagenet")
    with pytest.raises(ValueError, match=r"15 \+ 3 images, but a class has only 5"):
        imagenet.load(15, 3, size=8, data=three)
    picture(three / "imagenet/val/n09/x.JPEG", (0, 0, 0))
    with pytest.raises(ValueError, match=r"n09 is none of the 3 classes"):
        imagenet.load(6, 3, size=8, data=three)


def test_without_imagenet_it_is_said_what_to_place_where(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"image-net.org.*imagenet/train/CLASS/\*.JPEG"):
        imagenet.load(data=tmp_path)


def test_the_real_imagenette() -> None:
    data = imagenette.load(train=100, validation=50, data=real_data.folder_of(imagenette.folder))
    assert (len(data.train), len(data.validation), len(data.test)) == (100, 50, 3_925)
    assert data.train.labels.bincount().tolist() == [10] * 10
    assert data.train.images.shape[1:] == (3, 96, 96)
    assert 90 < data.train.images.float().mean() < 150
