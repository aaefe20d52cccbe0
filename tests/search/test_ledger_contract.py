"""What a ledger promises, on every database."""

import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from ledger_tools import MINIBATCH, SPACE, finish, info, learned, proposal, proposals, replayed, update, value
from sqlalchemy import text

from autodropout.search import schema
from autodropout.search.errors import LedgerError, NoSuchStudy, StateError, StudyMismatch, StudyOwned
from autodropout.search.ledger import Ledger
from autodropout.search.protocols import Proposal
from autodropout.search.records import Failure, Outcome, StudyInfo, trial_seed
from autodropout.search.states import FailureKind, State
from autodropout.search.writing import Writer
from autodropout.spaces import ConvSpace, TransformerSpace

CRASH = Failure(FailureKind.CRASH, "killed by signal 9", "Traceback ...")


def test_a_study_is_read_as_it_was_created(ledger: Ledger) -> None:
    given = info(
        "né: 'quoted' \N{SNOWMAN}", space=TransformerSpace(), seed=2**63 - 1, floor=-1e300,
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


def test_an_update_and_its_checkpoint(study: Writer) -> None:
    state = update(study)
    (recorded,) = study.updates()
    assert (recorded.number, recorded.version, recorded.trials) == (0, 1, (0, 1, 2, 3))
    assert study.checkpoint().state == state
    numbers = finish(study, 4)[::-1]
    made = study.apply(numbers, 2, {"loss": 1 / 3, "ratio": math.inf}, b"")
    assert made.trials == tuple(numbers)  # the order is kept: sums of floats depend on it
    assert made.metrics["loss"] == 1 / 3
    assert math.isnan(made.metrics["ratio"])
    assert [u.number for u in study.updates()] == [0, 1]
    assert [u.number for u in study.updates(first=1)] == [1]
    assert [u.number for u in study.updates(stop=1)] == [0]
    assert study.checkpoint().state == b""


def test_the_last_two_checkpoints_and_every_64th_are_kept(study: Writer) -> None:
    kept = []
    for version in range(1, 132):
        with study.transaction():
            update(study)
        if version in (1, 2, 3, 63, 64, 65, 66, 67, 127, 128, 131):
            with study._reading() as connection:
                rows = connection.execute(text("SELECT version FROM autodropout_checkpoint ORDER BY version"))
                kept.append((version, rows.scalars().all()))
    assert kept == [
        (1, [1]), (2, [1, 2]), (3, [2, 3]), (63, [62, 63]), (64, [63, 64]), (65, [64, 65]), (66, [64, 65, 66]),
        (67, [64, 66, 67]), (127, [64, 126, 127]), (128, [64, 127, 128]), (131, [64, 128, 130, 131]),
    ]  # fmt: skip
    assert len(list(study.batches(after=130))) == 1
    assert len(list(study.batches())) == 131


def damage(study: Writer, version: int) -> None:
    with study.transaction():
        study._connection.execute(
            text("UPDATE autodropout_checkpoint SET state = :state WHERE version = :version"),
            {"state": b"damaged", "version": version},
        )


def test_a_damaged_checkpoint_is_skipped_said_and_made_good_by_replay(study: Writer) -> None:
    states = [b""]
    for _ in range(3):
        states.append(update(study, states[-1]))
    assert (study.checkpoint().version, study.checkpoint().damaged) == (3, ())
    damage(study, 3)
    found = study.checkpoint()
    assert (found.version, found.state, found.damaged) == (2, states[2], (3,))
    assert replayed(study, found.state, after=found.version) == states[3]
    damage(study, 2)
    found = study.checkpoint()
    assert (found.version, found.state, found.damaged) == (0, None, (3, 2))
    assert replayed(study) == states[3]


def test_queries(study: Writer) -> None:
    update(study)  # 0..3 APPLIED
    finish(study, 4)  # 4..7 FINISHED
    study.propose(proposals(3))
    study.start([9])
    numbers = lambda **query: [trial.number for trial in study.trials(**query)]  # noqa: E731
    assert numbers() == list(range(11))
    assert numbers(states={State.WAITING}) == [8, 10]
    assert numbers(states=[State.WAITING, State.RUNNING]) == [8, 9, 10]
    assert numbers(first=3, stop=6) == [3, 4, 5]
    assert numbers(states={State.FINISHED}, limit=2) == [4, 5]
    assert numbers(first=20) == []
    assert study.counts() == {
        State.WAITING: 2, State.RUNNING: 1, State.FINISHED: 4, State.APPLIED: 4, State.STOPPED: 0, State.FAILED: 0,
    }  # fmt: skip
    table = study.columns(["value", "number", "state", "tokens", "started"], states={State.APPLIED}, first=1)
    trials = study.trials({State.APPLIED}, first=1)
    assert table == {name: [getattr(trial, name) for trial in trials] for name in table}
    assert list(table) == ["value", "number", "state", "tokens", "started"]
    assert study.columns(["number", "curve"], first=20) == {"number": [], "curve": []}


def test_the_best_is_a_score_of_its_own(study: Writer) -> None:
    assert study.best() is None
    study.propose(proposals(8))
    study.start(range(8))
    study.finish(0, 0.0, failure=Failure(FailureKind.DIVERGED, ""))
    assert study.best() is None
    study.stop(1, 0.99)
    study.fail(2, CRASH)
    study.finish(3, -0.7)
    study.finish(4, -0.5)
    study.finish(5, -0.5)
    assert [trial.number for trial in study.top(10)] == [4, 5, 3]
    study.apply([1, 3, 4, 0], 1, {}, b"")
    assert [trial.number for trial in study.top(2)] == [4, 5]
    assert study.best() == study.trial(4)


def test_the_rate_is_that_of_the_last_ten_minutes_at_work(study: Writer) -> None:
    def at(*times: tuple[float, float]) -> float | None:
        """With trials that started and finished at these seconds."""
        for number in finish(study, len(times) - sum(study.counts().values())):
            assert number < len(times)
        with study.transaction():
            for number, (started, finished) in enumerate(times):
                values = {"started": started, "finished": finished}
                study._connection.execute(schema.trial.update().where(schema.trial.c.number == number), values)
        return study.per_minute()

    assert study.per_minute() is None
    assert at((5.0, 5.0)) is None
    assert at((0.0, 30.0), (0.0, 60.0)) == pytest.approx(2.0)
    since = [86_400.0 + 60 * minute for minute in range(20)]  # after a day without work
    assert at((0.0, 1.0), *((start, start + 60) for start in since)) == pytest.approx(11 / 10)  # both ends count
    study.propose(proposals(1))
    study.start([21])
    study.fail(21, CRASH)
    assert study.per_minute() == pytest.approx(11 / 10), "one that failed is none of them"


def test_batches_are_what_the_proposer_saw(study: Writer) -> None:
    state = b""
    for _ in range(3):
        state = update(study, state, finish(study, MINIBATCH)[::-1])
    seen = list(study.batches())
    assert [u.version for u, _ in seen] == [1, 2, 3]
    assert [scored.number for _, batch in seen for scored in batch] == [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8]
    assert all(scored.value == value(scored.number) for _, batch in seen for scored in batch)
    assert replayed(study) == state
    assert learned(b"", seen[0][1]) != learned(b"", seen[0][1][::-1])  # the test's proposer tells orders apart


def test_calls_in_one_transaction_are_kept_together(ledger: Ledger, study: Writer) -> None:
    with study.transaction():
        update(study)
        assert study.counts()[State.APPLIED] == 4  # the driver sees it, nobody else does
        assert ledger.read("mine").counts()[State.APPLIED] == 0
    assert ledger.read("mine").counts()[State.APPLIED] == 4
    with suppress(ZeroDivisionError), study.transaction():
        update(study)
        raise ZeroDivisionError
    assert [len(study.trials()), len(study.updates())] == [4, 1]
    with study.transaction():
        study.propose(proposals(1))
        with suppress(StateError), study.transaction():
            study.start([4])
            study.start([4])
        assert study.trial(4).state is State.WAITING  # the inner one is undone alone
    assert study.trial(4).state is State.WAITING


def test_nothing_is_kept_of_a_transaction_in_which_the_database_failed(study: Writer) -> None:
    def fail() -> None:
        with pytest.raises(LedgerError, match="nowhere"), study._reading() as connection:
            connection.execute(text("SELECT 1 FROM nowhere"))

    def failing_last() -> None:
        with study.transaction():
            study.propose(proposals(2))
            fail()

    def failing_first() -> None:
        with study.transaction():
            fail()
            study.propose(proposals(2))

    with pytest.raises(LedgerError, match="nothing of it was kept"):
        failing_last()
    with pytest.raises(LedgerError, match="nothing of it will be kept"):
        failing_first()
    assert study.trials() == []
    study.propose(proposals(2))
    assert len(study.trials()) == 2


def test_many_trials_in_one_call(study: Writer) -> None:
    numbers = [trial.number for trial in study.propose(proposals(2500))]
    study.start(numbers)
    assert all(study.record([Outcome(number, State.FINISHED, value(number)) for number in numbers]))
    assert study.counts()[State.FINISHED] == 2500
    assert [trial.value for trial in study.trials()] == [value(number) for number in numbers]


def test_a_reader_neither_waits_for_a_write_nor_stops_one(ledger: Ledger, study: Writer) -> None:
    finish(study, 4)
    reader = ledger.read("mine")
    with study.transaction():
        update(study, numbers=[0, 1, 2, 3])
        assert reader.counts()[State.FINISHED] == 4  # while the write transaction is open
        assert reader.owner() is not None
    with reader._reading() as connection:
        before = connection.execute(text("SELECT count(*) FROM autodropout_trial")).scalar()
        update(study)  # while a read transaction is open
        assert connection.execute(text("SELECT count(*) FROM autodropout_trial")).scalar() == before
    assert reader.counts()[State.APPLIED] == 8


def test_a_reader_cannot_write(ledger: Ledger, study: Writer) -> None:
    with pytest.raises(LedgerError, match=r"read-?only"), ledger.read("mine")._reading() as connection:
        connection.execute(text("DELETE FROM autodropout_lease"))
    study.heartbeat()
