"""Trainings to be killed (see `zygote`), on one rank or several."""

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import tiny_training
import torch
from language_tools import SIZE, VOCABULARY

import zygote
from autodropout.data import Labelled
from autodropout.models.transformer_xl import TransformerXL
from autodropout.training.distributed import ranks, seed_rank, share, total, world
from autodropout.training.judging import accuracies
from autodropout.training.language_loss import log_loss
from autodropout.training.order import Order
from autodropout.training.run import Run
from autodropout.training.streams import Pages
from autodropout.training.weights import export


class Zygote(zygote.Zygote):
    """The parent's end."""

    def __init__(self) -> None:
        super().__init__(__file__)
        self._meetings = tempfile.TemporaryDirectory()

    def spawn_ranks(self, size: int, task: str, **arguments: Any) -> list[int]:
        """So many processes, as torchrun would start them."""
        meeting = Path(tempfile.mkdtemp(dir=self._meetings.name)) / "file"
        return [
            self.spawn("as_rank", rank=rank, size=size, meeting=str(meeting), inner=task, arguments=arguments)
            for rank in range(size)
        ]

    def run_ranks(self, size: int, task: str, **arguments: Any) -> list[int]:
        return [self.wait(pid) for pid in self.spawn_ranks(size, task, **arguments)]

    def close(self) -> None:
        super().close()
        self._meetings.cleanup()


def train(folder: str) -> None:
    tiny_training.train_in(Path(folder))


def crash_at(folder: str, call: str, number: int, after: bool) -> None:
    """The same, killed exactly before or after the so-manieth call of a function of `os`."""
    setattr(os, call, zygote.crashing(getattr(os, call), number, after))
    train(folder)


def as_rank(rank: int, size: int, meeting: str, inner: str, arguments: dict[str, Any]) -> None:
    """A task as one of several ranks, in the environment that torchrun makes; files instead of ports."""
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
    init = torch.distributed.init_process_group

    def meet(backend: str) -> None:
        init(backend, init_method=f"file://{meeting}", rank=rank, world_size=size)

    torch.distributed.init_process_group = meet
    TASKS[inner](**arguments)


def train_plainly(folder: str) -> None:
    """Without batch normalization and dropout, which tell a batch from two halves of it."""
    _, model = tiny_training.train(Run(device="cpu"), normalized=False)
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        export(Path(folder) / "final.safetensors", model)


def interrupted(folder: str, number: int, rank: int, step: int) -> None:
    """A training of which one rank gets a signal in the middle of a step."""

    def in_step(now: int) -> None:
        if world().rank == rank and now == step:
            signal.raise_signal(number)

    tiny_training.train_in(Path(folder), in_step=in_step)


def of_another_config(folder: str) -> None:
    tiny_training.train(Run(Path(folder), device="cpu"), config=tiny_training.CONFIG | {"lr": 0.2})


def numbers(folder: str) -> None:
    """What the helpers for ranks give, each rank's into a file of its own."""
    with ranks(torch.device("cpu")) as here:
        seed_rank(7)
        found = {
            "world": [here.rank, here.size, here.writes],
            "share": share(6),
            "total": total(torch.tensor([1.0, 10.0 * here.rank])).tolist(),
            "draw": torch.rand(1).item(),
            "order": [Order(10, 4, seed=0)(step).tolist() for step in range(3)],
        }
        (Path(folder) / f"{here.rank}.json").write_text(json.dumps(found))


def judged(folder: str) -> None:
    """Images, by a model whose ranks have statistics of their own, and a text with fewer rows than there are ranks."""
    with ranks(torch.device("cpu")) as here:
        norm = torch.nn.BatchNorm2d(2)
        norm.running_mean[1] += 10 * here.rank  # rank 1 alone would never name the second class
        images = torch.randn(400, 2, 1, 1, generator=torch.Generator().manual_seed(0))
        examples = Labelled(images, images.flatten(1).argmax(1))
        model = torch.nn.Sequential(norm, torch.nn.Flatten())
        found = accuracies(model, torch.nn.Identity(), examples, 2, Run(device="cpu"))
        torch.manual_seed(0)
        pages = Pages.of(torch.randint(VOCABULARY, (50,)), rows=1, segment=8)
        nats = log_loss(TransformerXL(VOCABULARY, SIZE), pages, memory=8)
        (Path(folder) / f"{here.rank}.json").write_text(json.dumps([found["accuracy"], nats]))


TASKS = {
    task.__name__: task
    for task in (train, crash_at, as_rank, train_plainly, interrupted, of_another_config, numbers, judged)
}


if __name__ == "__main__":
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    with tempfile.TemporaryDirectory() as warm:  # what torch imports only when it is first used
        tiny_training.train_in(Path(warm))
    zygote.serve(TASKS)
