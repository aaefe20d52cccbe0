"""What RandAugment draws, and that its draws mean what torchvision's and UDA's do."""

import pytest
import torch
from torchvision.transforms.v2 import RandAugment as TheirRandAugment

from autodropout.training.augment import FIXMATCH, FIXMATCH_IMAGENET, IMAGENET, RANDAUGMENT, UDA, Operation, RandAugment
from autodropout.training.augment.operations import CODES, NAMES
from autodropout.training.augment.randaugment import to_bytes


def drawn(space: tuple[Operation, ...], m: int, top: int, size: tuple[int, int]) -> dict[str, set[float]]:
    """Every magnitude that was drawn for each operation, in 4,000 images."""
    codes, magnitudes = RandAugment(1, m, top=top, space=space).draw(torch.zeros(4000, 3, *size))
    return {operation.name: set(magnitudes[codes == CODES[operation.name]].tolist()) for operation in space}


@pytest.mark.parametrize("level", [0, 4, 9, 30])
def test_magnitudes_are_torchvisions(level: int) -> None:
    height, width = 32, 48
    ours = drawn(RANDAUGMENT, level, 30, (height, width))
    assert set(ours) == set(TheirRandAugment._AUGMENTATION_SPACE)
    for name, (values, signed) in TheirRandAugment._AUGMENTATION_SPACE.items():
        table = values(31, height, width)
        if table is None:
            continue
        value = float(table[level])
        if name == "Solarize":
            value *= 255
        if name.startswith("Translate"):
            value = int(value)
        expected = {value, -value} if signed else {value}
        got = {float(round(magnitude)) for magnitude in ours[name]} if name == "Posterize" else ours[name]
        assert sorted(got) == pytest.approx(sorted({magnitude + 0.0 for magnitude in expected}), rel=1e-5, abs=1e-5), (
            name
        )


@pytest.mark.parametrize("level", range(1, 10))
def test_magnitudes_are_udas(level: int) -> None:
    """The published formulas, for images of 32 pixels."""
    ours = drawn(UDA, level, 10, (32, 32))
    both = {"ShearX": 0.03 * level, "ShearY": 0.03 * level, "TranslateX": level, "TranslateY": level}
    both |= {"Rotate": int(30 * level / 10)}
    one = dict.fromkeys(("Brightness", "Contrast", "Color", "Sharpness"), 1.8 * level / 10 + 0.1 - 1)
    one |= {"Cutout": int(20 * level / 10)}
    for name, value in both.items():
        assert sorted(ours[name]) == pytest.approx([-value, value], rel=1e-5), name
    for name, value in one.items():
        assert sorted(ours[name]) == pytest.approx([value], rel=1e-5, abs=1e-6), name
    (bits,) = ours["Posterize"]
    assert round(bits) == 4 - int(4 * level / 10)
    (threshold,) = ours["Solarize"]
    ramp = torch.arange(256)
    assert torch.equal(ramp >= threshold, ramp >= 256 - int(256 * level / 10))


def test_fixmatchs_space() -> None:
    """The published list: the 14 of RandAugment, in other words, with UDA's magnitudes."""
    assert {operation.name for operation in FIXMATCH} == {operation.name for operation in RANDAUGMENT}
    assert len(FIXMATCH) == 14
    assert set(FIXMATCH) - set(UDA) == {Operation("Identity")}


@pytest.mark.parametrize("level", range(11))
def test_magnitudes_on_imagenet_are_those_of_the_published_code(level: int) -> None:
    """TensorFlow's TPU models, for images of 224 pixels: half of Cutout's side is int(40 level / 10) there."""
    ours = drawn(IMAGENET, level, 10, (224, 224))
    share = level / 10
    both = {"ShearX": 0.3 * share, "ShearY": 0.3 * share, "Rotate": 30 * share}
    both |= {"TranslateX": 100 * share, "TranslateY": 100 * share}
    one = dict.fromkeys(("Brightness", "Contrast", "Color", "Sharpness"), 1.8 * share + 0.1 - 1)
    one |= {"Cutout": 2 * int(40 * share), "SolarizeAdd": 110 * share, "Solarize": 256 * share}
    for name, value in both.items():
        assert sorted(ours[name]) == pytest.approx(sorted({-value, value}), rel=1e-5), name
    for name, value in one.items():
        assert sorted(ours[name]) == pytest.approx([value], rel=1e-5, abs=1e-6), name
    (bits,) = ours["Posterize"]
    assert round(bits) == int(4 * share)


def test_the_spaces_on_imagenet() -> None:
    assert len(IMAGENET) == len(FIXMATCH_IMAGENET) == 16
    assert set(IMAGENET) ^ set(FIXMATCH_IMAGENET) == {
        Operation("Identity"),
        Operation("Cutout", 0, 80 / 224, of_side=True),
    }


def test_operations_are_equally_likely() -> None:
    """Chi-square over 14 operations, 28,000 draws: below the 1e-6 quantile of 13 degrees of freedom."""
    codes, _ = RandAugment().draw(torch.zeros(28_000, 3, 8, 8))
    counts = codes.bincount(minlength=len(NAMES))
    of_space = counts[[CODES[operation.name] for operation in RANDAUGMENT]]
    assert of_space.sum() == 28_000
    assert ((of_space - 2000) ** 2 / 2000).sum() < 52.7


def test_levels_signs_and_skipping() -> None:
    """Chi-squares: 9 levels, 2 signs, done or not, of 18,000 draws: below the 1e-6 quantiles of 8, 1 and 1 degrees."""
    space = (Operation("ShearX", 0, 10, signed=True),)
    augment = RandAugment(1, (1, 9), top=10, space=space, probability=0.5)
    codes, magnitudes = augment.draw(torch.zeros(18_000, 3, 8, 8))
    levels = magnitudes.abs().round().long().bincount(minlength=10)
    assert len(levels) == 10
    assert levels[0] == 0
    assert ((levels[1:] - 2000) ** 2 / 2000).sum() < 42.7
    for share in ((magnitudes < 0).sum(), (codes == CODES["Identity"]).sum()):
        assert (2 * share - 18_000) ** 2 / 18_000 < 23.9


def test_n_operations_follow_each_other() -> None:
    """Three times Invert is Invert; a translation by 2 of 8 pixels, twice, by 4."""
    images = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    inverted = RandAugment(3, 1, space=(Operation("Invert"),))(images)
    assert torch.equal(inverted, 255 - images)
    moved = RandAugment(2, 30, space=(Operation("TranslateX", 0, 0.25, of_side=True),))(images)
    assert torch.equal(moved[..., 4:], images[..., :4])
    assert (moved[..., :4] == 0).all()
    assert torch.equal(RandAugment(0)(images), images)


@pytest.mark.parametrize("space", [RANDAUGMENT, UDA], ids=["randaugment", "uda"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 20, 28)])
def test_seeds_repeat_and_images_differ(space: tuple[Operation, ...], shape: tuple[int, int, int]) -> None:
    augment = RandAugment(2, (1, 9), top=10, space=space, fill=(0.5,) * shape[0])
    images = torch.randint(256, shape, dtype=torch.uint8).expand(40, -1, -1, -1)
    torch.manual_seed(5)
    first, second = augment(images), augment(images)
    torch.manual_seed(5)
    assert torch.equal(first, augment(images))
    assert not torch.equal(first, second)
    assert len({image.numpy().tobytes() for image in first}) > 30
    assert first.dtype == torch.uint8


def test_floats_are_rounded_to_bytes() -> None:
    images = torch.randint(256, (4, 3, 9, 9), dtype=torch.uint8)
    assert torch.equal(to_bytes(images / 255), images)
    assert to_bytes(torch.tensor([-0.5, 0.499 / 255, 0.501 / 255, 2.0])).tolist() == [0, 0, 1, 255]
    assert to_bytes(images) is images


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": -1}, "n must be at least 0, got -1"),
        ({"m": 31}, r"m must lie in 0..30, got 31"),
        ({"m": (5, 3)}, r"m must lie in 0..30, got \(5, 3\)"),
        ({"probability": 1.5}, "probability .* got 1.5"),
        ({"fill": (128.0,)}, r"fill .* got \(128.0,\)"),
        ({"space": ()}, "at least one operation"),
    ],
)
def test_mistakes(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RandAugment(**options)


def test_unknown_operations() -> None:
    with pytest.raises(ValueError, match="'Saturate'"):
        Operation("Saturate")
