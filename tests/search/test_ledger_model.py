"""Random calls, legal or not, against a ledger and against a dictionary: both must say and hold the same."""

from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from ledger_tools import MINIBATCH, info, learned, proposals, replayed

from autodropout.search.errors import StateError
from autodropout.search.ledger import Ledger
from autodropout.search.records import Failure, Outcome
from autodropout.search.states import FailureKind, State

CRASH = Failure(FailureKind.CRASH, "died")
numbers = st.integers(0, 9)
lists = st.lists(numbers, max_size=5)
outcomes = st.one_of(
    st.builds(Outcome, numbers, st.sampled_from([State.FINISHED, State.STOPPED]), st.floats(-1, 1)),
    st.builds(lambda number: Outcome(number, State.FAILED, None, (), CRASH), numbers),
)


@dataclass
class Model:
    """A trial, as simple as it gets."""

    state: State = State.WAITING
    attempts: int = 0
    value: float | None = None
    update: int | None = None


class Machine(RuleBasedStateMachine):
    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__()
        self.ledger = ledger
        self.info = info(name)
        self.study = ledger.drive(self.info)
        self.trials: list[Model] = []
        self.updates: list[tuple[int, ...]] = []
        self.state = b""

    def allowed(self, chosen: list[int], *states: State) -> bool:
        known = all(number < len(self.trials) for number in chosen)
        return known and len(set(chosen)) == len(chosen) and all(self.trials[n].state in states for n in chosen)

    @rule(count=st.integers(0, 4))
    def propose(self, count: int) -> None:
        made = self.study.propose(proposals(count))
        assert [trial.number for trial in made] == list(range(len(self.trials), len(self.trials) + count))
        self.trials += [Model() for _ in range(count)]

    @rule(chosen=lists)
    def start(self, chosen: list[int]) -> None:
        if not self.allowed(chosen, State.WAITING):
            with pytest.raises(StateError):
                self.study.start(chosen)
            return
        self.study.start(chosen)
        for number in chosen:
            self.trials[number].state = State.RUNNING
            self.trials[number].attempts += 1

    @rule()
    def start_all(self) -> None:
        """Or few walks would get far."""
        self.start([number for number, trial in enumerate(self.trials) if trial.state is State.WAITING])

    @rule(answers=st.lists(outcomes, max_size=5))
    def record(self, answers: list[Outcome]) -> None:
        unknown = any(answer.number >= len(self.trials) for answer in answers)
        fresh = (State.WAITING, 0)
        if unknown or any(
            (self.trials[answer.number].state, self.trials[answer.number].attempts) == fresh for answer in answers
        ):
            with pytest.raises(StateError):
                self.study.record(answers)
            return
        counted = []
        for answer in answers:
            trial = self.trials[answer.number]
            counted.append(trial.state is State.RUNNING)
            if counted[-1]:
                trial.state, trial.value = answer.state, answer.value
        assert self.study.record(answers) == counted

    @rule(score=st.floats(-1, 1))
    def finish_all(self, score: float) -> None:
        self.record([Outcome(n, State.FINISHED, score) for n, t in enumerate(self.trials) if t.state is State.RUNNING])

    @rule(chosen=lists, limit=st.integers(1, 3))
    def requeue(self, chosen: list[int], limit: int) -> None:
        if not self.allowed(chosen, State.RUNNING):
            with pytest.raises(StateError):
                self.study.requeue(chosen, limit)
            return
        waiting, failed = self.study.requeue(chosen, limit)
        assert sorted(waiting + failed) == sorted(chosen)
        for number in chosen:
            again = self.trials[number].attempts < limit
            assert number in (waiting if again else failed)
            self.trials[number].state = State.WAITING if again else State.FAILED

    @rule(chosen=st.lists(numbers, min_size=MINIBATCH, max_size=MINIBATCH))
    def apply(self, chosen: list[int]) -> None:
        version = len(self.updates) + 1
        if not self.allowed(chosen, State.FINISHED, State.STOPPED):
            with pytest.raises(StateError):
                self.study.apply(chosen, version, {}, b"never")
            return
        self.state = learned(self.state, [self.study.trial(number).scored() for number in chosen])
        self.study.apply(chosen, version, {}, self.state)
        for number in chosen:
            self.trials[number].state, self.trials[number].update = State.APPLIED, version - 1
        self.updates.append(tuple(chosen))

    @rule(order=st.randoms(use_true_random=False))
    def apply_ready(self, order) -> None:
        ready = [n for n, trial in enumerate(self.trials) if trial.state in (State.FINISHED, State.STOPPED)]
        order.shuffle(ready)
        if len(ready) >= MINIBATCH:
            self.apply(ready[:MINIBATCH])

    @rule()
    def undo(self) -> None:
        waiting = [number for number, trial in enumerate(self.trials) if trial.state is State.WAITING]
        with suppress(ZeroDivisionError), self.study.transaction():
            self.study.start(waiting)
            self.study.propose(proposals(2))
            raise ZeroDivisionError

    @rule()
    def reopen(self) -> None:
        self.study.close()
        self.study = self.ledger.drive(self.info)

    @invariant()
    def same(self) -> None:
        found = [Model(t.state, t.attempts, t.value, t.update) for t in self.study.trials()]
        assert found == self.trials

    def teardown(self) -> None:
        assert [update.trials for update in self.study.updates()] == self.updates
        assert (self.study.checkpoint().state or b"") == self.state == replayed(self.study)
        assert self.study.counts() == {state: sum(t.state is state for t in self.trials) for state in State}
        self.study.close()


@pytest.mark.parametrize("examples", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_random_walks(ledger: Ledger, examples: int) -> None:
    walks = iter(range(10**9))
    run_state_machine_as_test(
        lambda: Machine(ledger, f"walk {next(walks)}"),
        settings=settings(
            max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
