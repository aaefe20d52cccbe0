"""A trial as a table of trials has it, and the journal that a study fills while it runs: one JSON object a line.

    journal = Journal(Path("results/ptb/search.jsonl"), space)     # what is in it already is read
    journal.describe("small", config)                              # a training, under a name
    journal.add([Entry(trial)])                                    # on the disk when it returns
    journal.note({"machine": "NVIDIA H200"})                       # what else to know of how it was made

A ledger (`autodropout.search`) has one driver and many workers; a study that trains a whole crowd of children in one
process, in pieces carried from machine to machine, needs only a file that can be appended to. A line that was cut, as a
process that is killed leaves it, is dropped when the journal is opened again. A journal has one writer: what another
has appended meanwhile is never overwritten, the append is refused.

The score on the test set stands beside a trial, in its `Entry`, and not inside it: who looks at trials does not see it.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autodropout.search.records import Curve
from autodropout.search.states import PENDING
from autodropout.spaces import ConvSpace, Space, TransformerSpace, space_from_dict
from autodropout.spaces.records import show

try:
    import fcntl
except ImportError:  # not a POSIX system: there only the file's size tells of another writer
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from autodropout.search.reading import Reader  # which needs a database: journals do without


Key = tuple[str, str, int, int, str, int, float]
"""Phase, method, number, seed, training, steps and rate: what no two trials of a study share."""


class TableError(ValueError):
    """A table or a journal that cannot be read, or does not hold what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTrial:
    """One policy, trained once."""

    phase: str  # of its study: "proxy", "search", ...
    method: str  # who chose the policy: "none", "dropout", "random", "controller", ...
    number: int  # within phase and method, from 0, in the order in which they were proposed
    tokens: tuple[int, ...]
    rate: float
    seed: int
    training: str  # the name under which the table describes it
    steps: int  # that it was to be trained for
    value: float | None  # on validation data, higher is better; None where there is a failure
    curve: Curve = ()  # (step, value) pairs
    seconds: float = 0.0  # wall time: its share of that of the job it was trained in
    together: int = 1  # children in that job
    stopped: bool = False  # early: `value` is what its study credited it with
    failure: str | None = None
    log_prob: float | None = None  # of the tokens under the proposer that wrote them
    version: int = 0  # how many updates that proposer had seen

    def __post_init__(self) -> None:
        said = f"{self.phase} {self.method} {self.number}"
        if not (self.phase and self.method and self.training):
            raise ValueError(f"a trial has a phase, a method and a training, got {said!r} and {self.training!r}")
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"trial {said}: rate must lie in [0, 1], got {self.rate}")
        if self.steps < 1 or self.number < 0 or self.together < 1 or not self.seconds >= 0:
            raise ValueError(
                f"trial {said}: steps and together must be positive, number and seconds not negative, got "
                f"{self.steps}, {self.together}, {self.number}, {self.seconds}"
            )
        if (self.value is None) != (self.failure is not None):
            raise ValueError(f"trial {said}: it has a value or a failure, got {self.value!r} and {self.failure!r}")
        if not all(math.isfinite(value) for value in (self.value or 0.0, *(value for _, value in self.curve))):
            raise ValueError(f"trial {said}: its scores must be finite, got {self.value!r} and {self.curve!r}")

    @property
    def key(self) -> Key:
        return self.phase, self.method, self.number, self.seed, self.training, self.steps, self.rate


class Entry(NamedTuple):
    """A trial, and its score on the test set where it was judged by that."""

    trial: TableTrial
    test: float | None = None


NAMES = tuple(field.name for field in fields(TableTrial))


def to_dict(entry: Entry) -> dict[str, Any]:
    """As JSON data; only what is not a default is written."""
    defaults = {field.name: field.default for field in fields(TableTrial)}
    data = {name: value for name, value in asdict(entry.trial).items() if value != defaults[name]}
    return data if entry.test is None else data | {"test": entry.test}


def from_dict(data: Mapping[str, Any], source: str) -> Entry:
    """The entry that `to_dict` wrote; `source` names the place in error messages."""
    given = dict(data)
    test = given.pop("test", None)
    if unknown := sorted(set(given) - set(NAMES)):
        raise TableError(f"{source}: a trial has no {', '.join(unknown)}")
    try:
        given["tokens"] = tuple(given["tokens"])
        given["curve"] = tuple((int(step), float(value)) for step, value in given.get("curve", ()))
        return Entry(TableTrial(**given), test)
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(f"{source}: {error}") from None


def from_ledger(
    study: "Reader", *, phase: str, training: str, steps: int, rate: float, together: int = 1
) -> list[Entry]:
    """The trials of a ledger's study that have ended. The floor that a diverged child scored is not its value.

    `together` is how many trials a job of that search carried, its `job`: a ledger knows how long the job of each trial
    took, and not which trials shared it. Where a job was not full, as the last may be, and as a second attempt's is
    one trial alone, a share is more than is said.
    """
    if together < 1:
        raise ValueError(f"a job carries at least one trial, got together={together}")
    method, found = study.info.proposer, []
    for trial in study.trials():
        if trial.state in PENDING:  # one that waits for its next attempt still has the failure of its last
            continue
        failure = None if trial.failure is None else f"{trial.failure.kind.value}: {trial.failure.message}"
        seconds = 0.0
        if trial.started is not None and trial.finished is not None:
            seconds = (trial.finished - trial.started).total_seconds() / together
        found.append(
            Entry(
                TableTrial(
                    phase=phase,
                    method=method,
                    number=trial.number,
                    tokens=trial.tokens,
                    rate=rate,
                    seed=trial.seed,
                    training=training,
                    steps=steps,
                    value=trial.value if failure is None else None,
                    curve=trial.curve,
                    seconds=seconds,
                    together=together,
                    stopped=trial.stopped,
                    failure=failure,
                    log_prob=trial.log_prob,
                    version=trial.version,
                )
            )
        )
    return found


class Journal:
    """The entries of a study so far, and the file that keeps them."""

    def __init__(self, path: Path, space: Space | None = None) -> None:
        """Open the journal, or begin it; a new one needs the space that its tokens are of."""
        self.path = path
        self.entries: list[Entry] = []
        self.trainings: dict[str, Mapping[str, Any]] = {}
        self.notes: list[Mapping[str, Any]] = []
        self._size = 0  # bytes of the file, as this process knows it
        self._whole = 0  # of these the whole lines; what comes after them was cut
        found = self._read() if path.exists() else None
        if found is None and space is None:
            raise TableError(f"{path}: there is no journal, and a new one needs a space")
        if found is not None and space is not None and found != space:
            raise TableError(f"{path} is of a {found.describe()}, not of a {space.describe()}")
        self.space: Space = found if found is not None else space  # type: ignore[assignment]
        if found is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append([{"space": self.space.to_dict()}])

    @property
    def keys(self) -> set[Key]:
        """Of all its trials, to find out which are still to be trained."""
        return {entry.trial.key for entry in self.entries}

    def describe(self, name: str, config: Mapping[str, Any]) -> None:
        """Say what trials of the training `name` are; another config under a name that is known is refused."""
        plain = json.loads(json.dumps(config, allow_nan=False))
        if name in self.trainings:
            if self.trainings[name] != plain:
                known, missing = self.trainings[name], object()
                keys = {**known, **plain}
                differing = [key for key in keys if known.get(key, missing) != plain.get(key, missing)]
                raise TableError(f"{self.path}: the training {name!r} has another {', '.join(differing)} there")
            return
        self._append([{"training": name, "config": plain}])
        self.trainings[name] = plain

    def add(self, entries: Sequence[Entry]) -> None:
        """Keep entries: all of them are on the disk when this returns."""
        check_entries(entries, self.space, self.trainings, str(self.path))
        if repeated := self.keys & {entry.trial.key for entry in entries}:
            raise ValueError(f"{self.path} has the trial {min(repeated)} already")
        times = Counter(entry.trial.key for entry in entries)
        if repeated := {key for key, number in times.items() if number > 1}:
            raise ValueError(f"{self.path} is to have the trial {min(repeated)} {times[min(repeated)]} times")
        self._append([to_dict(entry) for entry in entries])
        self.entries.extend(entries)

    def note(self, facts: Mapping[str, Any]) -> None:
        """Keep what is true of the trials that follow: machine, versions, cost of making ready. JSON data."""
        plain = json.loads(json.dumps(facts, allow_nan=False))
        self._append([{"note": plain}])
        self.notes.append(plain)

    def _append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """All of the lines, or after an error none of them. Raises where the file is not as this process left it."""
        content = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
        with self.path.open("ab", buffering=0) as file:  # a buffer would be written again on closing
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file.fileno()).st_size
            if size != self._size:
                raise TableError(
                    f"{self.path} has {size:,} bytes, not the {self._size:,} it had here: another process has written "
                    "to it, and nothing was added. Open the journal again, and let one process write at a time"
                )
            try:
                if self._whole < size:  # not before: who only reads changes nothing
                    file.truncate(self._whole)
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except BaseException:
                self._size = self._whole
                file.truncate(self._whole)
                raise
        self._size = self._whole = self._whole + len(content)

    def _read(self) -> ConvSpace | TransformerSpace | None:
        """Takes up what the file holds; the space, where there is one."""
        content = self.path.read_bytes()
        self._size, self._whole = len(content), content.rfind(b"\n") + 1
        space = None
        for number, line in enumerate(content[: self._whole].splitlines(), start=1):
            source = f"{self.path}, line {number}"
            try:
                data = json.loads(line)
            except ValueError as error:
                raise TableError(f"{source}: not JSON: {error}") from None
            if not isinstance(data, dict):
                raise TableError(f"{source}: not an object")
            if "space" in data:
                try:
                    space = space_from_dict(data["space"])
                except (ValueError, AttributeError) as error:  # the second where it is no object
                    raise TableError(f"{source}: not a space: {error}") from None
            elif "config" in data:
                if not isinstance(data.get("training"), str) or not isinstance(data["config"], dict):
                    raise TableError(f"{source}: a training has a name and a config, got {show(data)}")
                self.trainings[data["training"]] = data["config"]
            elif "note" in data:
                self.notes.append(data["note"])
            elif space is None:
                raise TableError(f"{source}: a trial before the space it is of")
            else:
                entry = from_dict(data, source)
                check_entries([entry], space, self.trainings, source)
                self.entries.append(entry)
        return space


def check_entries(
    entries: Sequence[Entry], space: Space, trainings: Mapping[str, Mapping[str, Any]], source: str
) -> None:
    """That every trial has tokens of the space and a training that is described."""
    choices = [range(len(token.values)) for token in space.tokens]
    for trial, test in entries:
        if trial.training not in trainings:
            raise TableError(f"{source}: nothing describes the training {trial.training!r}")
        if test is not None and not math.isfinite(test):
            raise TableError(f"{source}: a score on the test set must be finite, got {test}")
        fits = len(trial.tokens) == len(choices)
        if not fits or any(index not in allowed for index, allowed in zip(trial.tokens, choices, strict=True)):
            raise TableError(f"{source}: the tokens {show(trial.tokens)} are not of a {space.describe()}")
