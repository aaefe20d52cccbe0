"""The log file, TensorBoard's files, and the progress on stderr."""

import io
import json
import math
import warnings
from pathlib import Path

import pytest
from rich.console import Console
from tiny_training import EVERY, STEPS, train_in

from autodropout.training.display import PlainDisplay, Words, curve, duration, progress_display
from autodropout.training.log import Evaluation, Log

HISTORY = [
    Evaluation(10, 1.0, 0.25, {"train_loss": 2.0}),
    Evaluation(20, 2.0, 0.75, {"train_loss": 1.0}),
    Evaluation(30, 3.0, 0.5, {"train_loss": 0.5, "perplexity": math.inf}),
]


class Crash(Exception):
    pass


def crash_in_30(step: int) -> None:
    if step == 30:
        raise Crash


def test_lines_after_the_checkpoint_are_cut_off(tmp_path: Path) -> None:
    with Log(tmp_path, [], 0, tensorboard=False) as log:
        for evaluation in HISTORY:
            log.write(evaluation)
    whole = (tmp_path / "log.jsonl").read_text()
    assert [json.loads(line)["step"] for line in whole.splitlines()] == [10, 20, 30]
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 40, "ti')  # killed while writing
    with Log(tmp_path, HISTORY[:2], 25, tensorboard=False) as log:
        assert (tmp_path / "log.jsonl").read_text() == "".join(whole.splitlines(keepends=True)[:2])
        log.write(HISTORY[2])
    assert (tmp_path / "log.jsonl").read_text() == whole


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    line = json.loads(HISTORY[2].to_line(), parse_constant=pytest.fail)
    assert line == {"step": 30, "time": 3.0, "reward": 0.5, "metrics": {"train_loss": 0.5, "perplexity": None}}


def test_tensorboard_shows_one_curve_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(Crash):
        train_in(tmp_path, tensorboard=True, checkpoint_every=25, in_step=crash_in_30)
    train_in(tmp_path, tensorboard=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard's own
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for name in ("reward", "train_loss", "double"):
        shown = [(event.step, event.value) for event in board.Scalars(name)]
        logged = [(line["step"], line.get(name, line["metrics"].get(name))) for line in lines]
        assert [step for step, _ in shown] == [step for step, _ in logged]
        assert [value for _, value in shown] == pytest.approx([value for _, value in logged], rel=1e-6)


def test_plain_lines_on_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Crash):
        train_in(tmp_path, show=True, in_step=crash_in_30)
    train_in(tmp_path, show=True)
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    steps = [line.split(",")[0] for line in lines]
    first = [f"step {step}/{STEPS}" for step in range(EVERY, 31, EVERY)]
    second = [f"step {step}/{STEPS}" for step in [*range(35, STEPS, EVERY), STEPS]]
    assert steps == [*first, f"going on after step 30 of {STEPS}", *second]
    assert "score -" in lines[0]
    assert "train_loss" in lines[0]


def test_nothing_is_shown_unasked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train_in(tmp_path)
    assert capfd.readouterr() == ("", "")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_words() -> None:
    clock = Clock()
    words = Words(20, 1020, clock)
    assert words(20, []) == "step 20/1020"
    clock.now += 10.0
    assert words(70, []) == "step 70/1020, 5 steps/s, about 3 min left"
    assert words(70, HISTORY) == (
        "step 70/1020, 5 steps/s, about 3 min left, score 0.5 (best 0.75 at 20), train_loss 0.5, perplexity inf  ▁█▅"
    )
    clock.now += 190.0
    assert words(1020, []) == "step 1020/1020, 5 steps/s"


def test_a_plain_line_a_minute_where_nothing_is_evaluated() -> None:
    clock, text = Clock(), io.StringIO()
    display = PlainDisplay(Words(0, 100, clock), Console(file=text), clock)
    for step in range(1, 10):
        clock.now += 25.0
        display.update(step, [])
    assert [line.split(",")[0] for line in text.getvalue().splitlines()] == ["step 3/100", "step 6/100", "step 9/100"]


def test_a_terminal_gets_a_bar() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=200)
    with progress_display(5, 40, HISTORY[:1], console) as display:
        display.update(30, HISTORY)
        display.evaluated(30, HISTORY)
    shown = text.getvalue()
    assert "going on after step 5 of 40" in shown
    last = shown.splitlines()[-3:-1]  # the bar has its line, the words have theirs
    assert "━" in last[0]
    assert "75%" in last[0]
    assert "step 30/40" in last[1]
    assert "best 0.75 at 20" in last[1]


def test_curves() -> None:
    assert curve([]) == ""
    assert curve([1.0]) == curve([-5.0]) == "▁"
    assert curve([0.0, 1.0, 0.5]) == "▁█▅"
    assert curve(list(range(8))) == "▁▂▃▄▅▆▇█"
    long = curve(list(range(1000)), width=8)
    assert long == "▁▂▃▄▅▆▇█"
    assert len(curve(list(range(33)))) == 32


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.4, 89, 90, 5399, 5400, 86_400)] == [
        "0 s",
        "89 s",
        "2 min",
        "90 min",
        "1.5 h",
        "24.0 h",
    ]
