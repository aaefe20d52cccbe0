"""What a ledger records of a study is enough to have its controller again, to the bit."""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from driver_tools import (
    SPACE,
    FaultyEngine,
    InlineEngine,
    check_study,
    replayed,
    reporting_child,
    spoil_checkpoints,
    url,
)
from driver_zygote import SETTING

from autodropout.search import engines, writing
from autodropout.search.driver import Progress
from autodropout.search.halving import Halving
from autodropout.search.jobs import Answer
from autodropout.search.ledger import Ledger
from autodropout.search.records import Trial
from autodropout.search.states import FailureKind
from autodropout.search.worker import run_job
from autodropout.study import restore, search
from zygote import Zygote


def trials(storage: str) -> list[Trial]:
    with Ledger(storage) as ledger:
        return ledger.read("study").trials()


@pytest.mark.parametrize("proposer", ["controller", pytest.param("controller-paper", marks=pytest.mark.slow)])
def test_recorded_updates_applied_again_give_the_same_controller(
    tmp_path: Path, proposer: str, searches: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes make the study, this one applies its updates again."""
    intact, damaged = tmp_path / "intact.db", tmp_path / "damaged.db"
    for wanted in (22, 40):  # the first one leaves two that are scored and not learned from
        searches.spawn("search_with_faults", url=url(intact), proposer=proposer, trials=wanted)
        assert searches.wait() == 0
    found = trials(url(intact))
    assert any(trial.attempts > 1 for trial in found), "no worker died"
    assert any(trial.stopped for trial in found), "nobody was stopped early"
    assert any(trial.failure and trial.failure.kind is FailureKind.DIVERGED for trial in found)
    assert any(trial.version < (trial.update or 0) for trial in found), "nobody came back late"
    with Ledger(url(intact)) as ledger, ledger.drive(ledger.read("study").info) as study:
        newest = study.checkpoint()
        assert (newest.version, newest.damaged) == (10, ())
        assert replayed(study) == newest.state
        assert restore(study).save() == newest.state

    shutil.copy(intact, damaged)
    spoil_checkpoints(damaged, 1)
    with Ledger(url(damaged)) as ledger, ledger.drive(ledger.read("study").info) as study:
        before = study.checkpoint()
        assert (before.version, before.damaged) == (9, (10,))
        with pytest.warns(UserWarning, match="the checkpoint of update 10 is damaged; replaying from 9"):
            assert restore(study).save() == newest.state

    monkeypatch.setattr(engines, "LocalEngine", FaultyEngine)
    settings = SETTING | {"proposer": proposer, "halving": Halving(first=3)}
    with pytest.warns(UserWarning, match="update 10 is damaged"):
        search(SPACE, reporting_child, 48, storage=url(damaged), **settings)
    with Ledger(url(damaged)) as ledger:
        assert ledger.read("study").checkpoint().damaged == (), "two good ones have come since"
    check_study(url(damaged))


class Backwards(InlineEngine):
    """All jobs are answered in one turn, the last one first."""

    def answers(self, timeout: float) -> list[Answer]:
        jobs, self._jobs = self._jobs[::-1], []
        return [answer for job in jobs for answer in run_job(self._child, job, self._judge)]


@pytest.mark.parametrize("turns_back", [False, True])
def test_a_resumed_study_learns_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns_back: bool
) -> None:
    """Also where the clock was set back meanwhile."""
    monkeypatch.setattr(engines, "LocalEngine", Backwards)
    clock = itertools.count(2e9, -1.0 if turns_back else 1.0)
    monkeypatch.setattr(writing, "time", SimpleNamespace(time=lambda: next(clock)))

    def call(name: str, trials: int, **options) -> list[tuple[int, ...]]:
        arguments = {"minibatch": 7, "capacity": 3, "workers": 3, "proposer": "random", "storage": url(tmp_path / name)}
        study = search(SPACE, reporting_child, trials, **arguments, **options)
        return [update.trials for update in study.reader.updates()]

    def interrupt(progress: Progress) -> None:
        if progress.scored == 6:
            raise RuntimeError("the power fails")

    with pytest.raises(RuntimeError, match="power"):
        call("resumed", 14, watch=interrupt)
    assert call("resumed", 14) == call("whole", 14) == [tuple(range(7)), tuple(range(7, 14))]
