"""What a mask costs on a GPU: forward + backward and bytes held, against nn.Dropout and torchvision's DropBlock2d.

    python benchmarks/masks.py [--smoke] [--parts] [--out results/masks-h200.json]

bfloat16, channels_last, whole layers in CUDA graphs; the replays of all layers take turns, so that a slow moment hits
all, and ratios are medians of the ratios of a round. Our patterns are measured one by one; the worst of them is what
the tables speak of. `--parts` times each kernel alone. Where the bytes and operations go is in docs/performance.md.
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from augment import captured
from autodropout.layers import ConvRule, DropLayer, PatternRule, SequenceRule
from autodropout.patterns.kernels import apply, conv, sequence
from autodropout.spaces import ConvPattern, SequencePattern
from recording import Table, facts, options, write

RATE = 0.2
MAPS = ((512, 64, 32, 32), (256, 256, 56, 56), (256, 2048, 7, 7))
SEQUENCES = ((64, 512, 1024),)
ROUNDS, REPLAYS = 30, 10


class Scale(nn.Module):
    """Reads and writes, nothing else: what the memory allows."""

    def forward(self, h: Tensor) -> Tensor:
        return h * 1.25


def conv_patterns() -> dict[str, ConvPattern]:
    plain = {"residual": False, "rotate": 0, "shear_x": 0.0, "shear_y": 0.0, "share_c": False}
    turned = plain | {"rotate": 75, "shear_x": 0.55, "shear_y": 0.55}
    return {
        "small tiles, turned": ConvPattern(size=1, stride=1, repeat=32, **turned),
        "tiles, turned": ConvPattern(size=2, stride=2, repeat=4, **turned),
        "tiles, turned, shared": ConvPattern(size=2, stride=2, repeat=4, **(turned | {"share_c": True})),
        "one block": ConvPattern(size=2, stride=1, repeat=1, **plain),
        "everything": ConvPattern(size=4, stride=1, repeat=32, **plain),
    }


def sequence_patterns() -> dict[str, SequencePattern]:
    return {
        f"runs{', shared along tokens' * t}{', shared along channels' * c}": SequencePattern(
            size=20, stride=10, share_t=bool(t), share_c=bool(c)
        )
        for t in (0, 1)
        for c in (0, 1)
    } | {"as Dropout": SequencePattern(size=70, stride=0, share_t=False, share_c=False)}


def layers(shape: tuple[int, ...]) -> dict[str, nn.Module]:
    ours: dict[str, PatternRule]
    if len(shape) == 4:
        ours = {name: ConvRule(pattern, shape[2:]) for name, pattern in conv_patterns().items()}  # type: ignore[arg-type]
        peers: dict[str, nn.Module] = {"torchvision DropBlock2d(7)": torchvision.ops.DropBlock2d(RATE, 7)}
    else:
        ours = {name: SequenceRule(pattern) for name, pattern in sequence_patterns().items()}
        peers = {}
    return {
        "x * 1.25": Scale(), "nn.Dropout": nn.Dropout(RATE), **peers,
        **{f"ours: {name}": DropLayer(rule, RATE) for name, rule in ours.items()},
    }  # fmt: skip


def timed(work: Callable[[], None], replays: int) -> float:
    """Microseconds of one."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / replays


def held(layer: nn.Module, x: Tensor) -> float:
    """Bytes a value that stay allocated after forward, the output included."""
    layer(x)
    before = torch.cuda.memory_allocated()
    out = layer(x)
    after = torch.cuda.memory_allocated()
    del out
    return (after - before) / x.numel()


def measure(shape: tuple[int, ...], rounds: int) -> dict[str, Any]:
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    if len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    gradient = torch.randn_like(x)
    x.requires_grad_()
    found = {name: layer.cuda().train() for name, layer in layers(shape).items()}
    bytes_held = {name: held(layer, x) for name, layer in found.items()}
    replays = {
        name: captured(lambda layer=layer: torch.autograd.grad(layer(x), x, gradient)) for name, layer in found.items()
    }
    times: dict[str, list[float]] = {name: [] for name in found}
    for replay in replays.values():
        timed(replay, REPLAYS)
    for _ in range(rounds):
        for name, replay in replays.items():
            timed(replay, 2)  # whoever went before leaves a cache and a clock behind
            times[name].append(timed(replay, REPLAYS))
    return {
        name: {
            "us": round(statistics.median(taken), 1),
            "us_deviation": round(statistics.stdev(taken), 2) if rounds > 1 else None,
            "of_dropout": round(
                statistics.median(t / d for t, d in zip(taken, times["nn.Dropout"], strict=True)), 3
            ),
            "held": round(bytes_held[name], 3),
            "raw_us": [round(t, 1) for t in taken],
        }
        for name, taken in times.items()
    }  # fmt: skip


def parts(shape: tuple[int, ...]) -> dict[str, float]:
    """Microseconds of each kernel alone, of the first pattern."""
    rule = next(layer for name, layer in layers(shape).items() if name.startswith("ours")).drop.rule  # type: ignore[union-attr]
    tokens = torch.tensor(rule.tokens(), dtype=torch.int32, device="cuda")
    rate, seed = torch.tensor(RATE, device="cuda"), torch.tensor(12345 << 40, device="cuda")
    h = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    if len(shape) == 3:
        bits, kept = sequence.sequence_bits(tokens, rate, seed, 7, shape)
        works: dict[str, Callable[[], Any]] = {
            "bits": lambda: sequence.sequence_bits(tokens, rate, seed, 7, shape),
            "apply": lambda: apply.apply_rows(h, bits, kept),
        }
    else:
        h = h.contiguous(memory_format=torch.channels_last)
        bits, kept = conv.conv_bits(tokens, rate, seed, 7, shape, True)
        no_rate = torch.zeros_like(rate)
        works = {
            "bits": lambda: conv.conv_bits(tokens, rate, seed, 7, shape, True),
            "bits, nothing hit": lambda: conv.conv_bits(tokens, no_rate, seed, 7, shape, True),
            "apply": lambda: apply.apply_last(h, bits, kept),
        }
    works["x * 1.25"] = lambda: h * 1.25
    works["empty graph node"] = lambda: rate.add(1.0)
    return {name: round(min(timed(captured(work), 20) for _ in range(5)), 1) for name, work in works.items()}


def main() -> None:
    parser = options(__doc__, "results/masks-h200.json", "small tensors, 2 rounds")
    parser.add_argument("--parts", action="store_true", help="time each kernel alone, too")
    arguments = parser.parse_args()
    shapes: tuple[tuple[int, ...], ...] = MAPS + SEQUENCES
    if arguments.smoke:
        shapes = ((8, 64, 32, 32), (4, 70, 256))
    record = facts(
        "forward + backward of one layer, bf16, channels_last, CUDA graph replay",
        ("torch", "torchvision", "triton"),
        torch.cuda.get_device_name(),
    ) | {"rate": RATE, "rounds": 2 if arguments.smoke else ROUNDS, "replays_a_round": REPLAYS, "shapes": {}}
    for shape in shapes:
        label = "x".join(map(str, shape))
        table = Table(("us", "us_deviation", "of_dropout", "held"), label=36, width=14)
        print(label)
        result = measure(shape, record["rounds"])
        for name, row in result.items():
            table.row(f"  {name}", row)
        worst = max((name for name in result if name.startswith("ours")), key=lambda name: result[name]["of_dropout"])
        entry: dict[str, Any] = {"layers": result, "worst": worst, "worst_of_dropout": result[worst]["of_dropout"]}
        if "torchvision DropBlock2d(7)" in result:
            entry["faster_than_dropblock"] = round(result["torchvision DropBlock2d(7)"]["us"] / result[worst]["us"], 1)
        if arguments.parts:
            entry["parts_us"] = parts(shape)
            print("  parts:", entry["parts_us"])
        print(f"  worst: {worst}, {entry['worst_of_dropout']} of nn.Dropout", flush=True)
        record["shapes"][label] = entry
        write(record, arguments.out)  # after each shape: a figure that was paid for is not lost
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
