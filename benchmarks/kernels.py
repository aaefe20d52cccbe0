"""The kernels that a captured step consists of, by name, with their times and numbers: where a GPU's time goes.

    python benchmarks/kernels.py wrn-28-2 resnet50           # one child under the worst policy
    python benchmarks/kernels.py resnet50 --bare             # and without a policy
    python benchmarks/kernels.py small paper                 # 40 and 24 stacked language models under a full policy
    python benchmarks/kernels.py masks [--out kernels.txt]   # a mask's forward and backward, and nn.Dropout's

Times are those of torch's profiler (CUPTI), which the replays are slower under by a few percent; "wall" is without it.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import crowd
import masks
import stacked
from augment import captured
from autodropout.training import Run
from training import full_policy

WARM_UPS, REPLAYS = 3, 10
GPU = Run(device="cuda", precision="bfloat16", compile=True)


class Kernel(NamedTuple):
    name: str
    us: float  # in all, of one replay
    count: float


def kernels(replay: Callable[[], object]) -> tuple[float, list[Kernel]]:
    """Microseconds of a replay, and the kernels in it, the costliest first."""
    for _ in range(WARM_UPS):
        replay()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(REPLAYS):
        replay()
    torch.cuda.synchronize()
    wall = 1e6 * (time.perf_counter() - start) / REPLAYS
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(REPLAYS):
            replay()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times.setdefault(event.name, []).append(event.device_time)
    found = [Kernel(name, sum(each) / REPLAYS, len(each) / REPLAYS) for name, each in times.items()]
    return wall, sorted(found, key=lambda kernel: -kernel.us)


def layers() -> Iterator[tuple[str, int, Callable[[], object]]]:
    """On each shape the first of our patterns, and torch's own."""
    for shape in (*masks.MAPS, *masks.SEQUENCES):
        found = masks.layers(shape)
        for name in (next(name for name in found if name.startswith("ours")), "nn.Dropout"):
            x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            if len(shape) == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            gradient, layer = torch.randn_like(x), found[name].cuda().train()
            step = partial(_forward_and_backward, layer, x.requires_grad_(), gradient)
            yield f"{name} on {shape}", 1, captured(step)


def _forward_and_backward(layer: nn.Module, x: Tensor, gradient: Tensor) -> None:
    torch.autograd.grad(layer(x), x, gradient)


def children(model: str, *, bare: bool) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """A ConvNet alone, or stacked language models."""
    if model in crowd.CHILDREN:
        training = crowd.training(model, *crowd.CHILDREN[model])
        slots = crowd.Crowd(training, GPU, dropping=not bare)
        slots.begin([None if bare else full_policy(training.space())], crowd.RATE, [0])
        slots.advance(1)
        slots.wait()
        yield model + (", no policy" if bare else ""), 1, slots.active[0].replay_step
        return
    count = stacked.CHILDREN[model][0]
    with tempfile.TemporaryDirectory() as folder:
        text = stacked.trainings(stacked.write_text(Path(folder)), smoke=False)[model]
        many = stacked.Crowd(text, GPU, count)
        with many.lane.active():
            many.begin([stacked.FULL] * count, stacked.RATE, range(count))
            yield f"{count} of {model}", count, many.train_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("masks", *crowd.CHILDREN, *stacked.CHILDREN))
    parser.add_argument("--bare", action="store_true", help="of a ConvNet: without a policy")
    parser.add_argument("--out", type=Path, help="a text file with all of them; only the first 40 are printed")
    given = parser.parse_args()
    for what in given.what:
        for name, count, replay in layers() if what == "masks" else children(what, bare=given.bare):
            wall, found = kernels(replay)
            head = f"{name}: {wall:.1f} us a replay, {wall / count:.1f} a child; {sum(k.us for k in found):.1f} in "
            lines = [head + f"{sum(k.count for k in found):.0f} kernels"]
            lines += [f"{kernel.us:10.1f} us x{kernel.count:6.1f}  {kernel.name}" for kernel in found]
            print("\n".join(line[:120] for line in lines[:41]))
            if given.out:
                with given.out.open("a") as file:
                    file.write("\n".join(line[:200] for line in lines) + "\n")


if __name__ == "__main__":
    main()
