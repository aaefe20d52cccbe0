"""The operations of AutoAugment (Cubuk et al., CVPR 2019) and RandAugment on a batch in which every image has its own.

`apply(images, operation, magnitude, ...)` sends every image through every stage, with neutral numbers where the stage
is not its own: there is no branch, no boolean indexing and no wait for the device. The stages, on the whole batch:

    look up   AutoContrast, Equalize, Solarize, SolarizeAdd, Posterize, Invert: a table of 256 entries per image and
              channel
    enhance   Brightness, Contrast, Color, Sharpness: PIL's enhancers, a blend with black, mean grey, grey, blurred
    move      ShearX, ShearY, TranslateX, TranslateY, Rotate: one inverse affine map per image, nearest pixel
    cut       Cutout: a square of the fill colour

Images are uint8, as in PIL; results equal torchvision's (and PIL's, to rounding) operation by operation. What a
magnitude means, in torchvision's terms:

    Brightness, Contrast, Color, Sharpness   the factor is 1 + magnitude
    Solarize                                 threshold in 0..256      Posterize   bits kept, rounded to a whole number
    SolarizeAdd                              what pixels below 128 gain, at most to 255; not in torchvision
    ShearX, ShearY                           tangent of the angle     Rotate      degrees, counter-clockwise
    TranslateX, TranslateY, Cutout           whole pixels (Cutout: side of the square)

Departure from torchvision, one: a blend of equal values is that value, here and in PIL; there its rounding may be one
lower, so Contrast and Color can differ by 1 of 255.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from autodropout.training.augment.sampling import pick

NAMES = (
    "Identity",
    "AutoContrast",
    "Equalize",
    "Solarize",
    "SolarizeAdd",
    "Posterize",
    "Invert",
    "Brightness",
    "Contrast",
    "Color",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Cutout",
)
CODES = {name: code for code, name in enumerate(NAMES)}
LOOKUPS = frozenset({"AutoContrast", "Equalize", "Solarize", "SolarizeAdd", "Posterize", "Invert"})
ENHANCERS = frozenset({"Brightness", "Contrast", "Color", "Sharpness"})
MOVES = frozenset({"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"})
GREY = (0.2989, 0.587, 0.114)  # ITU-R 601 luma, as torchvision writes it


def apply(
    images: Tensor,
    operation: Tensor,
    magnitude: Tensor,
    centre: Tensor | None,
    fill: Tensor,
    possible: frozenset[str] = frozenset(NAMES),
) -> Tensor:
    """One operation on each image.

    Args:
        images: uint8, (N, C, H, W), C being 1 or 3.
        operation: codes into NAMES, int64, (N,).
        magnitude: float32, (N,).
        centre: where Cutout's square lies, as shares of height and width in [0, 1): (N, 2); None without Cutout.
        fill: uint8, (C, 1, 1): the colour of what comes from outside, and of Cutout's square.
        possible: names of which `operation` holds no others: stages without any are left out.
    """
    assert images.dtype == torch.uint8, images.dtype
    if possible & LOOKUPS:
        images = _look_up(images, operation, magnitude, equalize="Equalize" in possible)
    if possible & ENHANCERS:
        images = _enhance(images, operation, magnitude)
    if possible & MOVES:
        images = _move(images, operation, magnitude, fill)
    if "Cutout" in possible:
        assert centre is not None
        side = torch.where(operation == CODES["Cutout"], magnitude, 0).long()
        images = torch.where(square(images, centre, side), fill, images)
    return images


def square(images: Tensor, centre: Tensor, side: Tensor) -> Tensor:
    """Where a square of `side` cells around `centre` covers each image: boolean, (N, 1, H, W).

    As its authors' (DeVries and Taylor 2017): half the side each way from a cell, clipped at the borders.
    """
    height, width = images.shape[2:]
    half = side[:, None] // 2  # (N, 1)
    row, column = (centre[:, :1] * height).long(), (centre[:, 1:] * width).long()  # (N, 1)
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    within_rows = (rows >= row - half) & (rows < row + half)  # (N, H)
    within_columns = (columns >= column - half) & (columns < column + half)  # (N, W)
    return within_rows[:, None, :, None] & within_columns[:, None, None, :]


def _look_up(images: Tensor, operation: Tensor, magnitude: Tensor, equalize: bool) -> Tensor:
    ramp = torch.arange(256, device=images.device)  # (256,)
    index = images.flatten(2).long()  # (N, C, H W)
    low, high = torch.aminmax(
        index, dim=2, keepdim=True
    )  # (N, C, 1); compiled on a CPU it is wrong on bytes (torch 2.14)
    own, amount = operation[:, None, None], magnitude[:, None, None]  # (N, 1, 1)

    tables = torch.where((own == CODES["Solarize"]) & (ramp >= amount), 255 - ramp, ramp)  # (N, 1, 256)
    lifted = (ramp + amount.long()).clamp(max=255)  # (N, 1, 256)
    tables = torch.where((own == CODES["SolarizeAdd"]) & (ramp < 128), lifted, tables)
    tables = torch.where(own == CODES["Invert"], 255 - ramp, tables)
    dropped = (8 - amount.round().long()).clamp(0, 8)  # bits
    tables = torch.where(own == CODES["Posterize"], ramp >> dropped << dropped, tables)
    scale = torch.where(high > low, (high - low).float() * (1 / 255), 1)
    stretched = torch.where(high > low, ((ramp - low) / scale).clamp(0, 255).long(), ramp)  # (N, C, 256)
    tables = torch.where(own == CODES["AutoContrast"], stretched, tables)
    if equalize:
        tables = torch.where(own == CODES["Equalize"], _equalizing(index, high), tables)
    return tables.to(torch.uint8).gather(2, index).view_as(images)


def _equalizing(index: Tensor, high: Tensor) -> Tensor:
    """PIL's tables for equal histograms: pixels (N, C, H W) and the brightest of them (N, C, 1) -> (N, C, 256)."""
    ramp = torch.arange(256, device=index.device)
    histogram = torch.zeros(*index.shape[:2], 256, dtype=torch.int32, device=index.device)
    one = torch.ones((), dtype=torch.int32, device=index.device)
    histogram = histogram.scatter_add(2, index, one.expand_as(index))
    darker = histogram.cumsum(2) - histogram  # (N, C, 256), int64: pixels below each value
    step = (index.shape[2] - histogram.gather(2, high)) // 255  # (N, C, 1)
    spread = ((darker + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, ramp)


def _enhance(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    def own(name: str) -> Tensor:
        return (operation == CODES[name])[:, None, None, None]  # (N, 1, 1, 1)

    pixels = images.float()
    grey = _grey(pixels)  # (N, 1, H, W)
    other = torch.where(own("Color"), grey, 0)  # Brightness: black
    other = torch.where(own("Contrast"), grey.mean((2, 3), keepdim=True), other)
    other = torch.where(own("Sharpness"), _blurred(pixels), other)  # (N, C, H, W)
    any_of_them = own("Brightness") | own("Contrast") | own("Color") | own("Sharpness")
    towards = torch.where(any_of_them, -magnitude[:, None, None, None], 0)  # 1 - factor
    blended: Tensor = pixels + towards * (other - pixels)
    return blended.clamp(0, 255).to(torch.uint8)


def _grey(pixels: Tensor) -> Tensor:
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.split(1, dim=1)
    luma: Tensor = red * GREY[0] + green * GREY[1] + blue * GREY[2]
    return luma.floor()


def _blurred(pixels: Tensor) -> Tensor:
    """PIL's SMOOTH filter, a 3x3 mean with 5 in the middle, in whole numbers; the border stays as it is."""
    if min(pixels.shape[2:]) < 3:
        return pixels
    middle = pixels[:, :, 1:-1, 1:-1]
    smooth = ((9 * F.avg_pool2d(pixels, 3, stride=1) + 4 * middle) / 13).round()
    return pixels + F.pad(smooth - middle, (1, 1, 1, 1))


def _move(images: Tensor, operation: Tensor, magnitude: Tensor, fill: Tensor) -> Tensor:
    """Read each pixel where the inverse of the image's map takes its centre.

    Shears fix the top left corner, as AutoAugment's; rotations the middle of the image.
    """

    def amount(name: str) -> Tensor:
        return torch.where(operation == CODES[name], magnitude, 0)[:, None, None]  # (N, 1, 1)

    height, width = images.shape[2:]
    y = torch.arange(height, device=images.device)[:, None] + 0.5  # (H, 1)
    x = torch.arange(width, device=images.device) + 0.5  # (W,)
    angle = torch.deg2rad(amount("Rotate"))
    sine, cosine = angle.sin(), angle.cos()
    from_middle_y, from_middle_x = y - height / 2, x - width / 2
    across = amount("ShearX") * y - amount("TranslateX").trunc() - sine * from_middle_y
    down = amount("ShearY") * x - amount("TranslateY").trunc() + sine * from_middle_x
    columns = (width / 2 + cosine * from_middle_x + across).floor().long()  # (N, H, W)
    rows = (height / 2 + cosine * from_middle_y + down).floor().long()
    return pick(images, rows, columns, fill)
