"""Learning rates over training: pure functions from the index of a step to a factor of the highest rate.

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(steps))

A schedule is a plain function, so that a `LambdaLR` saves nothing of it but its step, and gets the very same rate
after a resume.
"""

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def cosine(steps: int) -> Schedule:
    """Half a cosine: 1 at the first step, 0 after the last (Loshchilov and Hutter 2017)."""
    _check_steps(steps)
    return lambda step: _half_cosine(step / steps)


def warmup_cosine(warmup: int, steps: int) -> Schedule:
    """Up in a straight line during the first `warmup` steps, the last of which has 1; then half a cosine to 0.

    The paper's schedule for translation (its appendix "Machine Translation").
    """
    _check_steps(steps)
    _check_warmup(warmup, steps)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup  # the first step too shall learn something
        return _half_cosine((step - warmup) / (steps - warmup))

    return factor


def cosine_then_constant(steps: int, *, floor: float, constant: float, share: float = 0.8, warmup: int = 0) -> Schedule:
    """From 1 along half a cosine to `floor` during the first `share` of the steps, then `constant`.

    The paper's schedule for language models (its appendix "Language Model"): 3e-4 falls to 1e-4 in 80% of the
    training and stays at 5e-5 for the rest, that is floor=1/3, constant=1/6. The last fifth is where weights are
    averaged. During `warmup` steps, which the paper does not have, the rate also rises in a straight line.
    """
    _check_steps(steps)
    _check_warmup(warmup, steps)
    for name, value in (("floor", floor), ("constant", constant)):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must lie in [0, 1], a factor of the highest rate, got {value}")
    turn = first_step_after(share, steps)

    def factor(step: int) -> float:
        risen = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return risen * (floor + (1.0 - floor) * _half_cosine(step / turn) if step < turn else constant)

    return factor


def first_step_after(share: float, steps: int) -> int:
    """The index of the first step that does not belong to the first `share` of the steps."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share must lie in [0, 1], got {share}")
    return round(share * steps)


def _half_cosine(done: float) -> float:
    """From 1 down to 0 as `done` goes from 0 to 1; 0 after that."""
    return 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")


def _check_warmup(warmup: int, steps: int) -> None:
    if not 0 <= warmup < steps:
        raise ValueError(f"warmup must lie in [0, {steps}), the number of steps, got {warmup}")
