"""What augmentation costs on the device, in batches, against torchvision's transforms, one image at a time on one
core, in the same run.

    python benchmarks/augment.py [--device cuda] [--smoke] [--out results/augment-cpu.json]

Ours runs as it is ("eager"), through torch.compile, and on CUDA also as a captured graph of each. Rounds are
interleaved, so that a slow moment of the machine hits all; ratios are medians of the per-round ratios. torchvision sees
a part of the batch, for it would take minutes on all of it.
"""

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from autodropout.training.augment import (
    CIFAR_MEAN,
    CIFAR_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    augmentation,
)
from recording import facts, options, write

CIFAR = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(CIFAR_MEAN), list(CIFAR_STD))])
IMAGENET = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(IMAGENET_MEAN), list(IMAGENET_STD))])
CROP_FLIP = (v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip())
RESIZED_FLIP = (v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip())
SQUARE = v2.RandomErasing(1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0))  # Cutout of 16 of 32 pixels, never clipped

THEIRS: dict[str, nn.Module] = {
    "none": CIFAR,
    "standard": v2.Compose([*CROP_FLIP, CIFAR]),
    "randaugment": v2.Compose([*CROP_FLIP, v2.RandAugment(3, 5), CIFAR, SQUARE]),
    "uda": v2.Compose([*CROP_FLIP, v2.RandAugment(2, 9), CIFAR, SQUARE]),  # it has no UDA; the nearest it has
    "imagenet": v2.Compose([*RESIZED_FLIP, IMAGENET]),
    "imagenet_randaugment": v2.Compose([*RESIZED_FLIP, v2.RandAugment(2, 9), IMAGENET]),
    "imagenet_eval": v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224), IMAGENET]),
}


def one_by_one(transform: nn.Module, images: Tensor) -> Callable[[], Tensor]:
    return lambda: torch.stack([transform(image) for image in images])


def captured(function: Callable[[], Tensor]) -> Callable[[], None]:
    """The function's kernels as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def ways(name: str, images: Tensor, compiled: bool) -> dict[str, Callable[[], object]]:
    """Ours, each as a function that augments the batch once."""
    mean, std = (IMAGENET_MEAN, IMAGENET_STD) if name.startswith("imagenet") else (CIFAR_MEAN, CIFAR_STD)
    augment = augmentation(name, mean, std).to(images.device)
    found: dict[str, Callable[[], object]] = {"eager": lambda: augment(images)}
    if compiled:
        torch.compiler.reset()
        in_one = torch.compile(augment, fullgraph=True, dynamic=False)
        in_one(images)
        found["compiled"] = lambda: in_one(images)
    if images.is_cuda:
        found |= {f"{way}, graph": captured(function) for way, function in found.items()}
    return found


def seconds(function: Callable[[], object], device: torch.device, repeats: int = 1) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def measure(name: str, images: Tensor, part: int, rounds: int, compiled: bool) -> dict[str, dict[str, object]]:
    device = images.device
    repeats = 10 if device.type == "cuda" else 1
    functions = ways(name, images, compiled)
    theirs = one_by_one(THEIRS[name], images[:part].cpu())
    for function in (*functions.values(), theirs):
        seconds(function, device)
    per_image: dict[str, list[float]] = {"torchvision": [], **{way: [] for way in functions}}
    for _ in range(rounds):
        per_image["torchvision"].append(seconds(theirs, torch.device("cpu")) / part)
        for way, function in functions.items():
            per_image[way].append(seconds(function, device, repeats) / len(images))
    return {
        way: {
            "images_per_s": round(1 / statistics.median(times)),
            "ms_per_batch": round(1e3 * statistics.median(times) * len(images), 4),
            "times_torchvision": round(
                statistics.median(a / b for a, b in zip(per_image["torchvision"], times, strict=True)), 2
            ),
            "us_per_image": [round(1e6 * t, 3) for t in times],
        }
        for way, times in per_image.items()
    }


def main() -> None:
    parser = options(__doc__, None, smoke="small batches, few rounds, not compiled")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--names", nargs="+", choices=tuple(THEIRS), default=tuple(THEIRS))
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    rounds = 2 if args.smoke else args.rounds
    small, large = (8, 4) if args.smoke else (512, 256) if on_gpu else (256, 16)
    what = f"raw bytes to normalized floats, {rounds} interleaved rounds, torchvision on one core of the host"
    machine = torch.cuda.get_device_name(device) if on_gpu else f"{platform.machine()}, 1 thread"
    record = facts(what, ("torch", "torchvision"), machine) | {"results": []}
    print(f"{'pipeline':22}{'batch':>22}  {'way':18}{'images/s':>12}{'ms/batch':>11}{'x torchvision':>15}")
    for name in args.names:
        shape = (large, 3, 256, 256) if name.startswith("imagenet") else (small, 3, 32, 32)
        images = torch.randint(256, shape, dtype=torch.uint8, device=device)
        rows = measure(name, images, min(64 if shape[2] == 32 else 16, len(images)), rounds, not args.smoke)
        record["results"].append({"pipeline": name, "shape": shape, "ways": rows})
        for way, row in rows.items():
            numbers = f"{row['images_per_s']:>12,}{row['ms_per_batch']:>11.3f}{row['times_torchvision']:>15.1f}"
            print(f"{name:22}{shape!s:>22}  {way:18}{numbers}")
    out = args.out or Path(f"results/augment-{device.type}.json")
    write(record, out)
    print(f"\nraw times: {out}")


if __name__ == "__main__":
    main()
