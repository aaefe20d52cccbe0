"""Where the pixels of an augmented image come from: cropping, flipping and resizing, for a batch at a time.

Each image draws its own numbers; nothing here has a shape that depends on them and nothing waits for the device, so all
of it compiles into one graph and can be captured in a CUDA graph.

Two ways of reading pixels serve all that is drawn:

    pick      nearest pixel, by index: padded crops, flips, the affine operations of RandAugment; any dtype, exact
    resample  antialiased, as two products with small matrices, one per axis: random resized crops

The second equals PIL's and torchvision's bilinear resizing of a crop, whose triangle widens with the reduction, where
`grid_sample` would alias: a crop of 448 pixels read at 224 points leaves out half of them. (Where all images of a batch
have one box, in testing, torch's own resizing does it.)
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Padding = Literal["zero", "reflect"]
TRIES = 10  # boxes drawn for a random resized crop before the central one is taken


def pick(images: Tensor, rows: Tensor, columns: Tensor, fill: Tensor | float) -> Tensor:
    """Pixel (rows, columns) of each image, `fill` where that lies outside.

    Args:
        images: (N, C, H, W).
        rows, columns: int64, broadcast to (N, h, w).
        fill: one number, or (C, 1, 1) in the dtype of the images.
    """
    count, channels, height, width = images.shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)  # (N, h, w)
    index = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)  # (N, h, w)
    flat = index.flatten(1).unsqueeze(1).expand(-1, channels, -1)  # (N, C, h w)
    pixels = images.flatten(2).gather(2, flat).view(count, channels, *index.shape[1:])
    return torch.where(inside.unsqueeze(1), pixels, fill)  # (N, C, h, w)


def below(limit: Tensor) -> Tensor:
    """For each limit, a whole number drawn uniformly from 0, ..., limit - 1: int64."""
    draw = (torch.rand(limit.shape, device=limit.device) * limit).long()
    return torch.minimum(draw, limit.long() - 1)  # a product may round up to the limit


class CropFlip(nn.Module):
    """A crop of the image's own size out of the image padded on all sides, mirrored with probability 1/2.

    Args:
        pad: cells on each side; CIFAR-10's standard is 4. With 0 nothing is shifted.
        padding: "zero" is black, the standard; "reflect" is FixMatch's.
        flip: whether images are mirrored; digits should not be.
    """

    def __init__(self, pad: int = 4, padding: Padding = "zero", flip: bool = True) -> None:
        super().__init__()
        if pad < 0:
            raise ValueError(f"pad must be at least 0, got {pad}")
        if padding not in get_args(Padding):
            raise ValueError(f"padding must be one of {get_args(Padding)}, got {padding!r}")
        self.pad, self.padding, self.flip = pad, padding, flip

    def forward(self, images: Tensor) -> Tensor:
        count, _, height, width = images.shape
        if self.padding == "reflect" and self.pad >= min(height, width):
            raise ValueError(f"pad={self.pad} cannot be reflected in images of {height}x{width}")
        device = images.device
        rows = torch.arange(height, device=device).expand(count, -1)  # (N, H)
        columns = torch.arange(width, device=device).expand(count, -1)  # (N, W)
        if self.flip:
            mirrored = torch.rand(count, 1, device=device) < 0.5
            columns = torch.where(mirrored, width - 1 - columns, columns)
        if self.pad:
            shift = torch.randint(-self.pad, self.pad + 1, (2, count, 1), device=device)
            rows, columns = rows + shift[0], columns + shift[1]
        if self.padding == "reflect":
            rows, columns = _reflect(rows, height), _reflect(columns, width)
        return pick(images, rows.unsqueeze(2), columns.unsqueeze(1), 0)

    def extra_repr(self) -> str:
        return f"pad={self.pad}, padding={self.padding!r}, flip={self.flip}"


def _reflect(index: Tensor, size: int) -> Tensor:
    """Fold indices at most `size - 1` outside back in, the border cell not repeated."""
    return (size - 1) - (size - 1 - index.abs()).abs()


def weights(start: Tensor, length: Tensor, inputs: int, outputs: int) -> Tensor:
    """The matrix that resizes one axis of a crop of each image: (N, outputs, inputs), rows summing to 1.

    With a step of `length / outputs` cells from one to the next, output cell `o` is centred at `start + (o + 1/2) step`
    and reads a triangle around that, as wide as the step but at least one cell.

    Args:
        start, length: of the crop, in cells: (N, 1, 1).
        inputs, outputs: sizes of the axis.
    """
    step = length / outputs
    cells = torch.arange(inputs, device=start.device)  # (inputs,)
    centres = start + (torch.arange(outputs, device=start.device).unsqueeze(1) + 0.5) * step  # (N, outputs, 1)
    triangle = (1 - (cells + 0.5 - centres).abs() / step.clamp(min=1)).clamp(min=0)  # (N, outputs, inputs)
    triangle = torch.where((cells >= start) & (cells < start + length), triangle, 0)
    return triangle / triangle.sum(2, keepdim=True)


def resample(images: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
    """Resize with one matrix per axis: (N, C, H, W), (N, h, H), (N, w, W) -> float32 (N, C, h, w).

    The first product wants rows first, and the conversion to float copies anyway: so no matrix is repeated per channel.
    """
    count, channels, _, width = images.shape
    by_row = images.permute(0, 2, 1, 3).float().flatten(2)  # (N, H, C W)
    shrunk = torch.bmm(vertical, by_row).view(count, -1, width)  # (N, h C, W)
    small = torch.bmm(shrunk, horizontal.transpose(1, 2))  # (N, h C, w)
    return small.view(count, vertical.shape[1], channels, -1).permute(0, 2, 1, 3)  # (N, C, h, w)


class RandomResizedCrop(nn.Module):
    """A box of random area and shape, resized, and mirrored with probability 1/2 (Szegedy et al., CVPR 2015).

    Boxes follow torchvision's rule: the first of ten draws that fits, else the largest central one.

    Args:
        size: of the square result.
        area: smallest and largest share of the image's area.
        shape: smallest and largest width / height; its logarithm is uniform.
        flip: whether images are mirrored.
    """

    def __init__(
        self,
        size: int,
        area: tuple[float, float] = (0.08, 1.0),
        shape: tuple[float, float] = (3 / 4, 4 / 3),
        flip: bool = True,
    ) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        if not 0 < area[0] <= area[1] <= 1:
            raise ValueError(f"area must be two growing shares in (0, 1], got {area}")
        if not 0 < shape[0] <= shape[1]:
            raise ValueError(f"shape must be two growing positive numbers, got {shape}")
        self.size, self.area, self.shape, self.flip = size, area, shape, flip

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W), uint8 or in [0, 1] -> float32 in [0, 1], (N, C, size, size)."""
        count, _, height, width = images.shape
        top, left, tall, wide = self._boxes(count, height, width, images.device)  # (N, 1, 1) each
        vertical = weights(top, tall, height, self.size)
        horizontal = weights(left, wide, width, self.size)
        if self.flip:
            mirrored = torch.rand(count, 1, 1, device=images.device) < 0.5
            horizontal = torch.where(mirrored, horizontal.flip(1), horizontal)
        return in_unit(resample(images, vertical, horizontal), images.dtype)

    def _boxes(self, count: int, height: int, width: int, device: torch.device) -> tuple[Tensor, ...]:
        """Top, left, height and width of the boxes, int64, (N, 1, 1) each."""
        draws = torch.rand(2, count, TRIES, device=device)
        area = height * width * (self.area[0] + (self.area[1] - self.area[0]) * draws[0])
        low, high = math.log(self.shape[0]), math.log(self.shape[1])
        shape = torch.exp(low + (high - low) * draws[1])
        tall, wide = (area / shape).sqrt().round(), (area * shape).sqrt().round()  # (N, TRIES)
        fits = (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)
        chosen = fits.long().argmax(1, keepdim=True)  # (N, 1): the first that fits
        found = fits.any(1, keepdim=True)
        central = min(height, max(1, round(width / self.shape[0]))), min(width, max(1, round(height * self.shape[1])))
        tall = torch.where(found, tall.gather(1, chosen), central[0]).long()  # (N, 1)
        wide = torch.where(found, wide.gather(1, chosen), central[1]).long()
        top = torch.where(found, below(height - tall + 1), (height - tall) // 2)
        left = torch.where(found, below(width - wide + 1), (width - wide) // 2)
        return tuple(side.unsqueeze(2) for side in (top, left, tall, wide))

    def extra_repr(self) -> str:
        return f"size={self.size}, area={self.area}, shape=({self.shape[0]:.3g}, {self.shape[1]:.3g}), flip={self.flip}"


class CentreCrop(nn.Module):
    """The shorter side resized to `resize`, antialiased, then the central square of `size`. Draws nothing."""

    def __init__(self, size: int, resize: int) -> None:
        super().__init__()
        if not 1 <= size <= resize:
            raise ValueError(f"size must lie in 1..resize, got size={size}, resize={resize}")
        self.size, self.resize = size, resize

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W), uint8 or in [0, 1] -> float32 in [0, 1], (N, C, size, size)."""
        shorter = min(images.shape[2:])
        height, width = (side * self.resize // shorter for side in images.shape[2:])
        resized = F.interpolate(images.float(), (height, width), mode="bilinear", antialias=True)
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        crop = resized[:, :, top : top + self.size, left : left + self.size]
        return in_unit(crop, images.dtype)

    def extra_repr(self) -> str:
        return f"size={self.size}, resize={self.resize}"


def in_unit(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 values of what were images of `dtype`, with white at 1."""
    return values / 255 if dtype == torch.uint8 else values
