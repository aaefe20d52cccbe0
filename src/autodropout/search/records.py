"""What a ledger records, as frozen values: a study, its trials, its updates, its checkpoints, its owner.

Scores are maximized, always. Times are UTC.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from autodropout.search.protocols import Scored
from autodropout.search.states import OUTCOMES, FailureKind, State
from autodropout.spaces import Policy, Provenance, Space, software_versions

Curve = tuple[tuple[int, float], ...]
"""What a child reported while it trained: (step, value) pairs."""

MAX_NAME = 200
MAX_SEED = 2**63 - 1

GREATEST_SCORE = 1e100
"""A child whose score lies beyond it, on either side of 0, has diverged: who learns from scores squares them."""


def check_name(name: str) -> None:
    """Raise ValueError where a study cannot be called so."""
    is_text = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not is_text or not 0 < len(name) <= MAX_NAME:
        raise ValueError(
            f"a study's name has 1 to {MAX_NAME} printable characters and no space around it, got {name!r}"
        )


@dataclass(frozen=True, slots=True)
class StudyInfo:
    """A study. All but `capacity` and `attributes` is fixed for its life; of the latter the `drop_rate`, once known."""

    name: str
    space: Space
    proposer: str
    seed: int
    capacity: int  # C: trials proposed and not yet finished
    minibatch: int  # M: finished trials in one update
    floor: float  # the score of a child that diverged
    created: datetime | None = None  # None: not in a ledger yet
    versions: Mapping[str, str] = field(default_factory=software_versions)
    attributes: Mapping[str, Any] = field(default_factory=dict)  # what else to know about it, as JSON data

    def __post_init__(self) -> None:
        check_name(self.name)
        if type(self.seed) is not int or not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"a study's seed is an integer in 0..2^63-1, got {self.seed!r}")
        for what, number in (("capacity", self.capacity), ("minibatch", self.minibatch)):
            if type(number) is not int or number < 1:
                raise ValueError(f"{what} must be a positive integer, got {number!r}")
        if not isinstance(self.floor, int | float) or not math.isfinite(self.floor):
            raise ValueError(f"the floor must be a finite number, got {self.floor!r}")
        if self.created is None and abs(self.floor) > GREATEST_SCORE:  # a ledger may have one from before
            raise ValueError(f"the floor must lie in -{GREATEST_SCORE:g}..{GREATEST_SCORE:g}, got {self.floor!r}")
        try:
            json.dumps(dict(self.attributes), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"a study's attributes must be JSON data, got {self.attributes!r}: {error}") from None

    @property
    def drop_rate(self) -> float | None:
        """At which its children put policies on their models, where whoever began it has said so in the attributes."""
        known = self.attributes.get("drop_rate")  # who made the study may have used the name for something else
        is_rate = isinstance(known, int | float) and not isinstance(known, bool) and 0 <= known <= 1
        return known if is_rate else None

    def policy(self, trial: "Trial") -> Policy:
        """The policy that a trial of this study tried. Its provenance has the score, where the trial has its own."""
        provenance = Provenance(
            space=self.space.describe(),
            study=self.name,
            trial=trial.number,
            score=None if trial.stopped or trial.failure is not None else trial.value,
            rate=self.drop_rate,
            date=None if trial.finished is None else trial.finished.strftime("%Y-%m-%dT%H:%M:%SZ"),
            software=dict(self.versions),
        )
        return self.space.decode(trial.tokens, provenance)

    def differences(self, other: "StudyInfo") -> list[str]:
        """What keeps `other` from being the same study, in words: ours first."""
        found = [
            f"{what} {ours!r}, not {theirs!r}"
            for what, ours, theirs in (
                ("proposer", self.proposer, other.proposer),
                ("seed", self.seed, other.seed),
                ("minibatch", self.minibatch, other.minibatch),
                ("floor", float(self.floor), float(other.floor)),
            )
            if ours != theirs
        ]
        if self.space != other.space:
            ours, theirs = self.space.describe(), other.space.describe()
            found.insert(0, f"the {ours}, not the {theirs}")
        rates = self.drop_rate, other.drop_rate
        if None not in rates and rates[0] != rates[1]:  # scores at two rates are not of one kind
            found.append(f"rate {rates[0]}, not {rates[1]}")
        return found


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a child gave no score of its own."""

    kind: FailureKind
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """One policy, one child, one seed, one result."""

    number: int  # in its study, from 0 without gaps
    state: State
    tokens: tuple[int, ...]
    log_prob: float | None  # of the tokens under the proposer that wrote them
    version: int  # how many updates that proposer had seen
    seed: int  # the child's
    attempts: int = 0  # how often it was started
    value: float | None = None  # finite, higher is better
    curve: Curve = ()
    stopped: bool = False  # it was ended early, also once it is APPLIED
    failure: Failure | None = None  # of the last attempt; with a value only when it diverged
    update: int | None = None  # the update it was applied in
    worker: str | None = None
    started: datetime | None = None  # the last attempt
    finished: datetime | None = None

    def scored(self) -> Scored:
        """The trial as a proposer sees it."""
        assert self.value is not None, f"trial {self.number} is {self.state.name} and has no value"
        return Scored(self.number, self.tokens, self.log_prob, self.version, self.value)


@dataclass(frozen=True, slots=True)
class Ended:
    """The trials that a proposer learns from, and `trials=` counts; only the first have a score of their own."""

    scored: int
    stopped: int  # early
    diverged: int

    @property
    def total(self) -> int:
        return self.scored + self.stopped + self.diverged

    def __str__(self) -> str:
        others = ((self.stopped, "stopped early"), (self.diverged, "diverged"))
        return ", ".join([f"{self.scored:,} scored", *(f"{count:,} {what}" for count, what in others if count)])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a running trial."""

    number: int
    state: State  # FINISHED, STOPPED or FAILED
    value: float | None = None
    curve: Curve = ()
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if self.state not in OUTCOMES:
            raise ValueError(f"trial {self.number}: {self.state.name} is not an outcome")
        if self.state is State.FAILED:
            if self.value is not None or self.failure is None:
                raise ValueError(f"trial {self.number}: a failed trial has a failure and no value, got {self.value!r}")
        elif isinstance(self.value, bool) or not isinstance(self.value, int | float) or not math.isfinite(self.value):
            raise ValueError(f"trial {self.number}: a score must be a finite number, got {self.value!r}")


@dataclass(frozen=True, slots=True)
class Update:
    """One learning step of the proposer: from exactly M trials, in this order."""

    number: int  # in its study, from 0 without gaps
    version: int  # how many updates the proposer has seen with this one: number + 1
    trials: tuple[int, ...]
    metrics: Mapping[str, float]  # what was not finite reads as NaN
    finished: datetime


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest proposer that can be loaded. Where `damaged` names newer ones, replay `batches(after=version)`."""

    version: int  # 0: none was stored, or none is intact; start with a fresh proposer
    state: bytes | None = field(repr=False)
    damaged: tuple[int, ...] = ()  # the versions of newer checkpoints whose bytes are not those that were stored


@dataclass(frozen=True, slots=True)
class Owner:
    """Who drives a study."""

    host: str
    pid: int
    since: datetime
    expires: datetime
    token: int  # grows with every change of owner

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since:%Y-%m-%d %H:%M:%S} UTC"


def trial_seed(study_seed: int, number: int) -> int:
    """The seed of a trial's child, in 0..2^31-1: torch, numpy and random all take it."""
    text = f"autodropout trial 1, study seed {study_seed}, number {number}"
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:4], "big") >> 1
