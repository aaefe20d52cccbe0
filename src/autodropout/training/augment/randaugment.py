"""RandAugment (Cubuk et al., NeurIPS 2020) and UDA's variant of it (Xie et al., NeurIPS 2020), on the device.

    RandAugment(n=2, m=9)(images)     # uint8 (N, C, H, W) -> uint8: two operations on each image, each image its own

A space is a list of operations with the magnitudes of the weakest and the strongest level. `RANDAUGMENT` is the paper's
list of 14 with AutoAugment's ranges, as torchvision has them; `IMAGENET` is the list of 16 of its authors' published
code, `UDA` the list of 15 of UDA's, `FIXMATCH` and `FIXMATCH_IMAGENET` those of FixMatch's (Sohn et al., NeurIPS 2020).
The n operations of an image follow each other, as in the papers: colours and moves do not commute, for what moves in
from outside is part of a histogram.

Departures:
1. The paper speaks of a scale of 10 and then uses magnitudes up to 28. Its code divides all of them by 10, so that 9 is
   nine tenths of the range; that is how `IMAGENET` is used here, up to 10. Levels of `RANDAUGMENT` run to 30, as in
   torchvision: its 9 is three tenths.
2. Pixels from outside get one fill colour, the data's mean in our pipelines. UDA's are transparent until the end, and
   black again after some operations.
3. Translations and squares are so many pixels of 32, on ImageNet of 224; for other sizes they grow in proportion.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autodropout.training.augment.operations import CODES, NAMES, apply


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of a space: magnitude `weakest` at level 0, `strongest` at the highest, linear between."""

    name: str
    weakest: float = 0.0
    strongest: float = 0.0
    signed: bool = False  # negated with probability 1/2
    of_side: bool = False  # a share of the image's side rather than a number

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"no operation is called {self.name!r}; there are {', '.join(NAMES)}")


Space = tuple[Operation, ...]
_TRANSLATE = 150 / 331  # of the side: AutoAugment's 150 pixels of its 331

RANDAUGMENT: Space = (
    Operation("Identity"),
    Operation("AutoContrast"),
    Operation("Equalize"),
    Operation("Rotate", 0, 30, signed=True),
    Operation("Solarize", 255, 0),
    Operation("Color", 0, 0.9, signed=True),
    Operation("Posterize", 8, 4),
    Operation("Contrast", 0, 0.9, signed=True),
    Operation("Brightness", 0, 0.9, signed=True),
    Operation("Sharpness", 0, 0.9, signed=True),
    Operation("ShearX", 0, 0.3, signed=True),
    Operation("ShearY", 0, 0.3, signed=True),
    Operation("TranslateX", 0, _TRANSLATE, signed=True, of_side=True),
    Operation("TranslateY", 0, _TRANSLATE, signed=True, of_side=True),
)
UDA: Space = (
    Operation("Invert"),
    Operation("Cutout", 0, 20 / 32, of_side=True),
    Operation("Sharpness", -0.9, 0.9),
    Operation("AutoContrast"),
    Operation("Posterize", 4.4, 0.4),  # rounded: 4 - int(4 level / 10), as published
    Operation("ShearX", 0, 0.3, signed=True),
    Operation("TranslateX", 0, 10 / 32, signed=True, of_side=True),
    Operation("TranslateY", 0, 10 / 32, signed=True, of_side=True),
    Operation("ShearY", 0, 0.3, signed=True),
    Operation("Rotate", 0, 30, signed=True),
    Operation("Equalize"),
    Operation("Contrast", -0.9, 0.9),
    Operation("Color", -0.9, 0.9),
    Operation("Solarize", 256, 0),
    Operation("Brightness", -0.9, 0.9),
)
FIXMATCH: Space = (
    Operation("Identity"),
    *(operation for operation in UDA if operation.name not in ("Invert", "Cutout")),
)
IMAGENET: Space = (
    Operation("AutoContrast"),
    Operation("Equalize"),
    Operation("Invert"),
    Operation("Rotate", 0, 30, signed=True),
    Operation("Posterize", -0.4, 3.6),  # rounded: int(4 level / 10); as published, a higher level keeps more bits,
    Operation("Solarize", 0, 256),  # and inverts fewer pixels
    Operation("SolarizeAdd", 0, 110),
    Operation("Color", -0.9, 0.9),
    Operation("Contrast", -0.9, 0.9),
    Operation("Brightness", -0.9, 0.9),
    Operation("Sharpness", -0.9, 0.9),
    Operation("ShearX", 0, 0.3, signed=True),
    Operation("ShearY", 0, 0.3, signed=True),
    Operation("TranslateX", 0, 100 / 224, signed=True, of_side=True),
    Operation("TranslateY", 0, 100 / 224, signed=True, of_side=True),
    Operation("Cutout", 0, 80 / 224, of_side=True),
)
FIXMATCH_IMAGENET: Space = (
    Operation("Identity"),
    *(operation for operation in IMAGENET if operation.name != "Cutout"),
)


class RandAugment(nn.Module):
    """`n` operations, one after the other, drawn for each image from a space.

    Args:
        n: how many; ResNet-50 on ImageNet had 2.
        m: their level, or (lowest, highest) to draw it anew for each.
        top: the highest level there is.
        space: what is drawn from.
        probability: of doing a drawn operation at all.
        fill: red, green, blue in [0, 1], or grey, for pixels from outside.
    """

    codes: Tensor  # the space as columns, (operations,) each
    weakest: Tensor
    span: Tensor
    signed: Tensor
    of_side: Tensor
    fill: Tensor  # (C, 1, 1)

    def __init__(
        self,
        n: int = 2,
        m: int | tuple[int, int] = 9,
        *,
        top: int = 30,
        space: Space = RANDAUGMENT,
        probability: float = 1.0,
        fill: tuple[float, ...] = (0.0,),
    ) -> None:
        super().__init__()
        low, high = (m, m) if isinstance(m, int) else m
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        if not 0 <= low <= high <= top:
            raise ValueError(f"m must lie in 0..{top}, got {m}")
        if not space:
            raise ValueError("a space needs at least one operation")
        if not 0 <= probability <= 1:
            raise ValueError(f"probability must lie in [0, 1], got {probability}")
        if not all(0 <= value <= 1 for value in fill):
            raise ValueError(f"fill must lie in [0, 1], got {fill}")
        self.n, self.low, self.high, self.top, self.probability = n, low, high, top, probability
        self.possible = frozenset(operation.name for operation in space)
        for name, value in (
            ("codes", torch.tensor([CODES[operation.name] for operation in space])),
            ("weakest", torch.tensor([float(operation.weakest) for operation in space])),
            ("span", torch.tensor([float(operation.strongest - operation.weakest) for operation in space])),
            ("signed", torch.tensor([operation.signed for operation in space])),
            ("of_side", torch.tensor([operation.of_side for operation in space])),
            ("fill", (torch.tensor(fill) * 255).round().to(torch.uint8)[:, None, None]),
        ):
            self.register_buffer(name, value, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """uint8, or float in [0, 1], which is rounded to 256 levels -> uint8."""
        images = to_bytes(images)
        for _ in range(self.n):
            operation, magnitude = self.draw(images)
            # Drawn where it is used only: the compiler leaves out what is not, and eager should draw the same numbers.
            with_squares = "Cutout" in self.possible
            centre = torch.rand(len(images), 2, device=images.device) if with_squares else None
            images = apply(images, operation, magnitude, centre, self.fill, self.possible)
        return images

    def draw(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """An operation's code and magnitude for each image: int64 and float32, (N,)."""
        count, device = images.shape[0], images.device
        height, width = images.shape[2:]
        chosen = torch.randint(len(self.codes), (count,), device=device)
        level = torch.randint(self.low, self.high + 1, (count,), device=device)
        magnitude = self.weakest[chosen] + level / self.top * self.span[chosen]
        operation = self.codes[chosen]
        side = torch.where(operation == CODES["TranslateX"], width, height)
        side = torch.where(operation == CODES["Cutout"], min(height, width), side)
        pixels = (magnitude * side + 1e-3).floor()  # whole ones; the little keeps 6.9999999 at 7
        magnitude = torch.where(self.of_side[chosen], pixels, magnitude)
        negative = self.signed[chosen] & (torch.rand(count, device=device) < 0.5)
        magnitude = torch.where(negative, -magnitude, magnitude)
        if self.probability < 1:
            skipped = torch.rand(count, device=device) >= self.probability
            operation = torch.where(skipped, CODES["Identity"], operation)
        return operation, magnitude

    def extra_repr(self) -> str:
        level = str(self.low) if self.low == self.high else f"{self.low}..{self.high}"
        chance = "" if self.probability == 1 else f", probability={self.probability}"
        return f"n={self.n}, m={level} of {self.top}, {len(self.codes)} operations{chance}"


def to_bytes(images: Tensor) -> Tensor:
    """Images as uint8; from floats in [0, 1] by rounding, with what lies outside clipped."""
    if images.dtype == torch.uint8:
        return images
    return (images * 255).round().clamp(0, 255).to(torch.uint8)
