"""The journal of a study: nothing that was kept is lost, a cut line is dropped, what does not fit is refused."""

import fcntl
import json
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from made_trials import SPACE, TRAININGS, trial
from outcomes import write_study

import small_study
from autodropout.search.ledger import Ledger
from autodropout.search.states import State
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


def numbers(path: Path) -> list[int]:
    return [entry.trial.number for entry in Journal(path).entries]


def test_what_another_has_written_is_never_lost(tmp_path: Path) -> None:
    """Also where the journal was opened while the other was in the middle of a line."""
    path = tmp_path / "study.jsonl"
    first, second = opened(path), opened(path)
    second.add([Entry(trial(0)), Entry(trial(1))])
    with pytest.raises(
        TableError, match=r"study\.jsonl has [\d,]+ bytes, not the .* another process has written to it"
    ):
        first.add([Entry(trial(2))])
    assert first.entries == []
    assert numbers(path) == [0, 1]
    opened(path).add([Entry(trial(2))])
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    third = Journal(path)
    path.write_bytes(content)
    with pytest.raises(TableError, match="another process has written"):
        third.add([Entry(trial(3))])
    assert path.read_bytes() == content


def test_two_that_begin_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.jsonl"
    opened(path).add([Entry(trial(0))])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", lambda path: False)  # as it was when the other looked
        with pytest.raises(TableError, match="another process has written"):
            Journal(path, SPACE)
    assert numbers(path) == [0]


def test_an_append_waits_for_another_to_end(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    journal = opened(path)
    line = path.read_bytes().splitlines(keepends=True)[-1]
    asked = threading.Event()

    def add() -> None:
        asked.set()
        journal.add([Entry(trial(0))])

    with ThreadPoolExecutor(1) as pool:
        with path.open("ab", buffering=0) as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            other.write(line[:10])
            waiting = pool.submit(add)
            asked.wait()
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)
            other.write(line[10:])
        with pytest.raises(TableError, match="another process has written"):
            waiting.result()
    assert path.read_bytes().endswith(line + line)


@pytest.mark.parametrize("cut", [0, 20])
def test_an_append_that_fails_midway_leaves_nothing(tmp_path: Path, cut: int) -> None:
    """A disk that is full, also after a line that was cut: what is added later stands on a line of its own."""
    path = tmp_path / "study.jsonl"
    opened(path).add([Entry(trial(number)) for number in range(3)])
    os.truncate(path, path.stat().st_size - cut)
    journal = Journal(path)
    kept = [entry.trial.number for entry in journal.entries]
    whole = path.read_bytes()[: path.read_bytes().rfind(b"\n") + 1]
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    for add in (
        lambda: journal.add([Entry(trial(7)), Entry(trial(8))]),
        lambda: journal.describe("large", TRAININGS["large"]),
        lambda: journal.note({"machine": "a full one"}),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 15, unlimited[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                add()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        assert path.read_bytes() == whole
        add()
        assert path.read_bytes().startswith(whole)
        whole = path.read_bytes()
    again = Journal(path)
    assert again.entries == journal.entries
    assert [entry.trial.number for entry in again.entries] == [*kept, 7, 8]
    assert again.trainings == journal.trainings == TRAININGS
    assert again.notes == journal.notes == [{"machine": "a full one"}]


def test_an_append_that_did_not_reach_the_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.jsonl"
    journal = opened(path)
    content = path.read_bytes()

    def broken(handle: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output error"):
            journal.add([Entry(trial(0))])
    assert path.read_bytes() == content
    journal.add([Entry(trial(0))])
    assert numbers(path) == [0]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    with pytest.raises(TableError, match="a new one needs a space"):
        Journal(path)
    journal = opened(path)
    journal.add([Entry(trial(0))])
    with pytest.raises(ValueError, match=r"has the trial .* already"):
        journal.add([Entry(trial(0))])
    with pytest.raises(ValueError, match=r"is to have the trial \('search', 'random', 1, .*\) 2 times"):
        journal.add([Entry(trial(1)), Entry(trial(2)), Entry(trial(1))])
    with pytest.raises(TableError, match="nothing describes the training 'large'"):
        journal.add([Entry(trial(1, training="large"))])
    with pytest.raises(TableError, match="the training 'small' has another layers there"):
        journal.describe("small", TRAININGS["large"])
    for config, differing in (({"layers": 1}, "corpus"), ({**TRAININGS["small"], "width": None}, "width")):
        with pytest.raises(TableError, match=f"the training 'small' has another {differing} there"):
            journal.describe("small", config)
    with pytest.raises(TableError, match="is of a transformer space: 3 sites"):
        Journal(path, TransformerSpace())
    assert len(Journal(path).entries) == 1, "nothing of it was kept"
    lines = path.read_text().splitlines()
    for line, message in (
        ("{nonsense", "line 4: not JSON"),
        ("[]", "line 4: not an object"),
        ('{"surprise": 1}', "line 4: a trial has no surprise"),
        ('{"config": {}}', "line 4: a training has a name and a config, got {'config': {}}"),
        ('{"training": "small", "config": 3}', "line 4: a training has a name and a config, got .*3"),
        ('{"space": {"kind": "mlp"}}', "line 4: not a space: kind: 'mlp' is not one of"),
        ('{"space": {"kind": "transformer", "sites": ["head"]}}', r"line 4: not a space: [\s\S]*'head' is not a site"),
        ('{"space": 3}', "line 4: not a space"),
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


def test_a_child_that_waits_for_another_attempt_is_not_in_a_table(tmp_path: Path) -> None:
    """A ledger keeps the failure of its last attempt, which is not what became of it."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    info = write_study(url).info
    with Ledger(url) as ledger, ledger.drive(info) as study:
        study.start([4])
        for move, state in (
            (lambda: study.requeue([4], limit=3), State.WAITING),
            (lambda: study.start([4]), State.RUNNING),
            (lambda: study.release([4]), State.WAITING),
        ):
            move()
            assert study.trial(4).state is state
            assert study.trial(4).failure is not None
            found = from_ledger(study, phase="search", training="t", steps=2, rate=0.1)
            assert [entry.trial.number for entry in found] == [0, 1, 2, 3]


def test_a_trials_seconds_are_its_share_of_the_jobs(tmp_path: Path) -> None:
    study = write_study(f"sqlite:///{tmp_path / 'study.db'}")
    said = {"phase": "search", "training": "t", "steps": 2, "rate": 0.1}
    alone, four = (from_ledger(study, **said, together=together) for together in (1, 4))
    assert [entry.trial.together for entry in alone + four] == [1] * 4 + [4] * 4
    assert all(entry.trial.seconds > 0 for entry in alone)
    assert [entry.trial.seconds for entry in four] == [entry.trial.seconds / 4 for entry in alone]
    with pytest.raises(ValueError, match="at least one trial, got together=0"):
        from_ledger(study, **said, together=0)
