"""What is the controller's own: its record of an update, its report, what it refuses."""

import math

import pytest
import torch

from autodropout.controller import FAST, PAPER, Controller, make_proposer
from autodropout.controller.controller import ROWS
from autodropout.search.protocols import Scored
from autodropout.spaces import ConvSpace, TransformerSpace

SPACE = TransformerSpace(sites=("attention.query",))  # 160 strings
LARGE = ConvSpace(groups=((32, 32), (16, 16), (8, 8)))
RECORD = {
    "loss",
    "entropy",
    "baseline",
    "clip_share",
    "effective_size",
    "gradient_norm",
    "lag",
    "mean_value",
}


def trials(controller: Controller, numbers: range, value: float | None = None) -> list[Scored]:
    return [
        Scored(n, p.tokens, p.log_prob, p.version, float(p.tokens[0] == 2) if value is None else value)
        for n, p in zip(numbers, controller.propose(numbers), strict=True)
    ]


@pytest.mark.parametrize("settings", [PAPER, FAST])
def test_an_update_says_what_happened(settings: object) -> None:
    controller = Controller(SPACE, 0, PAPER if settings is PAPER else FAST)
    first, second = trials(controller, range(16)), trials(controller, range(16, 32))
    record = controller.update(first)
    assert set(record) == RECORD
    assert record["lag"] == 0
    assert record["clip_share"] == 0
    assert record["effective_size"] == pytest.approx(16, abs=1e-3)  # on policy
    assert record["mean_value"] == record["baseline"] == sum(trial.value for trial in first) / 16
    assert record["entropy"] == pytest.approx(math.log(160), rel=0.02)  # near uniform, as initialized
    record = controller.update(second[:8] + trials(controller, range(32, 40)))
    assert record["lag"] == 0.5
    assert record["effective_size"] < 16 - 1e-6


def test_the_recorded_log_probability_is_that_of_the_tokens() -> None:
    controller = Controller(SPACE, 0)
    for start in (0, 16, 32):
        controller.update(trials(controller, range(start, start + 16)))
    network = controller._network
    proposals = controller.propose(range(100, 164))
    tokens = torch.tensor([proposal.tokens for proposal in proposals])
    whole = network.log_prob(network(tokens), tokens)
    for proposal, expected in zip(proposals, whole.tolist(), strict=True):
        assert proposal.log_prob == pytest.approx(expected, abs=1e-4)


def test_batching_and_threads_make_no_difference() -> None:
    """Bit for bit: alone, in other company, in another order, whatever the number of threads."""
    controller = Controller(LARGE, 1)
    controller.update(trials(controller, range(16), None))
    together = controller.propose(range(3 * ROWS + 5))
    numbers = [40, 3, 19, 35, 52, 0, 16, 32]
    assert controller.propose(numbers) == [together[number] for number in numbers]
    assert controller.propose([7]) == [together[7]]
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    assert controller.propose(range(20, 30)) == together[20:30]
    torch.set_num_threads(threads)


@pytest.mark.parametrize("settings", ["controller", "controller-paper"])
def test_updates_do_not_depend_on_threads(settings: str) -> None:
    states = []
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        controller = make_proposer(settings, LARGE, 1)
        assert isinstance(controller, Controller)
        for start in (0, 16):
            controller.update(trials(controller, range(start, start + 16)))
        states.append(controller.save())
    torch.set_num_threads(threads)
    assert states[0] == states[1]


def test_the_paper_and_our_setting_are_saved_as_such() -> None:
    for settings in (PAPER, FAST):
        assert Controller.load(SPACE, 3, Controller(SPACE, 3, settings).save()).settings == settings


def test_what_cannot_be_learned_from_is_refused_before_anything_changes() -> None:
    controller = Controller(SPACE, 0)
    before = controller.save()
    good = trials(controller, range(16))
    with pytest.raises(ValueError, match="at least one trial"):
        controller.update([])
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"trial 0 has the value {value}"):
            controller.update(trials(controller, range(1), value) + good[1:])
    with pytest.raises(ValueError, match="trial 7 has no log-probability"):
        controller.update([Scored(7, good[0].tokens, None, 0, 1.0)])
    assert controller.save() == before


def test_a_lesson_does_not_depend_on_the_default_device_or_dtype() -> None:
    expected = Controller(SPACE, 0).propose(range(3))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            controller = Controller(SPACE, 0)
            found = controller.propose(range(3))
            controller.update(trials(controller, range(16)))
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == expected
