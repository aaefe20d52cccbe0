"""What runs in a worker: a child on the tasks of a job, with everything that can go wrong turned into an answer."""

import inspect
import math
import operator
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from autodropout.search.jobs import Answer, Child, Report, Stopped, Task
from autodropout.search.records import Failure
from autodropout.search.states import FailureKind
from autodropout.spaces import Policy, parse
from autodropout.spaces.records import show

Ask = Callable[[int, int, float], bool]  # (trial, step, value) -> stop?


def run_job(child: Child, job: Sequence[Task], ask: Ask | None) -> list[Answer]:
    """One answer for each task. `ask` is asked at every report whether to stop; None: never stop."""
    runs = [_Run(task, ask) for task in job]
    together = getattr(child, "train_many", None)
    if together is None or len(runs) == 1:
        for run in runs:
            run.train(child)
    else:
        _train_together(together, runs)
    return [run.answer() for run in runs]


class _Run:
    """One task and what has come of it so far."""

    def __init__(self, task: Task, ask: Ask | None) -> None:
        self.task = task
        self.ask = ask
        self.policy: Policy = parse(task.policy, source=f"trial {task.number}")
        self.curve: list[tuple[int, float]] = []
        self.value: float | None = None
        self.failure: Failure | None = None
        self.stopped = False

    def report(self, *given: Any, **named: Any) -> None:
        """What the child is given as `report`. A child that catches what went wrong here has failed all the same."""
        try:
            self._report(*_step_and_value(*given, **named))
        except Stopped:
            raise
        except Exception as error:
            self.fail(failure_of(error))
            raise

    def _report(self, step: int, value: float) -> None:
        if self.stopped:  # and the child went on
            raise Stopped(f"trial {self.task.number} was stopped at step {self.curve[-1][0]}")
        try:
            step = operator.index(step)  # numpy's integers too
        except TypeError:
            raise TypeError(f"report(step, value) needs an integer step, got {step!r}") from None
        value = float(_detached(value))
        if not math.isfinite(value):
            message = f"the child reported {value} at step {step}"
            self.fail(Failure(FailureKind.DIVERGED, message))
            raise FloatingPointError(message)
        self.curve.append((step, value))
        if self.ask is not None and self.ask(self.task.number, step, value):
            self.stopped = True
            raise Stopped(f"trial {self.task.number} was stopped at step {step}")

    def train(self, child: Child) -> None:
        try:
            self.score(_call(child, self.policy, self.task.seed, self.report))
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a user's code raises is an answer
            self.fail(failure_of(error))

    def fail(self, failure: Failure) -> None:
        """Take the first thing that went wrong; what a child raises once it was told to stop is none."""
        if not self.stopped and self.failure is None:
            self.failure = failure

    def score(self, value: Any) -> None:
        """Take what the child returned: a finite number, or a reason why it is none."""
        if self.stopped or self.failure is not None:
            return
        try:
            if isinstance(value, str | bytes | bool):
                raise TypeError
            number = float(_detached(value))
        except OverflowError:  # an integer; its digits would fill the screen, and Python may refuse to write them
            self.failure = Failure(FailureKind.DIVERGED, "the child's score is larger than any float")
            return
        except (TypeError, ValueError, RuntimeError):  # torch raises the third for a tensor of many
            message = f"the child returned {show(value)} ({type(value).__name__}), not a score"
            self.failure = Failure(FailureKind.USER_ERROR, message)
            return
        if math.isfinite(number):
            self.value = number
        else:
            self.failure = Failure(FailureKind.DIVERGED, f"the child's score is {number}")

    def answer(self) -> Answer:
        return Answer(self.task.number, self.value, tuple(self.curve), self.failure, self.stopped)


def _train_together(train_many: Callable[..., Sequence[Any]], runs: list[_Run]) -> None:
    try:
        reports: list[Report] = [run.report for run in runs]
        scores = train_many([run.policy for run in runs], [run.task.seed for run in runs], reports)
        if len(scores) != len(runs):
            raise ValueError(f"train_many returned {len(scores)} scores for {len(runs)} trials")
        for run, score in zip(runs, scores, strict=True):
            run.score(score)
    except (Exception, SystemExit) as error:  # noqa: BLE001
        failure = failure_of(error)
        if isinstance(error, Stopped | FloatingPointError):  # one child's end, but which one's is not said
            hint = "train_many must catch what a report raises, and return nan for a child that diverged"
            failure = Failure(FailureKind.USER_ERROR, f"{failure.message}; {hint}", failure.traceback)
        for run in runs:
            if run.value is None:
                run.fail(failure)


def _step_and_value(*given: Any, **named: Any) -> tuple[Any, Any]:
    """The arguments of `report`, however they are given."""

    def report(step: Any, value: Any) -> tuple[Any, Any]:
        return step, value

    try:
        return report(*given, **named)
    except TypeError:
        said = ", ".join([*map(show, given), *(f"{name}={show(value)}" for name, value in named.items())])
        raise TypeError(f"report(step, value) takes an integer step and a number, got report({said})") from None


def _detached(value: Any) -> Any:
    """Of a tensor that remembers how it was computed, the value without that: torch warns where it is made a number."""
    torch = sys.modules.get("torch")
    return value.detach() if torch is not None and isinstance(value, torch.Tensor) else value


def takes(child: Callable[..., Any]) -> int:
    """How many arguments a child is called with: policy, seed and report; or the first two, where it never reports.

    Raises:
        ValueError: it can be called with neither.
    """
    try:
        signature = inspect.signature(child)
    except (TypeError, ValueError):  # written in C, and says nothing about its parameters
        return 3
    for count in (3, 2):
        with suppress(TypeError):
            signature.bind(*range(count))
            return count
    name = getattr(child, "__name__", type(child).__name__)
    raise ValueError(
        f"a child is called as child(policy, seed) or child(policy, seed, report), and is {name}{signature}"
    )


def _call(child: Callable[..., Any], policy: Policy, seed: int, report: Report) -> Any:
    """A child that never reports may leave the parameter out."""
    return child(*(policy, seed, report)[: takes(child)])


def failure_of(error: BaseException) -> Failure:
    """An exception as a ledger keeps it."""
    kind = FailureKind.USER_ERROR
    if isinstance(error, FloatingPointError):
        kind = FailureKind.DIVERGED
    elif isinstance(error, MemoryError) or _is_cuda_memory(error):
        kind = FailureKind.OUT_OF_MEMORY
    try:
        said = str(error)
    except Exception as another:  # noqa: BLE001  of a user's class
        said = f"its text cannot be told, that raises {type(another).__name__}"
    return Failure(kind, f"{type(error).__name__}: {said}", "".join(traceback.format_exception(_shown(error))))


def _shown(error: BaseException) -> BaseException:
    """The error with a traceback that begins in the user's code, if it got there."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def _is_cuda_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)
