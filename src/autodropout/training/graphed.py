"""A lane of a device: a stream, a source of random numbers, and work that is captured once and replayed from then on.

    lane = Lane(device)
    lane.seed(0)
    step = lane.capture(work)         # on CUDA: run a few times, then captured as a CUDA graph; on the CPU: work itself
    step(); step(); step()            # all of it on the lane's stream, nothing waits for the host

Inside of `work`, two things that do not need each other can be done at the same time:

    with lane.aside():
        masks = draw()                # on a stream beside the lane's
    images = augment()
    lane.join()                       # from here on both are done

What happens in a lane depends on nothing that happens in another, however the two are interleaved:

1. Random numbers. `work` draws from the device's default generator, as everybody's layers do. Inside a lane that
   generator has the lane's own state. A CUDA graph reads its state from where it was when it was captured, so that
   replays of several lanes can run at the same time.
2. Memory. Every lane has a memory pool of its own; and cuBLAS, whose workspace is one for each stream, is captured on
   the stream that it is replayed on.
3. Order. All that touches the tensors of a lane is done inside of `lane.active()`, hence on one stream.

`work` follows the rules of capture: it reads and writes tensors that stay where they are, its shapes are fixed, and it
never looks at a value. What changes from one step to the next lies in tables on the device, and a tensor counts steps.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

Work = Callable[[], None]
WARM_UPS = 3  # compilation, autotuning and the optimizer's state are done with after one; torch recommends three


class Lane:
    """See above. On the CPU, where nothing runs at the same time, only the random numbers are a lane's own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._generator = torch.Generator(device)
        if device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()  # of memory, for all that is captured: it never runs at once
            self._stream, self._side = torch.cuda.Stream(device), torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def seed(self, seed: int) -> None:
        """Let the next numbers be those after `torch.manual_seed(seed)`."""
        self._generator.manual_seed(seed)

    def active(self) -> AbstractContextManager[object]:
        """Inside, what is launched runs on this lane's stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, what is launched runs beside what is launched afterwards, until `join`; on the CPU at once."""
        if self._stream is None:
            yield
            return
        self._side.wait_stream(self._stream)
        with torch.cuda.stream(self._side):
            yield

    def join(self) -> None:
        """Let what follows be after what was done aside."""
        if self._stream is not None:
            self._stream.wait_stream(self._side)

    def wait(self) -> None:
        """Until all that was launched in this lane is done."""
        if self._stream is not None:
            self._stream.synchronize()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside, the device's default generator draws this lane's numbers."""
        if self._stream is None:
            before = torch.get_rng_state()
            torch.set_rng_state(self._generator.get_state())
            try:
                yield
            finally:
                self._generator.set_state(torch.get_rng_state())
                torch.set_rng_state(before)
            return
        default = torch.cuda.default_generators[self._stream.device.index]
        outside = default.graphsafe_get_state()
        default.graphsafe_set_state(self._generator)  # the state itself, no copy: a graph captures where it lies
        try:
            yield
        finally:
            default.graphsafe_set_state(outside)

    def capture(self, work: Work) -> Work:
        """The same work, to be called again and again. On CUDA it is run `WARM_UPS` times now."""
        if self._stream is None:

            def eagerly() -> None:
                with self.drawing():
                    work()

            return eagerly
        with self.active(), self.drawing(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")  # it soon is
            for _ in range(WARM_UPS):
                work()
        self.wait()
        gc.collect()  # what is freed during a capture spoils it
        graph = torch.cuda.CUDAGraph()
        with self.drawing(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()

        def replay() -> None:
            with self.active():
                graph.replay()

        return replay


def at(table: Tensor, step: Tensor) -> Tensor:
    """A step's row of a table, (steps, ...) -> (...); `step` is int64, (1,), so that nobody has to look at it."""
    return table.index_select(0, step).squeeze(0)
