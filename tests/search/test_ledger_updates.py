"""What a ledger promises of updates, queries and transactions, on every database."""

import math
from contextlib import suppress

import pytest
from ledger_tools import CRASH, MINIBATCH, finish, learned, proposals, replayed, update, value
from sqlalchemy import text

from autodropout.search import schema
from autodropout.search.errors import LedgerError, StateError
from autodropout.search.ledger import Ledger
from autodropout.search.records import Failure, Outcome
from autodropout.search.states import FailureKind, State
from autodropout.search.writing import Writer


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
