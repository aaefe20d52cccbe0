"""Charts, pictures, plots, the progress display and exports, each on small exact cases."""

import io
import json
import re
import warnings
from datetime import UTC, datetime
from pathlib import Path

import matplotlib.image
import numpy as np
import optuna
import pyarrow.parquet
import pytest
import torch
from report_tools import SPACE, diverged, failed, scored, write_study
from rich.console import Console

from autodropout.report.charts import HEIGHT, WIDTH, Series, chart, picture
from autodropout.report.display import EVERY, LiveDisplay, PlainDisplay, progress_display, words
from autodropout.report.export import write_optuna, write_parquet
from autodropout.report.history import read_history
from autodropout.report.masks import draw_masks, policy_masks
from autodropout.report.plots import draw_comparison
from autodropout.search.driver import Progress
from autodropout.search.ledger import Ledger
from autodropout.search.states import State
from autodropout.spaces import ConvSpace, Provenance, TransformerSpace, space_from_dict


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.db'}"


def drawn(text: str) -> list[str]:
    """What the paths of a chart draw, without its grid."""
    return re.findall(r'<path class="(?:line|steps|dots) [^"]*" d="([^"]*)"', text)


def series(*y: float, mark: str = "line") -> Series:
    return Series("s", np.arange(1.0, len(y) + 1), np.array(y), 1, mark)  # type: ignore[arg-type]


def test_a_line_breaks_where_there_is_no_number() -> None:
    (path,) = drawn(chart("t", [series(0, 1, np.nan, 1, np.inf, 0)], "x"))
    low, high = HEIGHT * (1 - 0.05 / 1.1), HEIGHT * 0.05 / 1.1
    assert path == f"M0 {low:.0f}h0L200 {high:.0f}M600 {high:.0f}h0M1000 {low:.0f}h0"


def test_steps_hold_their_value_to_the_end() -> None:
    (path,) = drawn(chart("t", [series(np.nan, 0, 0, 1, 1, mark="steps")], "x"))
    low, high = HEIGHT * (1 - 0.05 / 1.1), HEIGHT * 0.05 / 1.1
    assert path == f"M0 {low:.0f}h0H667V{high:.0f}H{WIDTH}"


def test_dots_outside_the_range_are_on_its_edge() -> None:
    (path,) = drawn(chart("t", [series(-100, 0, 1, mark="dots")], "x", (0.0, 1.0)))
    assert path.startswith(f"M0 {HEIGHT}h0")


def test_equal_dots_are_drawn_once() -> None:
    (path,) = drawn(chart("t", [Series("s", np.repeat([1.0, 2.0], 5000), np.ones(10_000), 1, "dots")], "x"))
    assert path.count("M") == 2


def test_ticks_are_round_numbers_and_trials_are_whole() -> None:
    text = chart("t", [series(0.123, 0.4)], "x")
    labels = re.findall(r"<span style=\"(bottom|left):[-\d.]+%\">([^<]*)<", text)
    assert [label for side, label in labels if side == "left"] == ["1", "2"]
    assert [label for side, label in labels if side == "bottom"] == ["0.2", "0.3", "0.4"]


def test_scores_that_hardly_differ_have_a_chart() -> None:
    """Ticks whose distances are rounding errors."""
    assert "<svg" in chart("t", [series(833159.2506503875, 833159.2506485605)], "x")


def test_one_trial_is_number_1_and_nothing_lies_below_zero() -> None:
    text = chart("t", [series(0.0)], "x")
    labels = re.findall(r"<span style=\"(bottom|left):[-\d.]+%\">([^<]*)<", text)
    assert [label for side, label in labels if side == "left"] == ["1"]
    assert next(label for side, label in labels if side == "bottom") == "0.00"


def test_a_chart_of_nothing_says_so() -> None:
    assert "nothing finite yet" in chart("t", [series(np.nan)], "x")


def test_a_picture_has_one_pixel_a_cell() -> None:
    import base64

    found = re.search(r"base64,([^\"]*)", picture(np.array([[0.0, 1.0, 0.5]]), (1.0, 0.0, 0.0), "three"))
    assert found is not None
    pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(found[1])))
    assert pixels.shape == (1, 3, 4)
    np.testing.assert_allclose(pixels[0, :, 3], [0, 1, 0.5], atol=1 / 255)


def test_masks_of_every_place_of_a_policy() -> None:
    conv = policy_masks(ConvSpace(groups=((16, 16), (9, 7))).sample(seed=1))
    assert [masks.place for masks in conv] == ["group 1, 16x16", "group 2, 9x7"]
    assert [masks.panels.shape[1:] for masks in conv] == [(16, 16), (9, 7)]
    transformer = TransformerSpace().sample(seed=0)
    for masks, (site, pattern) in zip(policy_masks(transformer), transformer.sites.items(), strict=True):
        assert masks.place == site
        assert len(masks.panels) == (0 if pattern.is_none else 8)
        assert pattern.is_none or not masks.panels.all(), "a draw that drops something"


def test_samples_show_what_a_run_shared_by_all_does() -> None:
    """A sample is dropped whole or not at all: one panel would be black, or empty."""
    space = TransformerSpace(sites=("attention.key",))
    pattern = space.decode((7, 0, 1, 1))
    (masks,) = policy_masks(pattern, rate=0.0625)
    whole = [not panel.any() for panel in masks.panels]
    assert 1 <= sum(whole) <= 3
    assert all(panel.all() for panel, dropped in zip(masks.panels, whole, strict=True) if not dropped)
    (each,) = policy_masks(space.decode((7, 0, 0, 0)), rate=0.5)
    assert len({tuple(panel.flatten().tolist()) for panel in each.panels}) == 8, "samples of their own"


def test_masks_follow_their_seed() -> None:
    policy = ConvSpace(groups=((32, 32),)).decode((3, 0, 0, 0, 0, 3, 4, 4))
    (first,), (again,), (other,) = (policy_masks(policy, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.panels, again.panels)
    assert not torch.equal(first.panels, other.panels)


@pytest.mark.parametrize("space", [SPACE, TransformerSpace()])
def test_masks_of_the_last_seed_there_is(space: ConvSpace | TransformerSpace) -> None:
    assert len(policy_masks(space.sample(seed=0), seed=2**63 - 1)) == len(policy_masks(space.sample(seed=0)))


@pytest.mark.parametrize("space", [SPACE, TransformerSpace()])
def test_masks_are_drawn(tmp_path: Path, space: ConvSpace | TransformerSpace) -> None:
    draw_masks(space.sample(seed=0), tmp_path / "masks.png")
    assert matplotlib.image.imread(tmp_path / "masks.png").std() > 0.1  # not an empty sheet
    for suffix in ("nonsense", "bmp", "jpg"):
        with pytest.raises(ValueError, match=rf"masks.{suffix}: a picture is a .png, .svg or .pdf, not a .{suffix}$"):
            draw_masks(space.sample(seed=0), tmp_path / f"masks.{suffix}")
    draw_masks(space.sample(seed=0), tmp_path / "MASKS.PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"masks.png", "MASKS.PNG"}


@pytest.mark.parametrize("space", [SPACE, TransformerSpace()])
def test_a_policy_that_drops_nothing_says_so(tmp_path: Path, space: ConvSpace | TransformerSpace) -> None:
    policy = space.decode((0,) * len(space.tokens))
    assert {masks.pattern for masks in policy_masks(policy)} == {"no pattern"}
    draw_masks(policy, tmp_path / "masks.svg")
    drawn = (tmp_path / "masks.svg").read_text()
    assert drawn.count("nothing is dropped here") == len(policy_masks(policy))
    assert "This policy drops nothing." in drawn


def test_how_much_a_pattern_drops_is_told() -> None:
    whole = ConvSpace(groups=((10, 10),)).decode((4, 0, 31, 0, 0, 0, 0, 0))  # 8x8 cells, gaps of one, 32 times
    (masks,) = policy_masks(whole)
    found = re.search(r"drops (\d+)% of a map it hits", masks.pattern)
    assert found is not None
    assert abs(int(found[1]) / 100 - 64 / 81) < 0.05  # the share of a tiling without end
    space = TransformerSpace(sites=("attention.query",))
    sizes, strides = (token.values for token in space.tokens[:2])
    (masks,) = policy_masks(space.decode((sizes.index(20), strides.index(5), 0, 0)), rate=0.25)
    assert masks.pattern.endswith("drops 20% at rate 0.25")
    known = space.decode((sizes.index(20), strides.index(5), 0, 0), Provenance(rate=0.5))
    assert policy_masks(known)[0].pattern.endswith("drops 40% at rate 0.5"), "its own"
    assert policy_masks(known.model_copy(update={"provenance": Provenance()}))[0].pattern.endswith("at rate 0.3")


def test_studies_with_any_name_are_compared(tmp_path: Path) -> None:
    history = read_history(write_study(url(tmp_path), [scored(0.1), scored(0.3)]))
    empty = read_history(write_study(url(tmp_path), [], name="empty"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_comparison({"_hidden": history, "$cost_{": history, "empty": empty}, tmp_path / "curves.svg")
    with pytest.raises(ValueError, match="no study"):
        draw_comparison({}, tmp_path / "none.png")


# The display

PROGRESS = Progress(3, 8, 2, 1, 1, 4, 1, 0.25, {"entropy": 12.34})


def test_progress_in_words() -> None:
    assert words(PROGRESS) == "best 0.25, 2 running, 1 waiting, 1 failed, 4 retried, 1 update, entropy 12.3"
    assert words(Progress(0, 8, 0, 0, 0, 0, 0, None, {})) == "no score yet, 0 running, 0 waiting, 0 failed, 0 updates"


def test_plain_lines_come_first_now_and_then_and_last() -> None:
    file, now = io.StringIO(), [0.0]
    display = PlainDisplay("[red]mine", Console(file=file, width=20), clock=lambda: now[0])
    for seconds, scored_ in ((0, 0), (1, 1), (EVERY - 0.1, 2), (EVERY, 3), (EVERY + 1, 4), (EVERY + 2, 8)):
        now[0] = seconds
        display.update(Progress(scored_, 8, 0, 0, 0, 0, 0, None, {}))
    lines = file.getvalue().splitlines()
    assert [line.partition(" trials")[0] for line in lines] == [f"[red]mine: {n}/8" for n in (0, 3, 8)]


def test_a_terminal_gets_a_bar_and_anything_else_lines() -> None:
    file = io.StringIO()
    with progress_display("mine", Console(file=file, force_terminal=True, width=80)) as display:
        assert isinstance(display, LiveDisplay)
        display.update(PROGRESS)
    assert "3/8" in file.getvalue()
    assert words(PROGRESS) in file.getvalue()
    with progress_display("mine", Console(file=io.StringIO())) as display:
        assert isinstance(display, PlainDisplay)


# Exports

OUTCOMES = [scored(0.5), scored(0.9, stopped=True), diverged(), failed("gone"), scored(0.6)]


def test_parquet_has_every_trial_with_its_tokens_in_words(tmp_path: Path) -> None:
    reader = write_study(url(tmp_path), OUTCOMES, waiting=1)
    assert write_parquet(reader, tmp_path / "trials.parquet") == 6
    table = pyarrow.parquet.read_table(tmp_path / "trials.parquet")
    rows, trials = table.to_pylist(), reader.trials()
    for row, trial in zip(rows, trials, strict=True):
        assert (row["number"], row["value"], row["seed"]) == (trial.number, trial.value, trial.seed)
        assert State[row["state"]] is trial.state
        assert tuple(row["tokens"]) == trial.tokens
        assert [(point["step"], point["value"]) for point in row["curve"]] == list(trial.curve)
        assert row["finished"] == trial.finished
        for position, token in enumerate(SPACE.tokens):
            assert row[token.name] == token.values[trial.tokens[position]]
    assert [row["failure"] for row in rows] == [None, None, "diverged", "crash", None, None]
    facts = json.loads(table.schema.metadata[b"autodropout"])
    assert space_from_dict(facts["space"]) == SPACE


def test_an_empty_study_makes_an_empty_table(tmp_path: Path) -> None:
    assert write_parquet(write_study(url(tmp_path), []), tmp_path / "trials.parquet") == 0
    assert pyarrow.parquet.read_table(tmp_path / "trials.parquet").num_rows == 0


@pytest.mark.parametrize("kind", ["journal", "database"])
def test_optuna_sees_the_same_best_trial(tmp_path: Path, kind: str) -> None:
    reader = write_study(url(tmp_path), OUTCOMES, waiting=1)
    path = tmp_path / "optuna"
    where = str(path) if kind == "journal" else f"sqlite:///{path}"
    assert write_optuna(reader, where, "copy") == 5
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    storage = optuna.storages.JournalStorage(backend) if kind == "journal" else where
    copy = optuna.load_study(study_name="copy", storage=storage)
    states = [trial.state.name for trial in copy.trials]
    assert states == ["COMPLETE", "PRUNED", "FAIL", "FAIL", "COMPLETE"]
    trial, best = reader.trial(4), copy.best_trial
    assert best.value == trial.value
    assert list(best.params.values()) == [token.values[i] for token, i in zip(SPACE.tokens, trial.tokens, strict=True)]
    assert best.intermediate_values == dict(trial.curve)
    assert best.datetime_complete is not None
    assert trial.finished is not None
    assert best.datetime_complete.astimezone(UTC) == trial.finished
    assert copy.trials[3].user_attrs["failure"] == "crash: gone"
    with pytest.raises(ValueError, match="'copy' already"):
        write_optuna(reader, where, "copy")


def test_optuna_does_not_write_into_another_file(tmp_path: Path) -> None:
    reader = write_study(url(tmp_path), OUTCOMES)
    before = (tmp_path / "study.db").read_bytes()
    with pytest.raises(ValueError, match="something else"):
        write_optuna(reader, str(tmp_path / "study.db"), "copy")
    assert (tmp_path / "study.db").read_bytes() == before


def test_a_real_study_can_be_exported(storage: str, tmp_path: Path) -> None:
    with Ledger(storage) as ledger:
        reader = ledger.read("small")
        assert write_parquet(reader, tmp_path / "trials.parquet") == 32
    written = pyarrow.parquet.read_table(tmp_path / "trials.parquet", columns=["started"]).to_pylist()
    assert all(row["started"] < datetime.now(UTC) for row in written)
