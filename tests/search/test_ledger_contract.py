"""What a ledger promises of a study and its trials, on every database."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from ledger_tools import CRASH, MINIBATCH, SPACE, finish, info, proposal, proposals, update

from autodropout.search.errors import NoSuchStudy, StateError, StudyMismatch, StudyOwned
from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposal
from autodropout.search.records import Failure, Outcome, StudyInfo, trial_seed
from autodropout.search.states import FailureKind, State
from autodropout.search.writing import Writer
from autodropout.spaces import ConvSpace, TransformerSpace


def test_a_study_is_read_as_it_was_created(ledger: Ledger) -> None:
    given = info(
        "né: 'quoted' \N{SNOWMAN}", space=TransformerSpace(), seed=2**63 - 1, floor=-1e99,
        versions={"python": "3"}, attributes={"recipe": "digits", "list": [1, None, "\0"]},
    )  # fmt: skip
    with ledger.drive(given) as study:
        assert study.info.created is not None
        assert abs(study.info.created - datetime.now(UTC)) < timedelta(minutes=1)
        expected = {name: getattr(given, name) for name in StudyInfo.__slots__} | {"created": study.info.created}
        assert study.info == StudyInfo(**expected)
    assert ledger.read(given.name).info == study.info
    assert ledger.studies() == [study.info]


def test_the_same_call_resumes(ledger: Ledger) -> None:
    with ledger.drive(info(capacity=16)) as study:
        created = study.info.created
        update(study)
    with ledger.drive(info(capacity=32)) as study:
        assert study.info.created == created
        assert study.info.capacity == 32
        assert study.counts()[State.APPLIED] == MINIBATCH


def test_attributes_may_change_and_those_not_named_stay(ledger: Ledger) -> None:
    ledger.drive(info(attributes={"trials": 8, "who": "me"})).close()
    with ledger.drive(info(attributes={"trials": 16, "note": None})) as study:
        assert study.info.attributes == {"trials": 16, "who": "me", "note": None}
        with pytest.raises(StudyOwned):
            ledger.drive(info(capacity=99, attributes={"trials": 99}))
        with pytest.raises(StudyMismatch):
            ledger.drive(info(seed=8, attributes={"trials": 99}))
    with ledger.drive(info()) as study:
        assert study.info.attributes == {"trials": 16, "who": "me", "note": None}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"space": ConvSpace(groups=((8, 8),))}, ["8x8", "32x32, 16x16"]),
        ({"proposer": "controller"}, ["'random', not 'controller'"]),
        ({"seed": 8}, ["seed 7, not 8"]),
        ({"minibatch": 5, "floor": -1.0}, ["minibatch 4, not 5", "floor 0.0, not -1.0"]),
    ],
)
def test_another_study_of_the_same_name_is_refused(ledger: Ledger, change: dict, words: list[str]) -> None:
    with ledger.drive(info()) as study:
        finish(study, 3)
    with pytest.raises(StudyMismatch) as error:
        ledger.drive(info(**change))
    assert all(word in str(error.value) for word in [*words, "'mine'"])
    with ledger.drive(info()) as study:  # and the refusal left no lock behind
        assert len(study.trials()) == 3


def test_what_is_not_there_is_named(ledger: Ledger, study: Writer) -> None:
    with pytest.raises(NoSuchStudy, match="no study 'other' here; there are 'mine'"):
        ledger.read("other")
    with pytest.raises(ValueError, match="no trial 3"):
        study.trial(3)
    with pytest.raises(ValueError, match=r"number, state, tokens.*got loss"):
        study.columns(["number", "loss"])


@pytest.mark.parametrize("name", ["", " x", "x\n", "a\0b", "x" * 201, "\ud800"])
def test_names_that_no_terminal_could_show_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="printable"):
        info(name)


@pytest.mark.parametrize(
    "change", [{"seed": -1}, {"seed": 2**63}, {"seed": True}, {"capacity": 0}, {"minibatch": 1.0}, {"floor": math.nan}]
)
def test_a_study_that_makes_no_sense_is_refused(change: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        info(**change)


def test_studies_in_one_ledger_do_not_mix(ledger: Ledger) -> None:
    with ledger.drive(info("a")) as a, ledger.drive(info("b")) as b:
        update(a)
        finish(b, 2)
        assert [len(study.trials()) for study in (a, b)] == [MINIBATCH, 2]
        assert len(b.updates()) == 0
        assert b.checkpoint().version == 0
        assert a.counts()[State.APPLIED] == MINIBATCH
        assert b.counts()[State.APPLIED] == 0
    assert [study.name for study in ledger.studies()] == ["a", "b"]


def test_proposals_are_numbered_and_come_back_to_the_bit(study: Writer) -> None:
    first = study.propose([Proposal(SPACE.encode(SPACE.sample(0)), -math.pi * 1e-300, 0), proposal(1, 3)])
    second = study.propose([Proposal(SPACE.encode(SPACE.sample(2)), None, 0)])
    assert study.propose([]) == []
    assert study.trials() == [*first, *second]
    assert [trial.number for trial in study.trials()] == [0, 1, 2]
    assert [trial.seed for trial in study.trials()] == [trial_seed(7, number) for number in range(3)]
    assert {trial.state for trial in study.trials()} == {State.WAITING}


def test_seeds_are_what_they_were_and_fit_everywhere() -> None:
    assert [trial_seed(0, 0), trial_seed(0, 1), trial_seed(1, 0)] == [1804556230, 952796821, 1456027211]
    seeds = [trial_seed(0, number) for number in range(4096)]
    assert min(seeds) >= 0
    assert max(seeds) < 2**31
    assert len(set(seeds)) > 4090  # 0.004 collisions are expected; six would be a defect


@pytest.mark.parametrize(
    "bad",
    [
        Proposal((0,) * 15, 0.0, 0),
        Proposal((0,) * 17, 0.0, 0),
        Proposal((5,) + (0,) * 15, 0.0, 0),
        Proposal((-1,) + (0,) * 15, 0.0, 0),
        Proposal((True,) + (0,) * 15, 0.0, 0),
        Proposal((0,) * 16, math.nan, 0),
        Proposal((0,) * 16, -math.inf, 0),
        Proposal((0,) * 16, 0.0, -1),
    ],
)
def test_a_proposal_outside_the_space_is_refused_with_its_batch(study: Writer, bad: Proposal) -> None:
    with pytest.raises(ValueError, match=r"token string|log-probability|seen"):
        study.propose([proposal(0), bad])
    assert study.trials() == []


def test_a_trial_lives_through_its_states(study: Writer) -> None:
    study.propose(proposals(4))
    before = datetime.now(UTC)
    study.start([0, 1, 2, 3], worker="node 1")
    trial = study.trial(0)
    assert (trial.state, trial.attempts, trial.worker) == (State.RUNNING, 1, "node 1")
    assert trial.started is not None
    assert before - timedelta(seconds=1) < trial.started < datetime.now(UTC) + timedelta(seconds=1)
    curve = ((1, 0.25), (2, 1 / 3))
    assert study.finish(0, 0.1 + 0.2, curve)
    assert study.stop(1, 0.2, curve)
    assert study.fail(2, CRASH)
    assert study.finish(3, 0.0, failure=Failure(FailureKind.DIVERGED, "loss is nan"))
    done = study.trials()
    assert [trial.state for trial in done] == [State.FINISHED, State.STOPPED, State.FAILED, State.FINISHED]
    assert [trial.value for trial in done] == [0.1 + 0.2, 0.2, None, 0.0]
    assert [trial.curve for trial in done] == [curve, curve, (), ()]
    assert [trial.failure and trial.failure.kind for trial in done] == [None, None, "crash", "diverged"]
    assert done[2].failure == CRASH
    assert all(trial.finished is not None and trial.finished >= trial.started for trial in done)
    assert study.apply([3, 0, 1, *finish(study, 1)], 1, {}, b"").trials == (3, 0, 1, 4)
    applied = study.trials({State.APPLIED})
    assert [trial.update for trial in applied] == [0, 0, 0, 0]
    assert [trial.stopped for trial in applied] == [False, True, False, False]


def test_answers_that_come_twice_or_late_change_nothing(study: Writer) -> None:
    study.propose(proposals(4))
    study.start([0, 1, 2])
    finished = [Outcome(number, State.FINISHED, 0.5) for number in range(3)]
    assert study.record([finished[0], finished[0], finished[1]]) == [True, False, True]
    assert study.requeue([2], limit=2) == ([2], [])
    seen = study.trials()
    assert study.record([Outcome(0, State.FINISHED, 0.9), Outcome(1, State.FAILED, None, (), CRASH)]) == [False, False]
    assert study.record([finished[2]]) == [False]  # it waits for another attempt
    assert study.trials() == seen
    with pytest.raises(StateError, match="trial 3 was never started"):
        study.finish(3, 0.5)
    study.start([2])
    assert study.record([finished[2]]) == [True]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None, "0.9", True])
def test_what_is_not_a_score_is_refused(study: Writer, bad: object) -> None:
    study.propose(proposals(1))
    study.start([0])
    for call in (study.finish, study.stop):
        with pytest.raises(ValueError, match="finite number"):
            call(0, bad)
    assert study.trial(0).state is State.RUNNING


def test_curves_may_be_not_finite(study: Writer) -> None:
    study.propose(proposals(1))
    study.start([0])
    study.finish(0, 0.5, ((1, math.inf), (2, 0.5), (3, math.nan)))
    steps, values = zip(*study.trial(0).curve, strict=True)
    assert steps == (1, 2, 3)
    assert [math.isnan(v) for v in values] == [True, False, True]


def test_texts_no_database_stores_are_spelled_out(study: Writer) -> None:
    study.propose(proposals(1))
    study.start([0])
    study.fail(0, Failure(FailureKind.USER_ERROR, "a\0b \ud800 é \N{SNOWMAN}", "x" * 10**6 + "the end"))
    failure = study.trial(0).failure
    assert failure is not None
    assert failure.message == "a\\x00b \\ud800 é \N{SNOWMAN}"
    assert failure.traceback.endswith("xthe end")
    assert len(failure.traceback) < 30_000


def test_calls_against_the_states_raise_and_change_nothing(study: Writer) -> None:
    update(study)  # 0..3 APPLIED
    finish(study, 4)  # 4..7 FINISHED
    study.propose(proposals(4))
    study.start([8, 9])  # 8, 9 RUNNING; 10, 11 WAITING
    study.fail(9, CRASH)
    seen = study.trials()
    ready = [4, 5, 6]
    for number, wrong in ((8, "RUNNING"), (9, "FAILED"), (10, "WAITING"), (0, "APPLIED")):
        with pytest.raises(StateError, match=f"trial {number} is {wrong} and cannot become APPLIED"):
            study.apply([*ready, number], 2, {}, b"state")
    for number, wrong in ((8, "RUNNING"), (9, "FAILED"), (4, "FINISHED"), (0, "APPLIED")):
        with pytest.raises(StateError, match=f"trial {number} is {wrong} and cannot become RUNNING"):
            study.start([10, number])
    for number in (0, 4, 9, 10):
        with pytest.raises(StateError, match="cannot become WAITING"):
            study.requeue([8, number], limit=5)
    with pytest.raises(StateError, match="no trial 12"):
        study.record([Outcome(8, State.FINISHED, 0.5), Outcome(12, State.FINISHED, 0.5)])
    with pytest.raises(StateError, match="named twice"):
        study.apply([4, 5, 6, 6], 2, {}, b"state")
    with pytest.raises(ValueError, match="has 4 trials, got 3"):
        study.apply(ready, 2, {}, b"state")
    for version in (1, 3):
        with pytest.raises(StateError, match=f"seen {version} updates, with this one the ledger has 2"):
            study.apply([*ready, 7], version, {}, b"state")
    assert study.trials() == seen
    assert [len(study.updates()), study.checkpoint().version] == [1, 1]


def test_requeued_trials_keep_tokens_and_seed_until_their_attempts_are_used_up(study: Writer) -> None:
    study.propose(proposals(2))
    fresh = study.trial(0)
    for attempt in (1, 2):
        study.start([0])
        assert study.requeue([0], limit=3, failure=CRASH) == ([0], [])
        again = study.trial(0)
        assert (again.state, again.attempts, again.failure) == (State.WAITING, attempt, CRASH)
        assert (again.tokens, again.seed, again.log_prob) == (fresh.tokens, fresh.seed, fresh.log_prob)
    study.start([0, 1])
    assert study.requeue([0, 1], limit=3) == ([1], [0])
    assert study.trial(0).failure.kind is FailureKind.INTERRUPTED
    assert study.trial(0).finished is not None
    study.start([1])
    study.finish(1, 0.5)
    assert study.trial(1).failure is None  # a score forgives earlier attempts
    assert study.best() == study.trial(1)
