"""What crowds of every kind ask of a call, and how a child's report ends that child and nobody else."""

import logging
from collections.abc import Sequence
from typing import cast

from autodropout.layers.given import is_number
from autodropout.training.distributed import world
from autodropout.training.run import Ended, Regularizer, Report, Run

log = logging.getLogger("autodropout")


def check_crowd(
    policies: Sequence[Regularizer], seeds: Sequence[int], run: Run, *reports: Sequence[Report] | None
) -> None:
    """Raises:
    ValueError: there are not as many of each, or `run` asks for what a crowd does not have.
    """
    for some in reports:
        if len(seeds) != len(policies) or (some is not None and len(some) != len(policies)):
            counts = f"{len(policies)} policies, {len(seeds)} seeds, {len(some or ())} reports"
            raise ValueError(f"each child has a policy, a seed and a report, got {counts}")
    for name in ("folder", "test", "tensorboard", "show"):
        if getattr(run, name):
            raise ValueError(f"a crowd of children has no {name}: only its rewards come back")
    if world().size > 1:
        raise ValueError(f"a crowd of children is one process's, here are {world().size} ranks")


def goes_on(reports: Sequence[Report] | None, child: int, step: int, reward: float) -> bool:
    """Report; False where the report ends the child, be it by a mistake."""
    if reports is None:
        return True
    try:
        reports[child](step, reward)
    except (Ended, FloatingPointError) as error:
        log.debug("child %d of the crowd ends at step %d: %r", child, step, error)
        return False
    except Exception as error:  # noqa: BLE001  whatever it is, it must not end the others
        log.warning("child %d of the crowd has no score: at step %d its report raised %r", child, step, error)
        return False
    return True


def into(curve: list[tuple[int, float]]) -> Report:
    """A report that keeps what it is told."""

    def report(step: int, value: float) -> None:
        curve.append((step, value))

    return report


def rates_of(rate: float | Sequence[float], children: int) -> list[float]:
    """Of each child, where one was given for all or one for each.

    Raises:
        ValueError: there are too few or too many, or one is no rate.
    """
    rates = [float(rate)] * children if is_number(rate) else list(cast("Sequence[float]", rate))
    if len(rates) != children:
        raise ValueError(f"there is a rate for all children or one for each, got {len(rates)} for {children}")
    for one in rates:
        if not 0.0 <= one <= 1.0:
            raise ValueError(f"rate must lie in [0, 1], got {one}")
    return rates
