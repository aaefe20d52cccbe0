"""Ctrl-C and SIGTERM during a training: the step under way is finished, so that a checkpoint can be written.

Ranks are signalled at different steps and must stop after the same one, or they would wait for each other for ever. So
after each step they ask each other for signals, without waiting: the answer is read one step later, by all of them.
"""

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

import torch
import torch.distributed as dist
from torch import Tensor

from autodropout.training.distributed import under_torchrun

log = logging.getLogger("autodropout")


class Interrupts:
    """Catches both signals inside a `with`, where they would otherwise end the program; in the main thread only.

    The second Ctrl-C, or SIGTERM, ends it at once; not under torchrun, which sends its processes what they have had
    from the terminal already.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._caught = 0
        self._before: dict[int, Any] = {}
        self._question: tuple[dist.Work, Tensor] | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                if before in (signal.default_int_handler, signal.SIG_DFL):  # any other is somebody else's business
                    self._before[number] = before
                    signal.signal(number, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self._question is not None and kind is None:  # after an error the other ranks may never answer
            self._question[0].wait()
        self._question = None

    def after_step(self) -> int:
        """The number of the signal because of which all ranks stop now, or 0."""
        if self._group is None:
            return self._caught
        if self._question is not None:
            work, answer = self._question
            work.wait()
            if answer:
                self._question = None
                return int(answer)
        flag = torch.tensor(self._caught)
        asked = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert asked is not None
        self._question = asked, flag
        return 0

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self._caught and not under_torchrun():
            raise_for(number)
        if not self._caught:
            log.warning("%s: finishing the step under way, to save it", signal.Signals(number).name)
        self._caught = number


def raise_for(number: int) -> NoReturn:
    """End the program as the signal would have: by KeyboardInterrupt, or an exit as a shell reports it."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
