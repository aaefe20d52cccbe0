"""How long the kernels of relative attention take, in other blocks, with more warps, with fewer registers.

    python benchmarks/attention.py [--out attention.txt]          # needs a GPU; half a minute, most of it compiling

Two sizes, the stacked models of `stacked.py`: 24 of the paper's, heads of 38 in rows of 384 behind 70 words of memory,
and 40 small ones, heads of 32. The first line of each is what the modules have; the others change some of it. Whether
results are right is the tests' business.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from augment import captured
from autodropout.models import relative_attention_backward_kernel, relative_attention_kernel
from kernels import kernels


class Size(NamedTuple):
    children: int
    heads: int
    channels: int  # of a head
    length: int
    before: int
    row: int  # channels of all heads, and spare ones


SIZES = {"paper": Size(24, 10, 38, 70, 70, 384), "small": Size(40, 8, 32, 70, 0, 256)}
SAMPLES = 16
FORWARD: tuple[dict[str, Any], ...] = ({}, {"REGISTERS": None}, {"KEYS": 64}, {"QUERIES": 32, "WARPS": 2})
BACKWARD: tuple[dict[str, Any], ...] = (
    *({}, {"REGISTERS": None}, {"REGISTERS": 104}, {"STAGES": 2, "REGISTERS": None}),
    *({"QUERIES": 32, "REGISTERS": 168}, {"KEYS": 32, "WARPS": 2}, {"KEYS": 32, "REGISTERS": None}),
    *({"QUERIES_AFTER": 32}, {"KEYS_AFTER": 16}, {"KEYS_AFTER": 64}, {"STAGES_AFTER": 2}),
)


def inputs(size: Size, device: str) -> tuple[Tensor, tuple[Any, ...]]:
    """The gradient of what is attended to, and what attention takes."""
    reach, channels = size.length + size.before, size.heads * size.channels

    def rows(tokens: int) -> Tensor:
        made = torch.randn(size.children, SAMPLES, tokens, size.row, device=device)
        return made.bfloat16()[..., :channels]

    distances = (size.children, size.heads, SAMPLES * size.length, reach + 8 - reach % 8)
    packed = (size.children, SAMPLES, size.heads, size.length, (reach + 7) // 8)
    query = rows(size.length) * size.channels**-0.5
    by_distance = torch.randn(distances, device=device).bfloat16()
    bits = torch.randint(256, packed, dtype=torch.uint8, device=device)
    scale = torch.full((size.children,), 2.0, device=device)
    return rows(size.length), (query, rows(reach), rows(reach), by_distance, bits, scale)


def sweep(
    title: str, module: ModuleType, settings: Sequence[dict[str, Any]], work: Callable[[], object], file: Path | None
) -> None:
    for setting in settings:
        changed = ", ".join(f"{name} {value}" for name, value in setting.items()) or "as it is"
        with mock.patch.dict(vars(module), setting):
            wall, found = kernels(captured(work))
        parts = ", ".join(f"{kernel.name.lstrip('_')} {kernel.us:.1f}" for kernel in found)
        line = f"{title}, {changed}: {wall:.1f} us; {parts}"
        print(line, flush=True)
        if file:
            with file.open("a") as lines:
                lines.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a text file")
    out = parser.parse_args().out
    if not torch.cuda.is_available():
        parser.error("there is no GPU")
    fore, back = relative_attention_kernel, relative_attention_backward_kernel
    for name, size in SIZES.items():
        gradient, given = inputs(size, "cuda")
        given = (*given, size.heads, size.before)
        found = fore.forward(*given)
        asked = (gradient, *given[:6], *found, *given[6:])
        sweep(f"{name}, forward", fore, FORWARD, partial(fore.forward, *given), out)
        sweep(f"{name}, backward", back, BACKWARD, partial(back.backward, *asked), out)


if __name__ == "__main__":
    main()
