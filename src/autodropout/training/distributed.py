"""Several processes train one model: each has a share of every batch, gradients are averaged.

    torchrun --nproc-per-node 8 train.py        # or: python -m autodropout train ... under torchrun

    with ranks(run.where):                      # joins torchrun's process group; outside torchrun it does nothing
        forward = run.wrap(model)               # DDP
        order = Order(examples, batch, seed)    # this rank's share of each batch
        ...
        right = total(right)                    # of a validation set that the ranks have divided among them

Rank 0 writes and shows; a `Loop` sees to that. Batch normalization stays each rank's own, with rank 0's running
statistics given to all before each step, as DDP does it, and before a model is judged (`agree`): what all ranks judge
is what rank 0 saves.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, slots=True)
class World:
    """Which of how many processes this is."""

    rank: int
    size: int

    @property
    def writes(self) -> bool:
        """Whether this is the one that writes files and shows progress."""
        return self.rank == 0


def world() -> World:
    """The process group this process is in; outside of any it is alone."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return World(0, 1)


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def local_rank() -> int:
    """Which process of this machine it is, by which it takes its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0")) if under_torchrun() else 0


@contextmanager
def ranks(device: torch.device) -> Iterator[World]:
    """Be one of torchrun's processes inside. Not under torchrun, or in a process group already, nothing changes."""
    if not under_torchrun() or dist.is_initialized():
        yield world()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    yield world()
    dist.destroy_process_group()  # not after an error: the other ranks would be waited for, who wait for this one


def parallel(model: nn.Module, device: torch.device) -> nn.Module:
    """The model, in DDP where there are other ranks; rank 0's weights are then everyone's."""
    if world().size == 1:
        return model
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)


def agree(model: nn.Module) -> None:
    """Give rank 0's buffers to all ranks: after a step each has statistics of its own."""
    if world().size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def share(batch: int) -> int:
    """One rank's part of a batch."""
    size = world().size
    if batch < 1 or batch % size:
        raise ValueError(f"a batch of {batch} cannot be divided among {size} ranks")
    return batch // size


def total(value: Tensor) -> Tensor:
    """The sum of the ranks' values, on each of them."""
    if world().size == 1:
        return value
    result = value.detach().clone()
    dist.all_reduce(result)
    return result


def seed_rank(seed: int) -> None:
    """Seed torch's generators, so that each rank draws other numbers. Rank 0 gets `seed` itself."""
    rank = world().rank
    torch.manual_seed(seed if rank == 0 else mixed(seed, rank))


def mixed(*numbers: int) -> int:
    """A seed that follows from several numbers: 32 bits, since torch's CPU generator takes no more of a seed."""
    text = " ".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode("ascii"), digest_size=4).digest(), "big")


def host_group() -> dist.ProcessGroup | None:
    """A group that carries what lies in host memory, whatever carries the gradients; None for a process alone."""
    if world().size == 1:
        return None
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group
