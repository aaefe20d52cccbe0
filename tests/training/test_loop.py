"""The loop: what it yields, logs and refuses; resuming and stopping inside one process. Kills: test_training_kills."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import CONFIG, EVERY, STEPS, outcome, train, train_in

from autodropout.training.checkpoint import CheckpointError
from autodropout.training.loop import Loop
from autodropout.training.run import Run

CPU = Run(device="cpu")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    train_in(folder)
    return folder


class Crash(Exception):
    pass


def crash_in(step: int) -> Any:
    def in_step(now: int) -> None:
        if now == step:
            raise Crash

    return in_step


def test_indices_and_steps_done() -> None:
    with Loop(CPU, 3, {}, {}) as loop:
        seen = [(step, loop.step, loop.due(2)) for step in loop]
    assert seen == [(0, 1, False), (1, 2, True), (2, 3, True)]
    assert loop.step == loop.steps == 3
    assert (loop.last, loop.best) == (None, None)
    assert list(Loop(CPU, 2, {}, {})) == [0, 1], "it can do without a with"
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        Loop(CPU, 0, {}, {})


def test_nothing_is_written_without_a_folder(undisturbed: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    loop, _ = train(CPU)
    assert not list(tmp_path.iterdir())
    assert [(line["step"], line["reward"]) for line in outcome(undisturbed)[2]] == [
        (evaluation.step, evaluation.reward) for evaluation in loop.history
    ]


@pytest.mark.parametrize("at", [0, 4, 5, 31, 59])
def test_a_training_that_crashed_goes_on(undisturbed: Path, tmp_path: Path, at: int) -> None:
    with pytest.raises(Crash):
        train_in(tmp_path, in_step=crash_in(at))
    first: list[int] = []
    train_in(tmp_path, in_step=first.append)
    assert first[0] == at // 5 * 5, "it goes on from the last checkpoint"
    assert outcome(tmp_path) == outcome(undisturbed)


def test_checkpoints_change_nothing(undisturbed: Path, tmp_path: Path) -> None:
    train_in(tmp_path, checkpoint_every=10**6)
    assert outcome(tmp_path) == outcome(undisturbed)


def test_draws_before_the_first_step_do_not_matter_after_a_resume(undisturbed: Path, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train_in(tmp_path, in_step=crash_in(30))
    original = Loop.__enter__

    def draws_first(loop: Loop) -> Loop:
        torch.rand(3)
        return original(loop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "__enter__", draws_first)
        train_in(tmp_path)
    assert outcome(tmp_path) == outcome(undisturbed)


def test_a_finished_training_does_nothing_more(undisturbed: Path) -> None:
    before = (undisturbed / "log.jsonl").read_bytes()
    steps: list[int] = []
    loop, _ = train_in(undisturbed, in_step=steps.append)
    assert steps == []
    assert loop.last is not None
    assert loop.best is not None
    assert loop.last.step == STEPS
    assert loop.best.reward == max(evaluation.reward for evaluation in loop.history)
    assert loop.steps_per_s > 0
    assert (undisturbed / "log.jsonl").read_bytes() == before, "its times too"


def test_a_damaged_checkpoint_costs_a_few_steps(undisturbed: Path, tmp_path: Path, caplog: Any) -> None:
    with pytest.raises(Crash):
        train_in(tmp_path, in_step=crash_in(31))
    path = tmp_path / "checkpoint-000000030.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    first: list[int] = []
    train_in(tmp_path, in_step=first.append)
    assert first[0] == 25
    assert "checkpoint-000000030.safetensors is damaged" in caplog.text
    assert outcome(tmp_path) == outcome(undisturbed)


def test_two_damaged_checkpoints_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train_in(tmp_path, in_step=crash_in(31))
    for path in tmp_path.glob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"0030.*damaged.*0025.*damaged.*Remove"):
        train_in(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr": 0.2}, r"lr = 0.1; this one has 0.2"),
        ({"model": {"name": "tiny", "width": 8}}, r"model\.width = 4; this one has 8"),
        ({"model": {"name": "tiny"}}, r"model\.width = 4; this one has nothing"),
        ({"depth": [1, None]}, r"depth = nothing; this one has \[1, null\]"),
        ({"groups": [[1, 2], [3, 5]]}, r"groups\[1\]\[1\] = 4; this one has 5"),
        ({"groups": [[1, 2]]}, r"groups = \[\[1, 2\], \[3, 4\]\]; this one has \[\[1, 2\]\]"),
        ({"model": None}, r'model = {"name": "tiny", "width": 4}; this one has null'),
    ],
)
def test_another_training_is_refused(undisturbed: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=f"{undisturbed} has the checkpoints of another training, with {said}"):
        train(Run(undisturbed, device="cpu"), config=CONFIG | change)


def test_other_steps_or_states_are_refused(undisturbed: Path) -> None:
    with pytest.raises(CheckpointError, match=f"steps = {STEPS}; this one has 10"):
        train(Run(undisturbed, device="cpu"), steps=10)
    with pytest.raises(CheckpointError, match=r"has the states model, .*order; this training needs none"):
        Loop(Run(undisturbed, device="cpu"), STEPS, {}, CONFIG)
    with pytest.raises(ValueError, match="JSON"):
        Loop(CPU, 1, {}, {"lr": math.nan})


def test_the_same_config_in_other_words(undisturbed: Path) -> None:
    train(Run(undisturbed, device="cpu"), config=dict(reversed(CONFIG.items())) | {"groups": ((1, 2), (3, 4))})


def test_means_rewards_and_the_best(tmp_path: Path) -> None:
    rewards, better = iter((0.5, 0.5, 0.6)), []
    with Loop(Run(tmp_path, device="cpu"), 5, {}, {}) as loop:
        for step in loop:
            loop.add(train_loss=torch.tensor(float(step)))
            if step == 1:
                loop.add(norm=torch.tensor(2, dtype=torch.bfloat16))
            if loop.due(2):
                better.append(loop.evaluated(next(rewards), accuracy=step / 4))
    assert better == [True, False, True]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line.pop("time") for line in lines] == [evaluation.time for evaluation in loop.history]
    assert lines == [
        {"step": 2, "reward": 0.5, "metrics": {"train_loss": 0.5, "norm": 2.0, "accuracy": 0.25}},
        {"step": 4, "reward": 0.5, "metrics": {"train_loss": 2.5, "accuracy": 0.75}},
        {"step": 5, "reward": 0.6, "metrics": {"train_loss": 4.0, "accuracy": 1.0}},
    ]
    assert loop.best is loop.last is loop.history[2]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_training_that_diverged(tmp_path: Path, bad: float) -> None:
    def diverge(reward: float, loss: float) -> None:
        with Loop(Run(tmp_path, device="cpu"), 2, {}, {}) as loop:
            for step in loop:
                loop.add(train_loss=torch.tensor(loss if step == 0 else 0.0))
                if loop.due(2):
                    loop.evaluated(reward)

    with pytest.raises(FloatingPointError, match=f"reward is {bad} at step 2"):
        diverge(bad, 1.0)
    with pytest.raises(FloatingPointError, match=f"train_loss is {bad} at step 2"):
        diverge(1.0, bad)
    assert (tmp_path / "log.jsonl").read_text() == ""
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_search_is_told_everything_once_more_after_a_resume(undisturbed: Path, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    told: list[tuple[int, float]] = []

    def report(step: int, value: float) -> None:
        told.append((step, value))
        if step == 3 * EVERY and len(told) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        train_in(tmp_path, report=report)
    assert [step for step, _ in told] == [7, 14, 21]
    train_in(tmp_path, report=report)
    curve = [(line["step"], line["reward"]) for line in outcome(undisturbed)[2]]
    assert told[3:] == curve
    assert outcome(tmp_path) == outcome(undisturbed)


@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=["Ctrl-C", "SIGTERM"]
)
def test_signals(undisturbed: Path, tmp_path: Path, number: int, ends: type, caplog: pytest.LogCaptureFixture) -> None:
    before = signal.getsignal(number)

    def interrupt(step: int) -> None:
        if step == 12:
            signal.raise_signal(number)

    with pytest.raises(ends) as ended:
        train_in(tmp_path, in_step=interrupt)
    if ends is SystemExit:
        assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before
    assert "stopped after step 13 of 60; the same call goes on from there" in caplog.text
    first: list[int] = []
    train_in(tmp_path, in_step=first.append)
    assert first[0] == 13, "the step under way was finished and saved"
    assert outcome(tmp_path) == outcome(undisturbed)


def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    def interrupt(step: int) -> None:
        if step == 12:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_in(tmp_path, in_step=interrupt)
    assert max(tmp_path.glob("checkpoint-*")).name == "checkpoint-000000010.safetensors"


def test_signals_are_left_alone_where_nothing_can_be_saved_and_where_others_have_them(tmp_path: Path) -> None:
    with Loop(CPU, 1, {}, {}):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    mine: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: mine.append(number))
    try:
        with Loop(Run(tmp_path, device="cpu"), 2, {}, {}) as loop:
            for _ in loop:
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert mine == [signal.SIGINT] * 2


def test_times_add_up_over_resumes(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train_in(tmp_path, in_step=crash_in(31))
    train_in(tmp_path)
    times = [json.loads(line)["time"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert times == sorted(times)
    assert times[0] > 0
