"""Schedules at points that can be computed by hand, and under torch's scheduler."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from autodropout.training.schedules import cosine, cosine_then_constant, first_step_after, warmup_cosine


def test_cosine() -> None:
    factor = cosine(100)
    assert factor(0) == 1.0
    assert factor(25) == pytest.approx((1 + math.sqrt(0.5)) / 2, abs=1e-15)
    assert factor(50) == pytest.approx(0.5, abs=1e-15)
    assert factor(75) == pytest.approx((1 - math.sqrt(0.5)) / 2, abs=1e-15)
    assert factor(99) > 0.0
    assert factor(100) == factor(200) == 0.0


def test_warmup_cosine_as_in_translation() -> None:
    """1.6e-3 after 4,000 steps, zero after 15,000."""
    factor = warmup_cosine(4_000, 15_000)
    assert factor(0) == 1 / 4_000
    assert factor(1_999) == 0.5
    assert factor(3_999) == factor(4_000) == 1.0
    assert factor(9_500) == pytest.approx(0.5, abs=1e-15)
    assert factor(15_000) == 0.0
    assert [warmup_cosine(0, 10)(step) for step in range(11)] == [cosine(10)(step) for step in range(11)]


def test_cosine_then_constant_as_in_language_models() -> None:
    """3e-4 falls to 1e-4 over 80% of the steps, then 5e-5."""
    factor = cosine_then_constant(1_000, floor=1e-4 / 3e-4, constant=5e-5 / 3e-4)
    rate = [3e-4 * factor(step) for step in range(1_000)]
    assert rate[0] == 3e-4
    assert rate[400] == pytest.approx(2e-4, rel=1e-12)
    assert rate[799] == pytest.approx(1e-4, rel=1e-4)
    assert rate[799] > 1e-4
    assert rate[800] == rate[999] == pytest.approx(5e-5, rel=1e-12)
    assert rate[:800] == sorted(rate[:800], reverse=True)
    assert first_step_after(0.8, 1_000) == 800


def test_cosine_then_constant_after_a_warmup() -> None:
    plain, warmed = (cosine_then_constant(100, floor=0.1, constant=0.05, warmup=warmup) for warmup in (0, 20))
    assert [warmed(step) / plain(step) for step in (0, 9, 18)] == pytest.approx([1 / 20, 10 / 20, 19 / 20])
    assert [warmed(step) for step in range(19, 100)] == [plain(step) for step in range(19, 100)]


def test_shares_that_floats_cannot_say() -> None:
    assert first_step_after(0.7, 10) == 7
    assert [first_step_after(share, 7) for share in (0.0, 0.8, 1.0)] == [0, 6, 7]
    assert cosine_then_constant(5, floor=0.5, constant=0.1, share=0.0)(0) == 0.1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cosine(0), "steps must be at least 1, got 0"),
        (lambda: warmup_cosine(10, 10), r"warmup must lie in \[0, 10\).*got 10"),
        (lambda: warmup_cosine(-1, 10), "got -1"),
        (lambda: cosine_then_constant(10, floor=1.5, constant=0.0), r"floor must lie in \[0, 1\].*got 1.5"),
        (lambda: cosine_then_constant(10, floor=0.5, constant=-0.1), "constant must lie.*got -0.1"),
        (lambda: cosine_then_constant(10, floor=0.5, constant=0.1, share=1.1), "share must lie.*got 1.1"),
        (lambda: cosine_then_constant(10, floor=0.5, constant=0.1, warmup=10), r"warmup must lie in \[0, 10\).*got 10"),
    ],
)
def test_bad_numbers(make, said) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_under_torchs_scheduler_and_after_a_resume() -> None:
    def scheduler() -> tuple[torch.optim.Optimizer, LambdaLR]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 2.0)
        return optimizer, LambdaLR(optimizer, warmup_cosine(3, 10))

    optimizer, schedule = scheduler()
    rates = []
    for step in range(10):
        if step == 5:  # go on in other objects
            saved = optimizer.state_dict(), schedule.state_dict()
            optimizer, schedule = scheduler()
            optimizer.load_state_dict(saved[0])
            schedule.load_state_dict(saved[1])
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == [2.0 * warmup_cosine(3, 10)(step) for step in range(10)]
