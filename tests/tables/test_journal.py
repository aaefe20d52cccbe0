"""The journal of a study: nothing that was kept is lost, a cut line is dropped, what does not fit is refused."""

import json
from pathlib import Path

import pytest
from made_trials import SPACE, TRAININGS, trial
from outcomes import write_study

import small_study
from autodropout.search.ledger import Ledger
from autodropout.spaces import TransformerSpace
from autodropout.tables import Entry, Journal, Table, TableError, from_ledger


def opened(path: Path) -> Journal:
    journal = Journal(path, SPACE)
    journal.describe("small", TRAININGS["small"])
    return journal


def test_a_journal_is_carried_along(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "study.jsonl"
    first = opened(path)
    first.add([Entry(trial(0)), Entry(trial(1), test=0.25)])
    second = opened(path)
    assert second.entries == first.entries
    assert second.keys == {trial(0).key, trial(1).key}
    second.note({"machine": "a fast one", "preparing": 1.5})
    second.add([Entry(trial(2))])
    third = Journal(path)
    assert third.notes == second.notes == [{"machine": "a fast one", "preparing": 1.5}]
    assert first.notes == []
    assert third.space == SPACE
    assert third.trainings == {"small": TRAININGS["small"]}
    assert [entry.trial.number for entry in third.entries] == [0, 1, 2]


def test_a_journal_that_was_cut_anywhere_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    journal = opened(path)
    journal.add([Entry(trial(number)) for number in range(3)])
    content = path.read_bytes()
    for length in range(0, len(content) + 1, 7):
        path.write_bytes(content[:length])
        if length > content.index(b"\n"):  # the space is there
            Journal(path)
            assert path.read_bytes() == content[:length], "who only reads changes nothing"
        again = opened(path)
        whole = content[:length].count(b"\n") - 2  # lines of trials
        assert [entry.trial.number for entry in again.entries] == list(range(max(0, whole)))
        again.add([Entry(trial(7))])
        assert [entry.trial.number for entry in Journal(path).entries][-1] == 7


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    with pytest.raises(TableError, match="a new one needs a space"):
        Journal(path)
    journal = opened(path)
    journal.add([Entry(trial(0))])
    with pytest.raises(ValueError, match=r"has the trial .* already"):
        journal.add([Entry(trial(0))])
    with pytest.raises(TableError, match="nothing describes the training 'large'"):
        journal.add([Entry(trial(1, training="large"))])
    with pytest.raises(TableError, match="the training 'small' has another layers there"):
        journal.describe("small", TRAININGS["large"])
    with pytest.raises(TableError, match="is of a transformer space: 3 sites"):
        Journal(path, TransformerSpace())
    assert len(Journal(path).entries) == 1, "nothing of it was kept"
    lines = path.read_text().splitlines()
    for line, message in (
        ("{nonsense", "line 4: not JSON"),
        ("[]", "line 4: not an object"),
        ('{"surprise": 1}', "line 4: a trial has no surprise"),
        (json.dumps(json.loads(lines[2]) | {"rate": 2}), r"line 4: .*rate must lie in \[0, 1\], got 2"),
        (json.dumps(json.loads(lines[2]) | {"tokens": [1]}), "line 4: the tokens"),
    ):
        path.write_text("\n".join([*lines, line]) + "\n")
        with pytest.raises(TableError, match=message):
            Journal(path)
    path.write_text(lines[2] + "\n")
    with pytest.raises(TableError, match="before the space"):
        Journal(path)


def test_a_ledgers_study_becomes_rows(storage: str, tmp_path: Path) -> None:
    with Ledger(storage) as ledger:
        study = ledger.read("small")
        found = from_ledger(study, phase="search", training="digits", steps=100, rate=0.2)
        trials = study.trials()
    assert [entry.trial.tokens for entry in found] == [trial.tokens for trial in trials]
    assert [entry.trial.value for entry in found] == [trial.value for trial in trials]
    assert {entry.trial.method for entry in found} == {"controller"}
    assert all(entry.trial.seconds > 0 and entry.trial.log_prob is not None for entry in found)
    table = Table("small", small_study.SPACE, {"digits": {}}, found)
    table.save(tmp_path / "small.parquet")
    assert len(Table.read(tmp_path / "small.parquet").trials(steps=100)) == 32


def test_a_child_that_failed_has_no_value_in_a_table(tmp_path: Path) -> None:
    """A ledger scores it with the study's floor, so that a controller learns; that is not its value."""
    study = write_study(f"sqlite:///{tmp_path / 'study.db'}")
    finished, diverged, failed, stopped = (
        entry.trial for entry in from_ledger(study, phase="search", training="t", steps=2, rate=0.1)
    )
    assert (finished.value, finished.failure) == (0.5, None)
    assert (diverged.value, diverged.failure) == (None, "diverged: the score is nan")
    assert (failed.value, failed.failure) == (None, "crash: no memory")
    assert (stopped.value, stopped.stopped) == (0.25, True)
