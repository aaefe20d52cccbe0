"""A training of milliseconds with everything that a resume must get right, for the tests of `autodropout.training`.

Batch normalization, our masks and torch's dropout, momentum, a schedule, an order drawn from a generator of its own,
averaged weights, the best weights, means of losses between evaluations that do not fall on checkpoints.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from autodropout.layers import DropBlock, DropLayer
from autodropout.training.distributed import ranks, seed_rank, share, world
from autodropout.training.loop import Loop
from autodropout.training.run import Run
from autodropout.training.schedules import cosine
from autodropout.training.weights import Average, Best, export

STEPS, BATCH, EVERY, SEED = 60, 8, 7, 3
CONFIG = {"model": {"name": "tiny", "width": 4}, "lr": 0.1, "groups": [[1, 2], [3, 4]]}


class Memory:
    """Something that each rank has its own of, as a Transformer-XL has its memory."""

    def __init__(self) -> None:
        self.value = torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def tiny_model(normalized: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4) if normalized else nn.Identity(),
        DropLayer(DropBlock(2), rate=0.2 if normalized else 0.0),
        nn.ReLU(),
        nn.Dropout(0.2 if normalized else 0.0),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 3),
    )


def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(40, 1, 6, 6, generator=generator), torch.randint(3, (40,), generator=generator)


def train(
    run: Run,
    steps: int = STEPS,
    in_step: Callable[[int], None] = lambda step: None,
    config: dict[str, Any] = CONFIG,
    normalized: bool = True,
) -> tuple[Loop, nn.Module]:
    """One training; `in_step` is called in the middle of each step."""
    with ranks(run.where):
        torch.manual_seed(SEED)
        images, labels = (part.to(run.where) for part in examples())
        model = tiny_model(normalized)
        forward = run.wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        schedule = LambdaLR(optimizer, cosine(steps))
        order, memory = torch.Generator().manual_seed(SEED), Memory()
        average, best = Average(model, steps - 10), Best(model)
        seed_rank(SEED)
        state = {"model": model, "optimizer": optimizer, "schedule": schedule, "average": average, "best": best}
        with Loop(run, steps, {**state, "order": order}, config, per_rank={"memory": memory}) as loop:
            for step in loop:
                model.train()
                mine = slice(world().rank * share(BATCH), (world().rank + 1) * share(BATCH))
                chosen = torch.randint(len(images), (BATCH,), generator=order)[mine]
                with run.autocast():
                    logits = forward(images[chosen])
                loss = F.cross_entropy(logits.float(), labels[chosen])
                optimizer.zero_grad()
                loss.backward()
                in_step(step)
                optimizer.step()
                schedule.step()
                average.update(step)
                memory.value = 0.9 * memory.value + loss.detach().cpu() + torch.rand(3)
                loop.add(train_loss=loss, memory=memory.value.sum())
                if loop.due(EVERY):
                    with average.applied():
                        if loop.evaluated(judge(model, images, labels), double=2.0 * loop.step):
                            best.keep()
        return loop, model


@torch.no_grad()
def judge(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """With rank 0's statistics on all ranks, since each has its own."""
    model.eval()
    score = -F.cross_entropy(model(images), labels)
    if world().size > 1:
        torch.distributed.broadcast(score, 0)
    return score.item()


def train_in(folder: Path, **changes: Any) -> tuple[Loop, nn.Module]:
    """In a folder, with frequent checkpoints; the weights in `final.safetensors`, the best under `best.safetensors`."""
    in_step = changes.pop("in_step", lambda step: None)
    loop, model = train(Run(**{"folder": folder, "device": "cpu", "checkpoint_every": 5} | changes), in_step=in_step)
    if loop._checkpoints is not None:
        export(folder / "final.safetensors", model)
        with loop._state["best"].applied():
            export(folder / "best.safetensors", model)
    return loop, model


def outcome(folder: Path) -> tuple[bytes, bytes, list[dict[str, Any]]]:
    """All that must be the same again: final weights, best weights, the log without its times."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["time"]
    return (folder / "final.safetensors").read_bytes(), (folder / "best.safetensors").read_bytes(), lines
