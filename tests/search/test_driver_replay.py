"""What a ledger records of a study is enough to have its controller again, to the bit."""

import shutil
from pathlib import Path

import pytest
from driver_tools import SPACE, FaultyEngine, check_study, replayed, reporting_child, spoil_checkpoints, url
from driver_zygote import SETTING

from autodropout.search import engines
from autodropout.search.halving import Halving
from autodropout.search.ledger import Ledger
from autodropout.search.records import Trial
from autodropout.search.states import FailureKind
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
