"""Masks in code that torch compiles for a GPU: where they may be fused with a reduction of rows.

torch's compiler before 2.14 has a race. Where it goes through a row twice, as a normalization does, and stores a value
the first time to read it again the second, another warp may read it that does not see it yet (pytorch issue 190517).
Some rows of a gradient are then wrong, now and then, and two runs with one seed come apart; nothing fails.
Rows of up to 1,024 values it holds as a whole, which is safe; unless something is read along them that does not lie
side by side, as the bytes of a packed mask, each of which serves eight values.

So on those versions a row's mask is put on by a kernel of its own, and no normalization knows of it. Whoever compiles a
model, and knows that its rows have at most `LONGEST` values, asks for them to be held whole, and fuses masks again:

    with whole_rows():
        torch.compile(function)(...)                    # what is compiled in here, forward and backward
    compiled = in_whole_rows(torch.compile(function))   # or whenever it is called
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch
from torch.torch_version import TorchVersion

RACES = TorchVersion(torch.__version__) < "2.14"
LONGEST = 4096  # values of a row that is held as a whole; torch itself goes up to 1,024 where all lies side by side

P = ParamSpec("P")
T = TypeVar("T")

_asked = False


def fuses_rows() -> bool:
    """Whether compiled code may put a mask on rows that it also reduces."""
    return not RACES or _asked


@contextmanager
def whole_rows() -> Iterator[None]:
    """Inside, what is compiled has no row of up to `LONGEST` values in pieces."""
    global _asked
    if not RACES:
        yield
        return
    from torch._functorch import config as functorch
    from torch._inductor.virtualized import V

    # What was compiled otherwise, and is kept on disk, is not what is asked for here.
    elsewhere = torch.compiler.config.patch(cache_key_tag="autodropout: whole rows")  # type: ignore[attr-defined]
    # Left to itself, torch compiles a backward when it first runs: in another thread, which would not be in here.
    at_once = functorch.patch(force_non_lazy_backward_lowering=True)
    before, _asked = _asked, True
    try:
        with V.set_choices_handler(_choices()), elsewhere, at_once:
            yield
    finally:
        _asked = before


def in_whole_rows(compiled: Callable[P, T]) -> Callable[P, T]:
    """The same, always called inside of `whole_rows`: it is compiled when it is called first."""
    if not RACES:
        return compiled

    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with whole_rows():
            return compiled(*args, **kwargs)

    return inside


@cache
def _choices() -> Any:
    """What torch's compiler asks for advice, by torch's own hook for that."""
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    class WholeRows(InductorChoices):
        @staticmethod
        def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
            size = features.numel * features.reduction_numel
            reductions = {name for node in features.reduction_nodes() for name in node.get_operation_names()}
            # The second time for what is computed of every value and of its row's sum.
            twice = any(node.group[1][0] == size and reductions & node.ancestors for node in features.scheduler_nodes())
            if twice and V.graph.sizevars.statically_known_leq(features.reduction_numel, LONGEST):
                return True
            return InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)

    return WholeRows()
