"""`ad.search`, and what can be wrong with arguments, child and storage: each a clear message, and nothing lost."""

import math
import shutil
import threading
import time
from pathlib import Path

import pytest
from driver_tools import SPACE, InlineEngine, by_number, check_study, spoil_checkpoints, states, url

import autodropout as ad
from autodropout import study as study_module
from autodropout.search import engines
from autodropout.search.driver import PATIENCE, ChildError, Progress
from autodropout.search.errors import BadAddress, StorageFull, StudyMismatch, StudyOwned
from autodropout.search.halving import Halving
from autodropout.search.jobs import Stopped
from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposer
from autodropout.search.states import FailureKind, State
from autodropout.search.writing import Writer
from autodropout.study import restore, search


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return url(tmp_path / "study.db")


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processes, and no waiting before another attempt."""
    monkeypatch.setattr(engines, "LocalEngine", InlineEngine)


def score(policy: ad.Policy, seed: int) -> float:
    return seed / 2**31


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "slurm"}, "'slurm' is not an engine; there are local, ray"),
        ({"proposer": "oracle"}, "'oracle' is not a proposer; there are controller"),
        ({"storage": "study.db"}, "a storage is a URL"),
        ({"storage": "mysql://host/db"}, "'mysql' is not a storage"),
        ({"trials": 0}, "trials must be a positive integer, got 0"),
        ({"trials": 2.5}, "got 2.5"),
        ({"capacity": 0}, "capacity must be a positive integer, got 0"),
        ({"minibatch": -1}, "minibatch .* got -1"),
        ({"floor": math.nan}, "floor must be a finite number, got nan"),
        ({"floor": -1e160}, r"floor must lie in -1e\+100\.\.1e\+100, got -1e\+160"),
        ({"name": " "}, "name has 1 to 200"),
        ({"seed": -1}, "got -1"),
        ({"floor": "0"}, "floor must be a finite number, got '0'"),
        ({"name": None}, "name has 1 to 200 .* got None"),
        ({"workers": 0}, "workers must be a positive integer, got 0"),
        ({"workers": "2"}, "workers must be a positive integer, got '2'"),
        ({"deadline": 0.0}, "deadline must be positive seconds, got 0.0"),
        ({"deadline": math.nan}, "deadline must be positive seconds, got nan"),
        ({"deadline": "9"}, "deadline must be positive seconds, got '9'"),
        ({"space": "resnet50"}, r"ad\.space\(model, example\) makes one of a model; got a str$"),
        ({"child": 0.9}, "a child is a function .*, got 0.9"),
        (
            {"child": lambda: 0.9},
            r"a child is called as child\(policy, seed\) or child\(policy, seed, report\), and is <lamb",
        ),
        ({"child": lambda policy: 0.9}, r"and is <lambda>\(policy\)$"),
        ({"child": lambda policy, seed: LOCK}, "cannot be sent to worker processes: .*lock"),
        ({"attempts": 0}, "attempts must be a positive integer, got 0"),
        ({"attempts": 2.0}, "attempts must be a positive integer, got 2.0"),
        ({"job": 0}, "job must be a positive integer, got 0"),
        ({"job": 1.5}, "job must be a positive integer, got 1.5"),
        ({"halving": 3}, "halving must be an ad.Halving, .* got 3"),
        ({"halving": type("Mine", (Halving,), {})(3)}, "halving must be an ad.Halving, and of no class made from it"),
        ({"watch": 3}, "watch is a function of the progress, got 3"),
        ({"attributes": {"lock": LOCK}}, "attributes must be JSON data, got .*lock"),
    ],
)
def test_mistakes(storage: str, tmp_path: Path, changes: dict, message: str) -> None:
    arguments = {"space": SPACE, "child": score, "trials": 1, "proposer": "random", "storage": storage} | changes
    with pytest.raises(ValueError, match=message):
        search(**arguments)
    assert not list(tmp_path.iterdir()), "a mistake leaves no study behind"


def test_a_mistake_leaves_no_study_behind(storage: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        search(SPACE, lambda policy, seed: LOCK, 1, storage=storage)
    with pytest.raises(BadAddress, match="there is no folder"):
        search(SPACE, score, 1, storage=url(tmp_path / "missing" / "study.db"))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("inline")
def test_a_name_that_belongs_to_another_study(storage: str) -> None:
    search(SPACE, score, 3, proposer="random", storage=storage)
    other = ad.ConvSpace(groups=((16, 16), (8, 8)))
    both = (
        r"study 'study' exists with the convnet space: 1 group .*, not the convnet space: 2 groups .*; seed 0, not 3: "
    )
    with pytest.raises(StudyMismatch, match=both):
        search(other, score, 3, proposer="random", seed=3, storage=storage)
    asked = {"proposer": "random", "seed": 0, "minibatch": 16, "floor": 0.0}
    for what, other_one, said in (
        ("proposer", "evolution", "proposer 'random', not 'evolution'"),
        ("seed", 5, "seed 0, not 5"),
        ("minibatch", 3, "minibatch 16, not 3"),
        ("floor", 1, "floor 0.0, not 1.0"),
    ):
        message = f"^study 'study' exists with {said}: choose another name, or ask for what it has, to resume it$"
        with pytest.raises(StudyMismatch, match=message):
            search(SPACE, score, 3, storage=storage, **asked | {what: other_one})
    assert states(storage) == {State.FINISHED: 3}


@pytest.mark.usefixtures("inline")
def test_a_second_driver_is_refused_and_the_first_goes_on(storage: str) -> None:
    refused = []

    def watch(progress: Progress) -> None:
        if progress.scored == 2 and not refused:
            with pytest.raises(StudyOwned, match="study 'study' is being driven by process") as error:
                search(SPACE, score, 6, proposer="random", storage=storage)
            refused.append(error)

    search(SPACE, score, 6, proposer="random", storage=storage, watch=watch)
    assert refused
    assert states(storage) == {State.FINISHED: 6}


@pytest.mark.usefixtures("inline")
def test_the_same_call_resumes_and_more_trials_extend(storage: str) -> None:
    def call(trials: int) -> ad.Study:
        return search(SPACE, score, trials, minibatch=4, capacity=5, proposer="random", storage=storage)

    def interrupt(progress: Progress) -> None:
        if progress.scored == 7:
            raise RuntimeError("the power fails")

    with pytest.raises(RuntimeError, match="power"):
        search(SPACE, score, 10, minibatch=4, capacity=5, proposer="random", storage=storage, watch=interrupt)
    assert states(storage) == {State.APPLIED: 4, State.FINISHED: 3, State.WAITING: 3}
    study = call(10)
    assert states(storage) == {State.APPLIED: 8, State.FINISHED: 2}
    best = study.best
    assert best.value == max(trial.value for trial in study.trials)
    assert SPACE.encode(best.policy) == best.record.tokens
    assert (best.policy.provenance.study, best.policy.provenance.trial) == ("study", best.number)
    assert [trial.record for trial in call(10).trials] == [trial.record for trial in study.trials], "nothing is left"
    call(3)
    assert len(call(13).trials) == 13
    check_study(storage)


def test_what_children_return_and_how_they_end(storage: str, tmp_path: Path) -> None:
    """One study, real processes: nothing that is no score becomes one."""
    once = tmp_path / "once"

    def raise_it() -> float:
        raise KeyError("no such layer")

    def raise_once() -> float:
        if once.exists():
            return 0.25
        once.touch()
        raise OSError("the disk was asleep")

    actions = {
        1: lambda: None,
        2: lambda: "0.99",
        3: lambda: math.nan,
        4: lambda: math.inf,
        5: raise_it,
        6: raise_once,
        7: lambda: time.sleep(600),
    }
    child = by_number(actions, lambda number: number / 100)
    study = search(
        SPACE,
        child,
        12,
        capacity=20,
        minibatch=4,
        proposer="random",
        storage=storage,
        attempts=2,
        deadline=8,
        floor=-1.0,
    )
    trials = {trial.number: trial.record for trial in study.trials}
    assert {number for number, trial in trials.items() if trial.state is State.FAILED} == {1, 2, 5, 7}
    assert all(trials[number].attempts == 2 for number in (1, 2, 5, 6, 7))
    assert (trials[6].value, trials[6].failure) == (0.25, None)
    for number in (3, 4):
        assert (trials[number].value, trials[number].failure.kind) == (-1.0, FailureKind.DIVERGED)
    assert trials[7].failure.kind is FailureKind.TIMEOUT
    assert "None (NoneType), not a score" in trials[1].failure.message
    assert "in raise_it" in trials[5].failure.traceback
    assert study.best.value == max(trial.value for trial in trials.values() if trial.value is not None) < math.inf
    assert sum(trial.value is not None for trial in trials.values()) == 12
    check_study(storage)


@pytest.mark.usefixtures("inline")
def test_a_child_that_never_worked_surfaces_and_waits_for_its_correction(storage: str) -> None:
    def broken(policy: ad.Policy, seed: int) -> float:
        raise ZeroDivisionError("an epoch of no batches")

    for _ in range(4):
        with pytest.raises(ChildError, match="before any trial had a score: ZeroDivisionError: an epoch") as error:
            search(SPACE, broken, 5, workers=2, capacity=3, proposer="random", storage=storage)
        assert "in broken" in str(error.value), "the traceback from the worker"
    assert states(storage) == {State.WAITING: 3}
    study = search(SPACE, score, 5, workers=2, capacity=3, proposer="random", storage=storage)
    assert states(storage) == {State.FINISHED: 5}
    assert all(trial.record.attempts == 1 for trial in study.trials)


@pytest.mark.usefixtures("inline")
def test_a_study_resumed_with_a_broken_child_loses_no_trial_to_it(storage: str) -> None:
    search(SPACE, score, 3, proposer="random", storage=storage)

    def broken(policy: ad.Policy, seed: int) -> float:
        raise NameError("name 'modle' is not defined")

    with pytest.raises(ChildError, match="before it gave this run a score: NameError: name 'modle'"):
        search(SPACE, broken, 9, proposer="random", storage=storage)
    assert states(storage) == {State.FINISHED: 3, State.WAITING: 6}


@pytest.mark.usefixtures("inline")
def test_a_trial_that_always_fails_does_not_bar_a_resumed_study(storage: str) -> None:
    def fail() -> float:
        raise ValueError("this policy is beyond me")

    search(SPACE, score, 3, proposer="random", storage=storage)
    child = by_number({3: fail}, lambda number: 0.5)
    for _ in range(2):
        with pytest.raises(ChildError, match="beyond me"):
            search(SPACE, child, 4, proposer="random", storage=storage, attempts=3)
    search(SPACE, child, 4, proposer="random", storage=storage, attempts=3)
    assert states(storage) == {State.FINISHED: 4, State.FAILED: 1}


@pytest.mark.usefixtures("inline")
def test_a_study_gives_up_when_trial_after_trial_fails(storage: str) -> None:
    def exhaust() -> float:
        raise MemoryError("too large")

    child = by_number(dict.fromkeys(range(5, 200), exhaust), lambda number: 0.5)
    with pytest.raises(ChildError, match=f"{PATIENCE} trials in a row failed in every attempt.*MemoryError: too large"):
        search(SPACE, child, 100, capacity=5, proposer="random", storage=storage, attempts=1)
    assert states(storage) == {State.FINISHED: 5, State.FAILED: PATIENCE, State.WAITING: 4}


def interrupted_study(storage: str, scored: int, **arguments) -> None:
    """A study whose driver ended at so many scores."""

    def interrupt(progress: Progress) -> None:
        if progress.scored >= scored:
            raise RuntimeError("the power fails")

    with pytest.raises(RuntimeError, match="power"):
        search(SPACE, score, 24, minibatch=4, capacity=6, storage=storage, watch=interrupt, **arguments)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(("spoiled", "message"), [(1, "update 3 is damaged; replaying from 2"), (9, "3, 2.* from 0")])
def test_a_damaged_checkpoint_is_replayed_to_the_same_controller(tmp_path: Path, spoiled: int, message: str) -> None:
    intact, damaged = tmp_path / "intact.db", tmp_path / "damaged.db"
    interrupted_study(url(intact), scored=13)
    shutil.copy(intact, damaged)
    spoil_checkpoints(damaged, spoiled)
    search(SPACE, score, 24, minibatch=4, capacity=6, storage=url(intact))
    with pytest.warns(UserWarning, match=message) as caught:
        search(SPACE, score, 24, minibatch=4, capacity=6, storage=url(damaged))
    assert caught[0].filename == __file__, "it points at the call"
    with Ledger(url(intact)) as ours, Ledger(url(damaged)) as theirs:
        one, other = (ledger.read("study").checkpoint() for ledger in (ours, theirs))
    assert (one.version, one.state) == (other.version, other.state) == (6, other.state)
    check_study(url(damaged))


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("room", [2, 6, 11, 20])
def test_a_full_disk_surfaces_and_what_was_recorded_stays(
    storage: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Progress] = []

    def confined(study: Writer) -> Proposer:
        pages = study._connection.exec_driver_sql("PRAGMA page_count").scalar()
        study._connection.exec_driver_sql(f"PRAGMA max_page_count={pages + room}")
        study._connection.rollback()
        return restore(study)

    arguments = {"minibatch": 4, "capacity": 8, "proposer": "evolution", "storage": storage}
    with monkeypatch.context() as patch:
        patch.setattr(study_module, "restore", confined)
        with pytest.raises(StorageFull, match="what was written before is intact"):
            search(SPACE, score, 2000, watch=seen.append, **arguments)
    counts = states(storage)
    scored = counts[State.FINISHED] + counts[State.APPLIED]
    assert scored >= (seen[-1].scored if seen else 0)
    search(SPACE, score, scored + 9, **arguments)
    assert sum(states(storage).values()) >= scored + 9
    check_study(storage)


@pytest.mark.usefixtures("inline")
def test_early_stopping_from_end_to_end(storage: str) -> None:
    """A stopped child has a value, which teaches; it is never the best, nor seen twice by the next run's judge."""

    def child(policy: ad.Policy, seed: int, report) -> float:
        for step in range(1, 10):
            report(step, seed / 2**31 * step / 9)
        return seed / 2**31

    halving = Halving(first=3)
    for trials in (20, 40):
        study = search(SPACE, child, trials, minibatch=5, proposer="random", storage=storage, halving=halving)
    records = [trial.record for trial in study.trials]
    stopped = [trial for trial in records if trial.stopped]
    assert 10 < len(stopped) < 35
    assert all(trial.curve[-1][0] in (3, 9) for trial in stopped)
    assert study.best.record.stopped is False
    assert study.best.value == max(trial.seed / 2**31 for trial in records if not trial.stopped)
    assert all(trial.value < study.best.value for trial in stopped)
    assert halving._finals == [], "the caller's object only says how"
    check_study(storage)


@pytest.mark.usefixtures("inline")
def test_a_child_that_stops_of_its_own_accord_made_a_mistake(storage: str) -> None:
    def child(policy: ad.Policy, seed: int) -> float:
        raise Stopped("I give up")

    with pytest.raises(ChildError, match="Stopped: I give up"):
        search(SPACE, child, 3, proposer="random", storage=storage)
