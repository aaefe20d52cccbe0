"""A study that is opened to be read."""

import math
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import autodropout as ad
import small_study
from autodropout.controller import make_proposer
from autodropout.search.errors import NoSuchStudy, StudyMismatch
from autodropout.search.ledger import Ledger
from autodropout.search.records import Failure, StudyInfo
from autodropout.search.states import FailureKind
from autodropout.spaces import canonical


def test_a_name_that_is_not_there_leaves_no_connection_open(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    with Ledger(f"sqlite:///{file}") as ledger:
        ledger.drive(StudyInfo("there", small_study.SPACE, "random", 0, 4, 4, 0.0)).close()
    before = connections(file)
    with pytest.raises(NoSuchStudy, match="missing"):
        ad.Study(f"sqlite:///{file}", "missing")
    assert connections(file) == before == 0
    study = ad.Study(f"sqlite:///{file}", "there")
    assert connections(file) > 0
    del study
    assert connections(file) == 0


def test_a_policys_software_is_that_of_its_study_not_of_its_reader(tmp_path: Path) -> None:
    then = {"python": "3.9.1", "torch": "1.8"}
    info = StudyInfo("old", small_study.SPACE, "random", 0, 4, 4, 0.0, versions=then)
    with Ledger(f"sqlite:///{tmp_path}/study.db") as ledger, ledger.drive(info) as driver:
        driver.propose(make_proposer("random", small_study.SPACE, 0).propose([0]))
    (trial,) = ad.Study(f"sqlite:///{tmp_path}/study.db", "old").trials
    assert trial.policy.provenance is not None
    assert trial.policy.provenance.software == then


def test_a_proposer_that_lacks_its_package_leaves_no_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ModuleNotFoundError, match="'tpe' needs Optuna"):
        ad.search(small_study.SPACE, len, 1, storage=f"sqlite:///{tmp_path}/study.db", proposer="tpe")
    assert not list(tmp_path.iterdir())


def test_a_study_that_has_all_its_trials_says_that_nothing_is_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever changes a child and calls again gets the scores of the old one."""

    def child(policy: ad.Policy, seed: int, report: object) -> float:
        return 0.5

    for trials, said in ((2, 0), (3, 0), (3, 1)):
        caplog.clear()
        ad.search(small_study.SPACE, child, trials, storage=f"sqlite:///{tmp_path}/study.db", proposer="random")
        assert caplog.text.count(f"has its {trials} trials, nothing is run") == said
    caplog.clear()
    ad.search(small_study.SPACE, child, 2, storage=f"sqlite:///{tmp_path}/study.db", proposer="random")
    assert (
        "study 'study' has 3 trials, 2 were asked for, nothing is run. Ask for more (trials=, or --trials)"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("proposer", "trials", "said"), [("controller", 3, True), ("controller", 4, False), ("random", 3, False)]
)
def test_a_study_too_small_to_learn_says_so_when_it_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, proposer: str, trials: int, said: bool
) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    ad.search(small_study.SPACE, small_study.child, trials, storage=url, proposer=proposer, minibatch=4)
    told = "the proposer 'controller' learns from 4 trials at a time, and the study is to have 3: it will learn nothing"
    assert (told in caplog.text) is said


def test_no_two_of_the_top_do_the_same_and_all_drop_something(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tokens of a group without a pattern have no effect; a policy of such groups is no policy."""
    space = ad.ConvSpace(groups=((8, 8), (4, 4)))  # on 4 cells a rectangle of any size is empty

    def child(policy: ad.Policy, seed: int, report: object) -> float:
        return float(policy.groups[0].pattern.is_none)  # drop nothing, and be the best

    with caplog.at_level("WARNING"):
        study = ad.search(
            space, child, 120, storage=f"sqlite:///{tmp_path / 'one.db'}", proposer="random", minibatch=50
        )
    best, other = study.best, study.top(1)[0]
    assert best.policy.drops_nothing
    assert repr(study) == "Study('study': 120 trials ended, best 1, which drops nothing)"
    told = f"of trial {best.number} with a score of 1, drops nothing: no dropout was best; of those that drop something"
    assert f"{told}, the best is trial {other.number}, 0" in caplog.text
    used = [trial for trial in study.trials if not trial.policy.groups[0].pattern.is_none]
    assert study.best.policy.groups[0].pattern.is_none
    assert len(used) < len(study.trials) - 3
    assert [trial.number for trial in study.top(3)] == [trial.number for trial in used[:3]]
    top = study.top(10_000)
    assert {trial.number for trial in top} <= {trial.number for trial in used}
    does = [canonical(space, trial.record.tokens) for trial in top]
    assert len(set(does)) == len(does) == len({canonical(space, trial.record.tokens) for trial in used})
    with pytest.raises(ValueError, match="at least one trial must be asked for, got 0"):
        study.top(0)
    with pytest.raises(ValueError, match="by an integer, got 'a'"):
        study.top("a")  # type: ignore[arg-type]


def test_a_trial_that_diverged_has_no_score_of_its_own(tmp_path: Path) -> None:
    """For the proposer it counts as the floor: `record` has it."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = ad.search(small_study.SPACE, lambda policy, seed, report: math.nan, 2, storage=url, floor=0.1)
    for trial in study.trials:
        assert (trial.value, trial.record.value, trial.policy.provenance.score) == (None, 0.1, None)
        assert "score is nan" in trial.failure.message
    assert repr(study.trials) == "[StudyTrial(0: diverged), StudyTrial(1: diverged)]"
    assert repr(study) == "Study('study': 2 trials ended (0 scored, 2 diverged))"
    with pytest.raises(ValueError, match=r"no scored trial yet; diverged or stopped early: 2$"):
        study.best  # noqa: B018
    assert study.top(1) == []


def test_a_trial_that_was_stopped_says_so_also_once_it_is_learned_from(tmp_path: Path) -> None:
    info = StudyInfo("halved", small_study.SPACE, "random", 0, 4, 1, 0.0)
    with Ledger(f"sqlite:///{tmp_path}/study.db") as ledger, ledger.drive(info) as driver:
        driver.propose(make_proposer("random", small_study.SPACE, 0).propose([0]))
        driver.start([0])
        driver.stop(0, 0.5, ((1, 0.4),))
        driver.apply([0], 1, {}, b"state")
    study = ad.Study(f"sqlite:///{tmp_path}/study.db", "halved")
    assert repr(study.trials) == "[StudyTrial(0: stopped early, credited with 0.5)]"
    assert repr(study) == "Study('halved': 1 trial ended (0 scored, 1 stopped early))"
    assert study.trials[0].stopped
    assert study.trials[0].policy.provenance.score is None, "it is credited with one, and has none"


def test_studies_and_trials_are_printed_in_words(tmp_path: Path) -> None:
    info = StudyInfo("mine", small_study.SPACE, "random", 0, 9, 1, 0.0)
    with Ledger(f"sqlite:///{tmp_path}/study.db") as ledger, ledger.drive(info) as driver:
        study = ad.Study(f"sqlite:///{tmp_path}/study.db", "mine")
        assert repr(study) == "Study('mine': 0 trials ended)"
        driver.propose(make_proposer("random", small_study.SPACE, 0).propose(range(5)))
        driver.start(range(4))
        driver.finish(0, 0.97)
        driver.finish(1, 0.125)
        driver.apply([0], 1, {}, b"state")
        driver.fail(2, Failure(FailureKind.CRASH, "killed by signal 9"))
        assert repr(study) == "Study('mine': 2 trials ended, 2 not yet, 1 failed, best 0.97)"
        assert [repr(trial) for trial in study.trials] == [
            "StudyTrial(0: score 0.97)",
            "StudyTrial(1: score 0.125)",
            "StudyTrial(2: failed, last attempt: crash)",
            "StudyTrial(3: running)",
            "StudyTrial(4: waiting)",
        ]
        driver.requeue([3], limit=3)
        assert repr(study.trials[3]) == "StudyTrial(3: waiting, last attempt: interrupted)"


def test_a_search_in_which_all_diverge_says_so_in_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    ad.search(small_study.SPACE, lambda policy, seed, report: math.nan, 2, storage=url)
    assert "no trial of study 'study' has a score (0 scored, 2 diverged); the last that diverged: " in caplog.text
    assert "score is nan" in caplog.text
    caplog.clear()
    ad.search(small_study.SPACE, small_study.child, 3, storage=url)
    assert "has a score" not in caplog.text


@pytest.mark.parametrize(("said", "rate"), [({}, None), ({"drop_rate": 0.3}, 0.3), ({"drop_rate": "high"}, None)])
def test_policies_record_the_rate_that_is_known(tmp_path: Path, said: dict[str, object], rate: float | None) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = ad.search(small_study.SPACE, small_study.child, 1, storage=url, attributes=said)
    assert study.best.policy.provenance.rate == rate


def test_a_rate_is_recorded_and_children_and_users_attach_without_another(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"

    def child(policy: ad.Policy, seed: int) -> float:
        return ad.attach(nn.Sequential(nn.BatchNorm2d(2)), policy, example=torch.zeros(1, 2, 8, 8)).rate

    space = ad.ConvSpace(groups=((8, 8),))
    study = ad.search(space, child, 1, storage=url, proposer="random", rate=0.25)
    assert study.best.value == study.best.policy.recorded_rate == study.info.drop_rate == 0.25
    model = nn.Sequential(nn.BatchNorm2d(2))
    assert ad.attach(model, study.best.policy, example=torch.zeros(1, 2, 8, 8)).rate == 0.25
    assert ad.search(space, child, 2, storage=url, proposer="random").trials[1].value == 0.25, "the study keeps it"
    for said in ({"rate": 0.3}, {"attributes": {"drop_rate": 0.3}}):
        with pytest.raises(StudyMismatch, match=r"study 'study' exists with rate 0\.25, not 0\.3: choose another name"):
            ad.search(space, child, 3, storage=url, proposer="random", **said)


def test_a_study_that_knew_no_rate_can_be_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    ad.search(small_study.SPACE, small_study.child, 1, storage=url, proposer="random")
    assert (
        ad.search(small_study.SPACE, small_study.child, 1, storage=url, proposer="random", rate=0).info.drop_rate == 0
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"rate": 1.5}, r"rate must be a number in \[0, 1\], got 1\.5"),
        ({"rate": "0.2"}, "got '0.2'"),
        ({"rate": 0.2, "attributes": {"drop_rate": 0.3}}, r"rate=0\.2, but the attributes have the drop_rate 0\.3"),
        ({"job": 4}, "job=4 is for a child that offers train_many, .* <function child .* does not"),
    ],
)
def test_what_a_search_cannot_take(tmp_path: Path, said: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ad.search(small_study.SPACE, small_study.child, 1, storage=f"sqlite:///{tmp_path / 'study.db'}", **said)
    assert not list(tmp_path.iterdir())


def test_a_model_is_no_space_and_is_not_printed(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(100)))
    with pytest.raises(ValueError, match=r"ad\.space\(model, example\) makes one of a model; got a Sequential$"):
        ad.search(model, small_study.child, 1, storage=f"sqlite:///{tmp_path / 'study.db'}")


def connections(file: Path) -> int:
    """How often this process has a file open."""
    return sum(os.path.realpath(f"/proc/self/fd/{number}") == str(file) for number in os.listdir("/proc/self/fd"))
