"""Trainings to be killed, without waiting for each one's imports: a process that imports everything and then forks.

parent  --{"task": ..., arguments}-->  zygote  --fork-->  child
        <--pid-----------------------
        --{"wait": pid}------------->
        <--status, once it has ended-
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import tiny_training
import torch

from autodropout.training.distributed import ranks, seed_rank, share, total, world
from autodropout.training.order import Order
from autodropout.training.run import Run
from autodropout.training.weights import export


class Zygote:
    """The parent's end."""

    def __init__(self) -> None:
        here = Path(__file__)
        sources = Path(sys.modules["autodropout"].__file__).parents[1]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(sources), str(here.parent)])}
        command = [sys.executable, "-W", "error", str(here)]
        self._meetings = tempfile.TemporaryDirectory()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )

    def spawn(self, task: str, **arguments: Any) -> int:
        return self._ask({"task": task, **arguments})

    def wait(self, pid: int) -> int:
        """The status of a child, once it has ended; negative for a signal."""
        return self._ask({"wait": pid})

    def run(self, task: str, **arguments: Any) -> int:
        return self.wait(self.spawn(task, **arguments))

    def spawn_ranks(self, size: int, task: str, **arguments: Any) -> list[int]:
        """So many processes, as torchrun would start them."""
        meeting = Path(tempfile.mkdtemp(dir=self._meetings.name)) / "file"
        return [
            self.spawn("as_rank", rank=rank, size=size, meeting=str(meeting), inner=task, arguments=arguments)
            for rank in range(size)
        ]

    def run_ranks(self, size: int, task: str, **arguments: Any) -> list[int]:
        return [self.wait(pid) for pid in self.spawn_ranks(size, task, **arguments)]

    def said(self) -> str:
        """All that came on stderr so far."""
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        self._process.communicate()
        print(self.said(), file=sys.stderr)
        self._errors.close()
        self._meetings.cleanup()

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, self.said()
        return int(answer)


def train(folder: str) -> None:
    tiny_training.train_in(Path(folder))


def crash_at(folder: str, call: str, number: int, after: bool) -> None:
    """The same, killed exactly before or after the so-manieth call of a function of `os`."""
    original, done = getattr(os, call), 0

    def counted(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments)
        if done == number and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(os, call, counted)
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


TASKS = {
    task.__name__: task for task in (train, crash_at, as_rank, train_plainly, interrupted, of_another_config, numbers)
}


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            os._exit(child(order))
        print(pid, flush=True)


def child(order: dict[str, Any]) -> int:
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # the zygote's answers go there
    try:
        TASKS[order.pop("task")](**order)
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return int(end.code or 0)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError):
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    with tempfile.TemporaryDirectory() as warm:  # what torch imports only when it is first used
        tiny_training.train_in(Path(warm))
    main()
