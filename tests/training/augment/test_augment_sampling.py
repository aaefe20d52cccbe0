"""Crops, flips and resizing: equal to torchvision's where it does the same, and drawn as they should be."""

import pytest
import torch
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as TF

from autodropout.training.augment.sampling import (
    CentreCrop,
    CropFlip,
    RandomResizedCrop,
    below,
    pick,
    resample,
    weights,
)


def coordinates(count: int, height: int, width: int) -> torch.Tensor:
    """Images whose pixels say where they are: channel 0 the row, 1 the column, 2 always 1."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack((rows, columns, torch.ones_like(rows))).to(torch.uint8).expand(count, -1, -1, -1)


def test_pick_by_hand() -> None:
    image = torch.tensor([[[[1, 2, 3], [4, 5, 6]]]])
    rows, columns = torch.tensor([[[0, 1], [2, -1]]]), torch.tensor([[[2, 0], [0, 0]]])
    assert pick(image, rows, columns, 9).tolist() == [[[[3, 4], [9, 9]]]]


def test_below_is_uniform_and_never_reaches_its_limit() -> None:
    """Chi-square over 5 values, 50,000 draws: below the 1e-6 quantile of 4 degrees of freedom."""
    counts = below(torch.full((50_000,), 5)).bincount()
    assert len(counts) == 5
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 33.3
    assert below(torch.ones(1000)).eq(0).all()


class TestCropFlip:
    @pytest.mark.parametrize("padding", ["zero", "reflect"])
    @pytest.mark.parametrize("size", [(9, 9), (6, 11)])
    def test_every_result_is_a_crop_of_the_padded_image(self, padding: str, size: tuple[int, int]) -> None:
        images = torch.randint(256, (64, 3, *size), dtype=torch.uint8)
        padded = F.pad(images.float(), (2, 2, 2, 2), mode="constant" if padding == "zero" else "reflect").byte()
        height, width = size
        for image, out in zip(padded, CropFlip(2, padding)(images), strict=True):
            crops = [image[:, y : y + height, x : x + width] for y in range(5) for x in range(5)]
            assert sum(torch.equal(out, crop) or torch.equal(out, crop.flip(2)) for crop in crops) == 1

    def test_shifts_and_flips_are_uniform(self) -> None:
        """Chi-squares over 25 shifts, 24 degrees of freedom, and 2 orientations, 1: below their 1e-6 quantiles."""
        count = 25_000
        out = CropFlip(2)(coordinates(count, 8, 8) + 1).long()
        flipped = out[:, 1, 4, 4] < out[:, 1, 4, 3]
        row = out[:, 0, 4, 4] - 5
        column = torch.where(flipped, out[:, 1, 4, 3] - 5, out[:, 1, 4, 4] - 5)
        shifts = torch.bincount((row + 2) * 5 + column + 2, minlength=25)
        assert len(shifts) == 25
        assert ((shifts - count / 25) ** 2 / (count / 25)).sum() < 72.2
        assert (2 * flipped.sum() - count) ** 2 / count < 23.9

    def test_nothing_to_do_is_nothing_done(self) -> None:
        images = torch.rand(4, 1, 5, 7)
        assert torch.equal(CropFlip(0, flip=False)(images), images)

    def test_mistakes(self) -> None:
        with pytest.raises(ValueError, match="pad must be at least 0, got -1"):
            CropFlip(-1)
        with pytest.raises(ValueError, match="'wrap'"):
            CropFlip(1, "wrap")
        with pytest.raises(ValueError, match="pad=4 cannot be reflected in images of 4x9"):
            CropFlip(4, "reflect")(torch.zeros(1, 1, 4, 9))


class TestResampling:
    @pytest.mark.parametrize(
        ("box", "size"),
        [((0, 0, 20, 30), (7, 7)), ((3, 5, 11, 9), (24, 24)), ((1, 2, 13, 27), (8, 8)), ((4, 4, 8, 8), (8, 8))],
        ids=["shrink", "enlarge", "both", "equal"],
    )
    def test_equals_torchvisions_resized_crop(self, box: tuple[int, ...], size: tuple[int, int]) -> None:
        images = torch.rand(2, 3, 20, 30)
        top, left, tall, wide = (torch.full((2, 1, 1), side) for side in box)
        vertical, horizontal = weights(top, tall, 20, size[0]), weights(left, wide, 30, size[1])
        torch.testing.assert_close(vertical.sum(2), torch.ones(2, size[0]))
        expected = TF.resized_crop(images, *box, list(size), antialias=True)
        torch.testing.assert_close(resample(images, vertical, horizontal), expected, rtol=0, atol=2e-6)

    @pytest.mark.parametrize("shape", [(40, 60), (60, 40), (33, 50), (18, 18)])
    def test_centre_crop_equals_torchvisions(self, shape: tuple[int, int]) -> None:
        images = torch.rand(2, 3, *shape)
        expected = TF.center_crop(TF.resize(images, [24], antialias=True), [21, 21])
        torch.testing.assert_close(CentreCrop(21, 24)(images), expected, rtol=0, atol=2e-6)

    def test_bytes_give_the_same_as_floats(self) -> None:
        images = torch.randint(256, (2, 1, 16, 20), dtype=torch.uint8)
        torch.testing.assert_close(CentreCrop(8, 10)(images), CentreCrop(8, 10)(images / 255), rtol=0, atol=2e-6)


class TestRandomResizedCrop:
    def test_each_result_is_a_resized_crop(self) -> None:
        """A picture of coordinates, resized, still says where its box was, and is as torchvision resizes that box."""
        images = coordinates(100, 48, 64)
        torch.manual_seed(3)
        out = RandomResizedCrop(6)(images)
        torch.manual_seed(3)
        boxes = torch.cat(RandomResizedCrop(6)._boxes(100, 48, 64, images.device), 1).squeeze(2)
        kinds = set()
        for image, box, result in zip(images, boxes.tolist(), out, strict=True):
            expected = TF.resized_crop(image / 255, *box, [6, 6], antialias=True)
            mirrored = result[1, 0, 0] > result[1, 0, -1]
            kinds.add(bool(mirrored))
            torch.testing.assert_close(result, expected.flip(2) if mirrored else expected, rtol=0, atol=2e-6)
        assert kinds == {True, False}

    def test_areas_and_shapes_are_drawn_as_torchvisions(self) -> None:
        """Means over 40,000 boxes on 100 pixels square within 4.9 standard errors of torchvision's rule, p < 1e-6.

        With areas of 8% to 50% every draw fits, so the area is uniform and the logarithm of the shape too; rounding to
        cells moves both a little.
        """
        crop = RandomResizedCrop(8, area=(0.08, 0.5))
        _, _, tall, wide = (side.flatten().double() for side in crop._boxes(40_000, 100, 100, torch.device("cpu")))
        area, shape = tall * wide / 10_000, (wide / tall).log()
        assert abs(area.mean() - 0.29) < 4.9 * 0.42 / 12**0.5 / 200 + 2e-4
        assert abs(shape.mean()) < 4.9 * 0.575 / 12**0.5 / 200 + 2e-4
        assert area.min() < 0.082
        assert area.max() > 0.498

    def test_boxes_lie_in_the_image_and_reach_its_borders(self) -> None:
        top, left, tall, wide = RandomResizedCrop(8)._boxes(5000, 30, 20, torch.device("cpu"))
        assert min(top.min(), left.min()) == 0
        assert (top + tall).max() == 30
        assert (left + wide).max() == 20
        assert min(tall.min(), wide.min()) >= 1

    def test_where_no_box_fits_the_largest_central_one_is_taken(self) -> None:
        crop = RandomResizedCrop(4, area=(1.0, 1.0))  # of the whole area and at most 4:3, in an image of 3:1
        boxes = [side.unique().tolist() for side in crop._boxes(50, 20, 60, torch.device("cpu"))]
        assert boxes == [[0], [16], [20], [27]]
        boxes = [side.unique().tolist() for side in crop._boxes(50, 60, 20, torch.device("cpu"))]
        assert boxes == [[16], [0], [27], [20]]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"size": 0}, "size must be at least 1, got 0"),
            ({"size": 4, "area": (0.5, 0.1)}, r"area .* got \(0.5, 0.1\)"),
            ({"size": 4, "shape": (0.0, 1.0)}, r"shape .* got \(0.0, 1.0\)"),
        ],
    )
    def test_mistakes(self, options: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            RandomResizedCrop(**options)
        with pytest.raises(ValueError, match="size=9, resize=8"):
            CentreCrop(9, 8)
