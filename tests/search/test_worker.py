"""What runs in a worker, in this process: a child on the tasks of a job, and everything that can go wrong with it."""

import numpy as np
import pytest
import torch
from engine_tools import task

from autodropout.search.jobs import Child, Report, Stopped
from autodropout.search.states import FailureKind
from autodropout.search.worker import run_job
from autodropout.spaces import Policy


def test_one_child_of_many_that_diverges_takes_nobody_with_it() -> None:
    def together(catches: bool) -> Child:
        class Many:
            def __call__(self, policy: Policy, seed: int) -> float:
                return 1.0

            def train_many(self, policies: list[Policy], seeds: list[int], reports: list[Report]) -> list[float]:
                for seed, report in zip(seeds, reports, strict=True):
                    try:
                        report(1, float("inf") if seed == 101 else 0.5)
                    except FloatingPointError:
                        if not catches:
                            raise
                return [0.5] * len(seeds)

        return Many()

    careful = run_job(together(catches=True), [task(0), task(1), task(2)], None)
    assert [answer.value for answer in careful] == [0.5, None, 0.5]
    assert careful[1].failure.kind is FailureKind.DIVERGED
    careless = run_job(together(catches=False), [task(0), task(1), task(2)], None)
    assert [answer.failure.kind.name for answer in careless] == ["USER_ERROR", "DIVERGED", "USER_ERROR"]
    assert "train_many must catch what a report raises" in careless[0].failure.message


def test_a_child_that_swallows_what_report_raises_is_still_stopped() -> None:
    def child(policy: Policy, seed: int, report: Report) -> float:
        for step in range(5):
            try:
                report(step, 0.5)
            except (Stopped, FloatingPointError):
                continue
        return 0.9

    (stopped,) = run_job(child, [task(0)], lambda number, step, value: step == 2)
    assert (stopped.stopped, stopped.value, stopped.curve[-1]) == (True, None, (2, 0.5))


@pytest.mark.parametrize(
    ("step", "value", "message"),
    [(1.5, 0.5, "integer step, got 1.5"), (1, "good", "could not convert"), (1, None, "NoneType")],
)
def test_what_cannot_be_reported(step: object, value: object, message: str) -> None:
    (answer,) = run_job(lambda policy, seed, report: report(step, value), [task(0)], None)
    assert answer.failure.kind is FailureKind.USER_ERROR
    assert message in answer.failure.message


def test_a_mistake_in_a_report_is_no_divergence_even_if_the_child_catches_it() -> None:
    class Many:
        def __call__(self, policy: Policy, seed: int) -> float:
            return 1.0

        def train_many(self, policies: list[Policy], seeds: list[int], reports: list[Report]) -> list[float]:
            scores = []
            for report in reports:
                try:
                    report(1, 0.5)
                    scores.append(0.5)
                except Exception:  # noqa: BLE001  it ends one child
                    scores.append(float("nan"))
            return scores

    def ask(number: int, step: int, value: float) -> bool:
        if number == 1:
            raise ConnectionError("the driver is gone")
        return False

    fine, broken = run_job(Many(), [task(0), task(1)], ask)
    assert fine.value == 0.5
    assert broken.failure.kind is FailureKind.USER_ERROR, "which is tried again, and teaches nothing"
    assert "ConnectionError: the driver is gone" in broken.failure.message


def test_an_exception_that_has_no_words_is_an_answer() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def child(policy: Policy, seed: int) -> float:
        raise Odd

    (answer,) = run_job(child, [task(0)], None)
    assert answer.failure.kind is FailureKind.USER_ERROR
    assert answer.failure.message == "Odd: its text cannot be told, that raises RuntimeError"
    assert "in child" in answer.failure.traceback


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    def child(policy: Policy, seed: int, report: Report) -> object:
        report(np.int64(3), np.float32(0.5))
        report(torch.tensor(4), torch.tensor(0.25))
        return torch.tensor([0.75])

    (answer,) = run_job(child, [task(0)], None)
    assert (answer.value, answer.curve) == (0.75, ((3, 0.5), (4, 0.25)))
    (many,) = run_job(lambda policy, seed: torch.ones(2), [task(0)], None)
    assert "not a score" in many.failure.message
    learned = torch.tensor(0.5, requires_grad=True)  # of which torch would warn, and warnings are errors here
    (answer,) = run_job(lambda policy, seed, report: (report(1, learned), learned)[1], [task(0)], None)
    assert (answer.value, answer.curve) == (0.5, ((1, 0.5),))


@pytest.mark.parametrize("digits", [400, 5000])  # more than Python writes of an integer
def test_an_integer_larger_than_any_float_has_diverged_and_is_not_written_out(digits: int) -> None:
    (answer,) = run_job(lambda policy, seed: 10**digits, [task(0)], None)
    assert answer.failure.kind is FailureKind.DIVERGED
    assert answer.failure.message == "the child's score is larger than any float"


def test_what_is_no_score_is_told_in_short() -> None:
    (answer,) = run_job(lambda policy, seed: list(range(10_000)), [task(0)], None)
    assert answer.failure.message.startswith("the child returned [0, 1, 2")
    assert len(answer.failure.message) < 200


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda report: report(0.1), "report(0.1)"),
        (lambda report: report(1, 0.1, 0.2), "report(1, 0.1, 0.2)"),
        (lambda report: report(1, score=0.1), "report(1, score=0.1)"),
    ],
)
def test_a_report_that_is_called_otherwise_says_how(call, said: str) -> None:
    (answer,) = run_job(lambda policy, seed, report: call(report), [task(0)], None)
    assert answer.failure.kind is FailureKind.USER_ERROR
    told = f"TypeError: report(step, value) takes an integer step and a number, got {said}"
    assert answer.failure.message == told
    (answer,) = run_job(lambda policy, seed, report: report(step=1, value=0.1) or 0.5, [task(0)], None)
    assert answer.curve == ((1, 0.1),)


def test_a_traceback_begins_in_the_users_code() -> None:
    def child(policy: Policy, seed: int) -> float:
        return 1 / 0

    (answer,) = run_job(child, [task(0)], None)
    assert answer.failure.traceback.count("  File ") == 1
    assert __file__ in answer.failure.traceback
