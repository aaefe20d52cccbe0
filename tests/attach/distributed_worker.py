"""What each rank of the distributed tests runs: `python distributed_worker.py TEST RANK FOLDER`.

Results go to FOLDER/RANK.pt.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import autodropout as ad

WORLD = 2


class Net(nn.Module):
    """Two residual blocks on an 10x10 map: normalizations, an identity shortcut, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x))) + x


def ddp(rank: int) -> dict[str, torch.Tensor]:
    """Two ranks seeded alike: the zeros that a norm's output gets, and the parameters after two steps."""
    model, masks = seeded_model()
    parallel = DistributedDataParallel(model)
    assert ad.attached(parallel) is ad.attached(model) is not None
    train(parallel)
    return {"mask": masks[0], "parameters": torch.nn.utils.parameters_to_vector(model.parameters()).detach()}


def fsdp(rank: int) -> dict[str, torch.Tensor]:
    """FSDP2, each block sharded on its own: it runs, masks differ between ranks, and the loss is finite."""
    model, masks = seeded_model()
    mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loss = train(model)
    return {"mask": masks[0], "loss": loss}


def seeded_model() -> tuple[Net, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = Net()
    policy = ad.space(model, torch.randn(2, 3, 10, 10)).decode((2, 0, 1, 0, 1, 3, 2, 1))
    ad.attach(model, policy, rate=0.5, example=torch.randn(2, 3, 10, 10))
    masks: list[torch.Tensor] = []
    model.blocks[0].norm.register_forward_hook(lambda module, args, out: masks.append(out.detach() == 0))
    torch.manual_seed(1)
    return model, masks


def train(model: nn.Module) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(4, 3, 10, 10), torch.randint(4, (4,))
    for _ in range(2):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    test, rank, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=WORLD)
    torch.save({"ddp": ddp, "fsdp": fsdp}[test](rank), folder / f"{rank}.pt")
    dist.destroy_process_group()
