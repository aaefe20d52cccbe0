"""The masks again, in plain loops over Python numbers: slow, and short enough to check against the paper by eye.

Nothing here is shared with the fast code but the geometry records. Tests hold the two against each other cell by cell.
"""

import math
from functools import cache
from itertools import product
from typing import NamedTuple

from autodropout.patterns.conv import Tiling
from autodropout.patterns.sequence import Runs

Grid = list[list[bool]]  # rows of cells; True: dropped
Matrix = tuple[tuple[float, float], tuple[float, float]]  # rows for v and u, columns for y and x


class Draw(NamedTuple):
    """What one draw unit of a ConvNet pattern draws."""

    luck: float  # in [0, 1): hit when below the rate
    centre: tuple[int, int]  # the cell (y, x) on which the tiling is centred
    angle: float  # radians
    shear_x: float
    shear_y: float


def splitmix64(key: int, counter: int) -> int:
    """64 random bits for a counter under a key."""
    z = (key + counter * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def draw_words(seed: int, unit: int, count: int) -> list[int]:
    """`count` draws of 32 bits for one unit: the low, then the high half of each 64-bit draw."""
    pairs = (count + 1) // 2
    key = splitmix64(seed, 0)
    bits = [splitmix64(key, unit * pairs + k) for k in range(pairs)]
    return [half for b in bits for half in (b % 2**32, b >> 32)][:count]


def conv_draw(tiling: Tiling, h: int, w: int, seed: int, unit: int) -> Draw:
    """The draws of unit number `unit` (sample * channels + channel, or the sample)."""
    luck, y, x, angle, shear_x, shear_y = draw_words(seed, unit, 6)

    def symmetric(word: int, limit: float) -> float:
        return ((2 * word + 1) / 2**32 - 1) * limit

    return Draw(
        luck / 2**32,
        (y * h // 2**32, x * w // 2**32),
        symmetric(angle, math.radians(tiling.rotate)),
        symmetric(shear_x, tiling.shear_x),
        symmetric(shear_y, tiling.shear_y),
    )


def inverse_map(angle: float, shear_x: float, shear_y: float) -> Matrix:
    """From a cell back to the plane of the tiling, which is sheared along x, then along y, then rotated.

    The coefficients are rounded to multiples of 1/4096; after that floats are exact.
    """
    sin, cos = math.sin(angle), math.cos(angle)
    # [[1, 0], [-shear_y, 1]] acts on (x, y) before [[1, -shear_x], [0, 1]] does; the rotation is undone first of all.
    x = (cos, sin)  # x after undoing the rotation, as a combination of (x, y)
    y = (-sin, cos)
    y = (y[0] - shear_y * x[0], y[1] - shear_y * x[1])
    x = (x[0] - shear_x * y[0], x[1] - shear_x * y[1])
    return (_quantize(y[1]), _quantize(y[0])), (_quantize(x[1]), _quantize(x[0]))


def _quantize(value: float) -> float:
    return math.floor(value * 4096 + 0.5) / 4096


def in_tiling(cell: int, size: int, stride: int, repeat: int) -> bool:
    """Whether a cell, counted from the tiling's first, lies in a rectangle rather than a gap or outside."""
    return any(k * (size + stride) <= cell < k * (size + stride) + size for k in range(repeat))


def source(y: int, x: int, h: int, w: int, matrix: Matrix) -> tuple[int, int]:
    """The cell of the plane that a cell of the map shows: mapped back about the map's centre, then rounded."""
    dy, dx = y - (h - 1) / 2, x - (w - 1) / 2
    (vy, vx), (uy, ux) = matrix
    return math.floor(vy * dy + vx * dx + (h - 1) / 2 + 0.5), math.floor(uy * dy + ux * dx + (w - 1) / 2 + 0.5)


def drops(tiling: Tiling, axis: int, cell: int, centre: int) -> bool:
    """Whether the tiling centred on `centre` has a rectangle over `cell`, looking along one axis."""
    first = centre - (tiling.extent[axis] - 1) // 2
    return in_tiling(cell - first, tiling.size[axis], tiling.stride[axis], tiling.repeat)


def conv_cells(tiling: Tiling, h: int, w: int, centre: tuple[int, int], matrix: Matrix) -> Grid:
    """The cells that a pattern with these draws drops."""
    grid = [[False] * w for _ in range(h)]
    for y, x in product(range(h), range(w)):
        v, u = source(y, x, h, w, matrix)
        grid[y][x] = drops(tiling, 0, v, centre[0]) and drops(tiling, 1, u, centre[1])
    return grid


def conv_dropped(tiling: Tiling, shape: tuple[int, int, int, int], rate: float, seed: int) -> list[list[Grid]]:
    """The cells a seed drops, per sample and channel (one entry for all channels when shared)."""
    n, c, h, w = shape
    channels = 1 if tiling.share_c else c
    result: list[list[Grid]] = []
    for sample in range(n):
        result.append([])
        for channel in range(channels):
            draw = conv_draw(tiling, h, w, seed, sample * channels + channel)
            if draw.luck < rate:
                matrix = inverse_map(draw.angle, draw.shear_x, draw.shear_y)
                result[-1].append(conv_cells(tiling, h, w, draw.centre, matrix))
            else:
                result[-1].append([[False] * w for _ in range(h)])
    return result


def conv_coverage(tiling: Tiling, h: int, w: int, steps: int = 8) -> float:
    """The mean share of a map's cells that a hit covers: times the rate, it is the share of cells dropped.

    Every centre is enumerated; angle and shears are integrated by the midpoint rule in `steps` steps each.
    """

    @cache
    def share(axis: int, cell: int) -> float:
        """Of all centres along an axis, those whose tiling has a rectangle over the cell."""
        centres = (h, w)[axis]
        return sum(drops(tiling, axis, cell, centre) for centre in range(centres)) / centres

    def midpoints(limit: float) -> list[float]:
        return [((2 * k + 1) / steps - 1) * limit for k in range(steps)] if limit else [0.0]

    angles, shears_x = midpoints(math.radians(tiling.rotate)), midpoints(tiling.shear_x)
    means = []
    for draw in product(angles, shears_x, midpoints(tiling.shear_y)):
        matrix = inverse_map(*draw)
        sources = [source(y, x, h, w, matrix) for y, x in product(range(h), range(w))]
        means.append(sum(share(0, v) * share(1, u) for v, u in sources) / (h * w))
    return sum(means) / len(means)


def sequence_start(runs: Runs, length: int, seed: int, row: int) -> int:
    """Where a row's runs start: 0 when one run covers the sequence, else uniform over a period."""
    if runs.stride == 0 and runs.size >= length:
        return 0
    (word,) = draw_words(seed ^ 0x5DEECE66D, row, 1)
    return word * (runs.size + runs.stride) // 2**32


def sequence_dropped(runs: Runs, rows: int, length: int, channels: int, rate: float, seed: int) -> list[Grid]:
    """The values a seed drops: for each row (sample, or sample and head) a grid of tokens by channels."""
    width = 1 if runs.share_c else channels
    period = runs.size + runs.stride
    key = splitmix64(seed, 0)

    def dropped(number: int) -> bool:
        """Draw `number` of a stream of 16-bit draws, read as a signed number."""
        quarter = splitmix64(key, number // 4) >> (16 * (number % 4)) & 0xFFFF
        return (quarter ^ 0x8000) < math.floor(rate * 2**16 + 0.5)

    result: list[Grid] = []
    for row in range(rows):
        start = sequence_start(runs, length, seed, row)
        one_run = runs.stride == 0 and runs.size >= length
        slots = 1 if one_run else -(-length // period) + 1
        grid: Grid = []
        for token in range(length):
            covered = (token - start) % period < runs.size
            run = 0 if one_run else (token - start) // period + 1
            place = row * slots + run if runs.share_t else row * length + token
            line = [covered and dropped(place * width + channel) for channel in range(width)]
            grid.append(line * (channels if runs.share_c else 1))
        result.append(grid)
    return result
