"""Each operation against torchvision's, image by image, and a batch in which every image has another one."""

import math

import pytest
import torch
from torchvision.transforms.v2 import functional as TF

from autodropout.training.augment.operations import CODES, NAMES, apply, square

SHAPES = [(3, 17, 23), (1, 16, 12), (3, 32, 32)]


def pictures(channels: int, height: int, width: int) -> torch.Tensor:
    """Noise, a ramp, a dim image, one colour, two colours: uint8, (5, C, H, W)."""
    noise = torch.randint(256, (channels, height, width))
    ramp = torch.linspace(0, 255, height * width).view(height, width).expand(channels, -1, -1)
    two = torch.where(torch.rand(channels, height, width) < 0.3, 10, 200)
    made = [noise, ramp, noise // 4 + 60, torch.full_like(noise, 37), two]
    return torch.stack([image.to(torch.uint8) for image in made])


def ours(images: torch.Tensor, name: str, magnitude: float, fill: int = 0) -> torch.Tensor:
    count = len(images)
    return apply(
        images,
        torch.full((count,), CODES[name]),
        torch.full((count,), magnitude),
        torch.full((count, 2), 0.5),
        torch.tensor(fill, dtype=torch.uint8).view(1, 1, 1),
    )


def theirs(image: torch.Tensor, name: str, magnitude: float) -> torch.Tensor:
    degrees = math.degrees(math.atan(magnitude))
    pixels = int(magnitude)
    functions = {
        "Identity": lambda: image,
        "AutoContrast": lambda: TF.autocontrast(image),
        "Equalize": lambda: TF.equalize(image),
        "Invert": lambda: TF.invert(image),
        "Solarize": lambda: TF.solarize(image, magnitude),
        "Posterize": lambda: TF.posterize(image, pixels),
        "Brightness": lambda: TF.adjust_brightness(image, 1 + magnitude),
        "Contrast": lambda: TF.adjust_contrast(image, 1 + magnitude),
        "Color": lambda: TF.adjust_saturation(image, 1 + magnitude),
        "Sharpness": lambda: TF.adjust_sharpness(image, 1 + magnitude),
        "ShearX": lambda: TF.affine(image, 0.0, [0, 0], 1.0, [degrees, 0.0], center=[0, 0]),
        "ShearY": lambda: TF.affine(image, 0.0, [0, 0], 1.0, [0.0, degrees], center=[0, 0]),
        "TranslateX": lambda: TF.affine(image, 0.0, [pixels, 0], 1.0, [0.0, 0.0]),
        "TranslateY": lambda: TF.affine(image, 0.0, [0, pixels], 1.0, [0.0, 0.0]),
        "Rotate": lambda: TF.rotate(image, magnitude),
    }
    return functions[name]()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "magnitudes"),
    [
        ("Identity", (0.0, 0.7)),
        ("AutoContrast", (0.0,)),
        ("Equalize", (0.0,)),
        ("Invert", (0.0,)),
        ("Solarize", (0.0, 25.5, 128.0, 255.0)),
        ("Posterize", (0.0, 1.0, 4.0, 7.0, 8.0)),
        ("TranslateX", (-5.0, 3.0, 0.0, 40.0)),
        ("TranslateY", (-5.0, 3.0, 0.0, 40.0)),
        # No pixel's centre comes to lie between two pixels at these: with such ties the two round differently.
        ("ShearX", (-0.2371, 0.0, 0.1713)),
        ("ShearY", (-0.2371, 0.0, 0.1713)),
        ("Rotate", (-27.3, 0.0, 11.7, 30.1)),
    ],
)
def test_equals_torchvision_bit_for_bit(shape: tuple[int, int, int], name: str, magnitudes: tuple[float, ...]) -> None:
    images = pictures(*shape)
    for magnitude in magnitudes:
        expected = torch.stack([theirs(image, name, magnitude) for image in images])
        assert torch.equal(ours(images, name, magnitude), expected), magnitude


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["Brightness", "Contrast", "Color", "Sharpness"])
def test_equals_torchvision_to_one_level(shape: tuple[int, int, int], name: str) -> None:
    """Blends are cut down to whole numbers: where a result is nearly whole the last bit of the product decides."""
    images = pictures(*shape)
    for magnitude in (-0.9, -0.27, 0.0, 0.1, 0.5, 0.9):
        expected = torch.stack([theirs(image, name, magnitude) for image in images]).int()
        difference = (ours(images, name, magnitude).int() - expected).abs()
        assert difference.max() <= 1
        assert (difference[:3] > 0).float().mean() < 0.02, magnitude


@pytest.mark.parametrize("magnitude", [-0.9, 0.9])
@pytest.mark.parametrize("name", ["Color", "Sharpness"])
def test_one_colour_stays_that_colour(name: str, magnitude: float) -> None:
    grey = torch.arange(0, 256, 5, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 6, 6)
    assert torch.equal(ours(grey, name, magnitude), grey)


def test_shears_by_common_numbers_differ_from_torchvisions_at_ties_only() -> None:
    images = pictures(3, 32, 32)[:1]
    for name in ("ShearX", "ShearY"):
        for magnitude in (-0.3, 0.09, 0.3):
            expected = theirs(images[0], name, magnitude)
            assert (ours(images, name, magnitude)[0] != expected).any(0).float().mean() < 0.11


def test_what_comes_from_outside_is_filled() -> None:
    image = torch.full((1, 1, 4, 6), 9, dtype=torch.uint8)
    assert ours(image, "TranslateX", 2.0, fill=5)[0, 0, 0].tolist() == [5, 5, 9, 9, 9, 9]
    assert ours(image, "TranslateY", -1.0, fill=5)[0, 0, :, 0].tolist() == [9, 9, 9, 5]


def test_dark_pixels_gain_and_bright_ones_do_not() -> None:
    image = torch.tensor([0, 1, 100, 127, 128, 255], dtype=torch.uint8).view(1, 1, 2, 3)
    assert ours(image, "SolarizeAdd", 30.9).flatten().tolist() == [30, 31, 130, 157, 128, 255]
    assert ours(image, "SolarizeAdd", 200.0).flatten().tolist() == [200, 201, 255, 255, 128, 255]


def test_the_square_of_cutout() -> None:
    images = torch.zeros(3, 1, 6, 8, dtype=torch.uint8)
    centre = torch.tensor([[0.5, 0.5], [0.0, 0.99], [0.5, 0.5]])
    covered = square(images, centre, torch.tensor([4, 4, 0]))[:, 0]
    assert covered[0].nonzero().min(0).values.tolist() == [1, 2]
    assert covered[0].nonzero().max(0).values.tolist() == [4, 5]
    assert covered[1].nonzero().tolist() == [[0, 5], [0, 6], [0, 7], [1, 5], [1, 6], [1, 7]]
    assert not covered[2].any()
    cut = ours(images + 9, "Cutout", 4.0, fill=7)
    assert torch.equal(cut[0, 0] == 7, covered[0])


def test_each_image_gets_its_own_operation() -> None:
    """In one call with all operations at once, every image comes out as from a call with its operation alone."""
    magnitudes = {
        "Solarize": 100.0,
        "Posterize": 3.0,
        "SolarizeAdd": 60.0,
        "TranslateX": 4.0,
        "TranslateY": -3.0,
        "Rotate": 20.3,
        "Cutout": 5.0,
    }
    magnitude = torch.tensor([magnitudes.get(name, 0.31) for name in NAMES])
    images = torch.randint(256, (len(NAMES), 3, 17, 23), dtype=torch.uint8)
    fill = torch.tensor([3, 6, 9], dtype=torch.uint8).view(3, 1, 1)
    centre = torch.rand(len(NAMES), 2)
    together = apply(images, torch.arange(len(NAMES)), magnitude, centre, fill)
    for number, name in enumerate(NAMES):
        one = slice(number, number + 1)
        possible = frozenset({name})
        alone = apply(images[one], torch.tensor([number]), magnitude[one], centre[one], fill, possible)
        assert torch.equal(together[one], alone), name
        assert torch.equal(alone, images[one]) == (name == "Identity"), name


def test_tiny_images() -> None:
    """Below 3 cells there is nothing to blur; one pixel has no contrast and nothing to equalize."""
    images = torch.randint(256, (len(NAMES), 3, 1, 2), dtype=torch.uint8)
    out = apply(
        images, torch.arange(len(NAMES)), torch.full((len(NAMES),), 0.5), torch.rand(len(NAMES), 2), images[0, :, :, :1]
    )
    for name in ("Identity", "Sharpness", "Equalize"):
        assert torch.equal(out[CODES[name]], images[CODES[name]]), name


def test_compiled_to_kernels() -> None:
    """The same bytes as eager, all operations at once; torch's compiled minimum of bytes is wrong on CPUs, for one."""
    count = 4 * len(NAMES)
    images = torch.randint(256, (count, 3, 18, 20), dtype=torch.uint8)
    operation = torch.arange(count) % len(NAMES)
    magnitude, centre = torch.rand(count) * 0.9, torch.rand(count, 2)
    fill = torch.full((3, 1, 1), 7, dtype=torch.uint8)
    compiled = torch.compile(apply, fullgraph=True)
    assert torch.equal(
        compiled(images, operation, magnitude, centre, fill), apply(images, operation, magnitude, centre, fill)
    )
