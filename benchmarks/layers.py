"""What a layer costs: forward + backward and memory held, against nn.Dropout and torchvision's DropBlock2d in the
same run.

    make bench            # or: python benchmarks/layers.py [--smoke] [--out results/layers-cpu.json]

Prints a table and writes the raw times. Rounds are interleaved over the layers, so that a slow moment of the machine
hits all; ratios are medians of the per-round ratios. Memory held is what stays allocated after forward, output
included, input not.
"""

import gc
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn

from autodropout.layers import (
    ConvRule,
    DropBlock,
    DropLayer,
    Dropout,
    Rule,
    SequenceRule,
    SpatialDropout,
    StochasticDepth,
)
from autodropout.spaces import ConvPattern, SequencePattern
from recording import facts, options, write

RATE = 0.2


def worst_conv(share_c: bool = False) -> Rule:
    """Rotated, sheared, per channel: nothing is separable and nothing is shared."""
    pattern = ConvPattern(
        size=2, stride=2, repeat=4, share_c=share_c, residual=False, rotate=75, shear_x=0.55, shear_y=0.55
    )
    return ConvRule(pattern, (32, 32))


def sequence(share_t: bool = False, share_c: bool = False) -> Rule:
    return SequenceRule(SequencePattern(size=20, stride=10, share_t=share_t, share_c=share_c))


CONV: dict[str, nn.Module] = {
    "nn.Dropout": nn.Dropout(RATE),
    "torchvision DropBlock2d(7)": torchvision.ops.DropBlock2d(RATE, 7),
    "ours, worst pattern": DropLayer(worst_conv(), RATE),
    "ours, shared along channels": DropLayer(worst_conv(share_c=True), RATE),
    "DropBlock(7)": DropLayer(DropBlock(7), RATE),
    "Dropout": DropLayer(Dropout(), RATE),
    "SpatialDropout": DropLayer(SpatialDropout(), RATE),
    "StochasticDepth": DropLayer(StochasticDepth(), RATE),
}
SEQUENCE: dict[str, nn.Module] = {
    "nn.Dropout": nn.Dropout(RATE),
    "ours, nothing shared": DropLayer(sequence(), RATE),
    "ours, share_t": DropLayer(sequence(share_t=True), RATE),
    "ours, share_c": DropLayer(sequence(share_c=True), RATE),
}


def step(layer: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> float:
    x.grad = None
    start = time.perf_counter()
    layer(x).backward(grad)
    return time.perf_counter() - start


def held(layer: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Bytes of the output and of what autograd saved for backward, each storage once, `x` itself left out."""
    seen = {x.untyped_storage().data_ptr(): 0}

    def note(tensor: Tensor) -> Tensor:
        seen.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        note(layer(x))
    return sum(seen.values())


def measure(layers: dict[str, nn.Module], shape: tuple[int, ...], rounds: int) -> dict[str, dict[str, object]]:
    x = torch.randn(shape, requires_grad=True)
    grad = torch.randn(shape)
    for layer in layers.values():
        step(layer, x, grad)
    times: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(rounds):
        gc.collect()
        for name, layer in layers.items():
            times[name].append(step(layer, x, grad))

    def ratio(name: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))

    block = "torchvision DropBlock2d(7)"
    return {
        name: {
            "ms": [round(1e3 * t, 3) for t in times[name]],
            "median_ms": round(1e3 * statistics.median(times[name]), 2),
            "to_dropout": round(ratio(name, "nn.Dropout"), 3),
            "to_dropblock": round(ratio(name, block), 3) if block in layers else None,
            "held_bytes_per_element": round(held(layer, x) / x.numel(), 2),
        }
        for name, layer in layers.items()
    }


def main() -> None:
    parser = options(__doc__, "results/layers-cpu.json", smoke="small shapes and few rounds")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    torch.manual_seed(0)
    rounds = 3 if args.smoke else args.rounds
    shapes = [("ConvNet", CONV, (128, 64, 32, 32)), ("sequence", SEQUENCE, (16, 512, 1024))]
    if args.smoke:
        shapes = [(kind, layers, tuple(max(8, s // 8) for s in shape)) for kind, layers, shape in shapes]
    what = f"forward + backward, float32, rate {RATE}, {rounds} interleaved rounds"
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    record = facts(what, ("torch", "torchvision"), machine) | {"results": []}
    for kind, layers, shape in shapes:
        rows = measure(layers, shape, rounds)
        record["results"].append({"kind": kind, "shape": shape, "layers": rows})
        print(f"\n{kind} {shape}, {rounds} rounds, medians")
        print(f"{'layer':32}{'ms':>9}{'/ Dropout':>11}{'/ DropBlock2d':>15}{'held B/elem':>13}")
        for name, row in rows.items():
            block = f"{row['to_dropblock']:.2f}" if row["to_dropblock"] is not None else ""
            print(
                f"{name:32}{row['median_ms']:>9.1f}{row['to_dropout']:>11.2f}{block:>15}{row['held_bytes_per_element']:>13.2f}"
            )
    write(record, args.out)
    print(f"\nraw times: {args.out}")


if __name__ == "__main__":
    main()
