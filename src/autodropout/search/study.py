"""A study in a ledger, as its user reads it: `ad.Study`, its trials and their policies."""

import weakref
from dataclasses import dataclass

from autodropout.search.ledger import Ledger
from autodropout.search.reading import Reader
from autodropout.search.records import Failure, StudyInfo, Trial
from autodropout.search.states import PENDING, SCORED, WORDS, State
from autodropout.spaces import Policy


@dataclass(frozen=True, slots=True)
class StudyTrial:
    """A trial of a study, with its policy."""

    record: Trial
    study: StudyInfo

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def value(self) -> float | None:
        """Its score; None while it has none, and where it diverged: `record.value` is then the study's floor."""
        return None if self.failure is not None else self.record.value

    @property
    def stopped(self) -> bool:
        """Whether it was ended early: its value is then what the study credits it with, and it is never the best."""
        return self.record.stopped

    @property
    def failure(self) -> Failure | None:
        """Why it has no score of its own, where something went wrong."""
        return self.record.failure

    @property
    def policy(self) -> Policy:
        """The policy it tried, with its provenance."""
        return self.study.policy(self.record)

    def __repr__(self) -> str:
        if self.value is not None:
            said = f"stopped early, credited with {self.value:.6g}" if self.stopped else f"score {self.value:.6g}"
        elif self.record.state in SCORED:
            said = "diverged"
        else:
            said = WORDS[self.record.state]
            said += "" if self.failure is None else f", last attempt: {self.failure.kind.value}"
        return f"StudyTrial({self.number}: {said})"


def unscored(study: Reader) -> ValueError:
    """What to tell who asks for the best of a study that has none."""
    ended = sum(count for state, count in study.counts().items() if state in SCORED)
    why = f"; diverged or stopped early: {ended}" if ended else ""
    return ValueError(f"study {study.info.name!r} has no scored trial yet{why}")


class Study:
    """A study in a ledger, to be read; also while somebody drives it."""

    def __init__(self, storage: str, name: str) -> None:
        ledger = Ledger(storage)
        weakref.finalize(self, ledger.close)  # before reading, which raises where there is no such study
        self._reader: Reader = ledger.read(name)
        self._storage = storage

    @property
    def name(self) -> str:
        return self._reader.info.name

    @property
    def info(self) -> StudyInfo:
        return self._reader.info

    @property
    def storage(self) -> str:
        """The ledger's URL, as it was given: with its password."""
        return self._storage

    @property
    def reader(self) -> Reader:
        """The ledger's view of it: counts, updates, columns of trials."""
        return self._reader

    @property
    def best(self) -> StudyTrial:
        """The trial with the highest score of its own. Where no dropout was best, its policy drops nothing."""
        found = self._reader.best()
        if found is None:
            raise unscored(self._reader)
        return StudyTrial(found, self.info)

    def top(self, count: int) -> list[StudyTrial]:
        """The trials with the highest scores, of which no two have policies that do the same, and none drops nothing.

        A score is of one seed, and the best of many are partly luck: `ad.confirm` trains these again, with other seeds.
        """
        return [StudyTrial(trial, self.info) for trial in self._reader.distinct(count)]

    @property
    def trials(self) -> list[StudyTrial]:
        return [StudyTrial(trial, self.info) for trial in self._reader.trials()]

    def __repr__(self) -> str:
        counts, ended, best = self._reader.counts(), self._reader.ended(), self._reader.best()
        pending = sum(counts[state] for state in PENDING)
        mixed = f" ({ended})" if ended.scored < ended.total else ""
        parts = (
            f"{ended.total} trial{'' if ended.total == 1 else 's'} ended{mixed}",
            f"{pending} not yet" if pending else "",
            f"{counts[State.FAILED]} failed" if counts[State.FAILED] else "",
            "" if best is None else f"best {best.value:.6g}" + self._of_nothing(best),
        )
        return f"Study({self.name!r}: {', '.join(filter(None, parts))})"

    def _of_nothing(self, best: Trial) -> str:
        return ", which drops nothing" if self.info.policy(best).drops_nothing else ""
