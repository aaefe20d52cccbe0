"""How many bytes compiled code moves, forward and backward, without a policy and under the costliest: by torch's count.

    python benchmarks/traffic.py [--models resnet50 wrn-28-2] [--smoke] [--out results/traffic.json]

For every kernel that torch's compiler makes, it knows the tensors that it reads and writes; this adds up their sizes.
Nothing is measured and no GPU is needed: kernels are not even compiled, and what the network computes is rubbish. It
shows what is kept in memory that need not be, which a GPU's time then says only in sum.

All masks of one map size lie in one tensor, which is counted whole for each that is read in forward: too much. Bytes
are of bfloat16, channels_last, a small batch: weights weigh more than they would in training. The compiler of another
torch counts otherwise; and for a CPU, as here, it fuses somewhat less.
"""

from collections.abc import Callable
from unittest.mock import patch

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering
from torch.nn import functional as F

import autodropout as ad
from autodropout.models import image_model
from autodropout.training.flat import Flat
from autodropout.training.noise import Noise
from recording import Table, facts, options, write
from training import full_policy

MODELS = {"resnet50": (2, 224), "wrn-28-2": (8, 32)}  # batch, resolution
SMALLEST = {"wrn-10-1": (2, 32)}


def counted(step: Callable[[], torch.Tensor]) -> list[int]:
    """Bytes of each graph that is compiled in a step, forward and backward."""
    found: list[int] = []
    codegen = GraphLowering.codegen

    def count(self: GraphLowering) -> object:
        code = codegen(self)
        found.append(sum(int(node.get_read_write_buffers_sizes()) for node in self.scheduler.nodes))
        return code

    nothing = patch.object(AsyncCompile, "cpp_pybinding", lambda *args, **kwargs: lambda *tensors: None)
    uncached = config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False)
    with nothing, patch.object(GraphLowering, "codegen", count), uncached[0], uncached[1]:
        torch.compiler.reset()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.compile(step)()
        loss.backward()
    return found


def network(name: str, batch: int, resolution: int, *, bare: bool) -> Callable[[], torch.Tensor]:
    """A step of it, as a crowd's slot makes it."""
    torch.manual_seed(0)
    model = image_model(name, classes=10).to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, resolution, resolution).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch) % 10
    if not bare:
        policy = full_policy(ad.space(model, images[:1]))
        on = ad.attach(model, policy, rate=0.2, example=images[:1], live=True)
        Noise(model, 0, torch.device("cpu"))
        on.draw_together()
    Flat(model, half=True)
    return lambda: F.cross_entropy(model(images), labels)


def main() -> None:
    parser = options(__doc__, "results/traffic.json", "a tiny network")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    given = parser.parse_args()
    chosen = SMALLEST if given.smoke else {name: MODELS[name] for name in given.models}
    table = Table(("policy", "forward, MB", "backward, MB"), label=12, width=14)
    record = facts("bytes that compiled code moves, by torch's count", ["torch"])
    record["rows"] = []
    for name, (batch, resolution) in chosen.items():
        for bare in (True, False):
            forward, backward = counted(network(name, batch, resolution, bare=bare))
            row = {"policy": "none" if bare else "worst", "forward": forward, "backward": backward}
            shown = {"forward, MB": f"{forward / 1e6:.1f}", "backward, MB": f"{backward / 1e6:.1f}"}
            table.row(name, {"policy": row["policy"], **shown})
            record["rows"].append({"model": name, "batch": batch, "resolution": resolution, **row})
    if not given.smoke:
        write(record, given.out)


if __name__ == "__main__":
    main()
