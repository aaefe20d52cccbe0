"""`ad.table("ptb-txl")`: every trial of a study that was run, to be asked instead of run again.

    table = ad.table("ptb-txl")                             # or a file's path
    print(table)                                            # what is in it
    trials = table.trials(steps=2_000, method="random")     # scores on validation data
    table.policy(trials[0])
    table.test(steps=8_000)                                 # those on the test set, for those who ask

A score means nothing without the training that gave it: every query names a number of steps, and the training too where
several of that length are in the table. Scores on the test set are given by `test` alone, so that nobody chooses by
them unawares. Of a trial of 8,000 steps the curve at step 2,000 is no score of a training of 2,000: its learning rate
had not fallen yet.
"""

import importlib.resources
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, SupportsIndex

from autodropout.spaces import ConvSpace, Policy, TransformerSpace, canonical, space_from_dict
from autodropout.spaces.atomic import write_atomically
from autodropout.tables.parquet import pack, unpack
from autodropout.tables.trials import Entry, Journal, TableError, TableTrial, check_entries

SUFFIX = ".parquet"
NAMED = 4  # methods in a line of a printed table


def table(path_or_name: str | os.PathLike[str]) -> "Table":
    """The table in a file or, for a string with neither a separator nor `.parquet`, the bundled one of that name."""
    if not isinstance(path_or_name, str | os.PathLike):
        raise TableError(f"a table is found by its name or a file's path, got {path_or_name!r}")
    text = os.fspath(path_or_name)
    if text.endswith(SUFFIX) or any(separator in text for separator in {"/", os.sep, os.altsep} if separator):
        return Table.read(text)
    folder: Traversable = importlib.resources.files("autodropout.tables")
    bundled = {entry.name.removesuffix(SUFFIX): entry for entry in folder.iterdir() if entry.name.endswith(SUFFIX)}
    if text not in bundled:
        names = ", ".join(sorted(bundled)) or "there are none yet"
        raise TableError(f"no bundled table has the name {text!r} ({names}); for a file, write ./{text}{SUFFIX}")
    return Table.unpacked(bundled[text].read_bytes(), text)


class Table:
    """The trials of a study, in the order in which they were made."""

    def __init__(
        self,
        name: str,
        space: ConvSpace | TransformerSpace,
        trainings: Mapping[str, Mapping[str, Any]],
        entries: Sequence[Entry],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """`trainings` describes each training by its name, as JSON data; `facts` is what else to know."""
        check_entries(entries, space, trainings, f"table {name!r}")
        for key, times in Counter(entry.trial.key for entry in entries).items():
            if times > 1:
                raise TableError(f"table {name!r}: the trial {key} stands there {times} times")
        self.name = name
        self.space = space
        self.trainings = dict(trainings)
        self.facts = dict(facts or {})
        self._entries = tuple(entries)

    @classmethod
    def of(cls, name: str, journals: Sequence[Journal], facts: Mapping[str, Any] | None = None) -> "Table":
        """The table of a study that kept several journals."""
        if not journals:
            raise TableError(f"table {name!r}: there is no journal to make it of")
        trainings: dict[str, Mapping[str, Any]] = {}
        for journal in journals:
            if journal.space != journals[0].space:
                raise TableError(f"{journal.path} is of another space than {journals[0].path}")
            for training, config in journal.trainings.items():
                if trainings.setdefault(training, config) != config:
                    raise TableError(f"{journal.path} means another training by {training!r}")
        space = space_from_dict(journals[0].space.to_dict())
        return cls(name, space, trainings, [entry for journal in journals for entry in journal.entries], facts)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Table":
        return cls.unpacked(Path(path).read_bytes(), str(path))

    @classmethod
    def unpacked(cls, content: bytes, source: str) -> "Table":
        head, entries = unpack(content, source)
        return cls(head["name"], space_from_dict(head["space"]), head["trainings"], entries, head["facts"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a file, which is replaced as a whole."""
        head = {"name": self.name, "space": self.space.to_dict(), "trainings": self.trainings, "facts": self.facts}
        write_atomically(Path(path), pack(head, self._entries))

    def trials(
        self,
        *,
        steps: int,
        training: str | None = None,
        phase: str | None = None,
        method: str | None = None,
        rate: float | None = None,
    ) -> list[TableTrial]:
        """The trials of one training and length; those that failed are among them, with no value.

        Args:
            steps: how long they were trained.
            training: which of `trainings`; may be left out where only one has trials of that length.
            phase, method: of these alone; all, when left out. What no trial of that length has is refused, with what
                there is.
            rate: the same; nothing is found at a rate that was not tried.
        """
        return [entry.trial for entry in self._select(steps, training, phase, method, rate)]

    def test(
        self,
        *,
        steps: int,
        training: str | None = None,
        phase: str | None = None,
        method: str | None = None,
        rate: float | None = None,
    ) -> list[tuple[TableTrial, float]]:
        """The trials that were judged by the test set, with their scores there. Not for choosing among them."""
        found = self._select(steps, training, phase, method, rate)
        return [(entry.trial, entry.test) for entry in found if entry.test is not None]

    def scores(
        self,
        policy: Policy,
        *,
        steps: int,
        rate: float,
        training: str | None = None,
        phase: str | None = None,
        method: str | None = None,
    ) -> dict[int, float]:
        """What a policy, or one that does the same, came to on validation data, by seed; empty where none was tried.

        Not the trials that were stopped early: what their study credited them with is not what they came to.

        Raises:
            TableError: a seed has several scores, of trainings that a phase or a method tells apart: name one.
        """
        does = canonical(self.space, self.space.encode(policy))
        by_seed: dict[int, list[TableTrial]] = {}
        for trial in self.trials(steps=steps, training=training, phase=phase, method=method, rate=rate):
            if trial.value is not None and not trial.stopped and canonical(self.space, trial.tokens) == does:
                by_seed.setdefault(trial.seed, []).append(trial)
        return {seed: self._one_value(seed, trials) for seed, trials in by_seed.items()}

    def policy(self, trial: TableTrial) -> Policy:
        if not isinstance(trial, TableTrial):
            raise TableError(f"the policy of one of the table's trials is asked for by that trial, got {trial!r}")
        return self.space.decode(trial.tokens)

    def _one_value(self, seed: int, trials: Sequence[TableTrial]) -> float:
        """The score that trials of one policy and seed agree on; which of several is meant is the caller's to say."""
        values = {trial.value: None for trial in trials if trial.value is not None}
        if len(values) > 1:
            said = f"table {self.name!r} has {len(values)} scores of that policy with seed {seed}"
            for what in ("phase", "method"):
                if len(names := {getattr(trial, what): None for trial in trials}) > 1:
                    raise TableError(f"{said}; name a {what}: {_listed(names)}")
            raise TableError(f"{said}, in one phase and by one method; `trials` has them all")
        return next(iter(values))

    def _select(
        self, steps: int, training: str | None, phase: str | None, method: str | None, rate: float | None
    ) -> list[Entry]:
        if isinstance(steps, bool) or not isinstance(steps, SupportsIndex):
            raise TableError(f"steps is how long the trials were trained, an integer, got {steps!r}")
        if training is not None and training not in self.trainings:
            raise TableError(f"table {self.name!r} has no training {training!r}; there are {_listed(self.trainings)}")
        for what, name in (("phase", phase), ("method", method)):  # a misspelt one is not an empty answer
            known = {getattr(entry.trial, what): None for entry in self._entries}
            if name is not None and name not in known:
                raise TableError(f"table {self.name!r} has no {what} {name!r}; there are {_listed(known)}")
        found = [entry for entry in self._entries if training in (None, entry.trial.training)]
        lengths = Counter(entry.trial.steps for entry in found)
        if steps not in lengths:
            there = ", ".join(f"{length:,} ({count})" for length, count in sorted(lengths.items()))
            raise TableError(f"table {self.name!r} has no trial of {steps} steps; there are some of {there or 'none'}")
        found = [entry for entry in found if entry.trial.steps == steps]
        if len(which := {entry.trial.training: None for entry in found}) > 1:
            raise TableError(f"trials of {steps} steps belong to several trainings; name one of {_listed(which)}")
        asked = f"{steps:,} steps" + ("" if training is None else f" of training {training!r}")
        for what, name in (("phase", phase), ("method", method)):
            if name is None:
                continue
            others = {getattr(entry.trial, what): None for entry in found}
            found = [entry for entry in found if getattr(entry.trial, what) == name]
            if not found:
                said = f"no {what} {name!r} among trials of {asked}; there {what} is {_listed(others)}"
                raise TableError(f"table {self.name!r} has {said}")
            asked += f" in {what} {name!r}"
        return [entry for entry in found if rate in (None, entry.trial.rate)]

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {len(self)} trials)"

    def __str__(self) -> str:
        """What is known of it in a line each, then one line for each training, length and phase."""
        lines = [f"{self.name}: {len(self):,} trials, {self.space.describe()}"]
        lines += [f"{what}: {text}" for what, text in self.facts.items() if isinstance(text, str)]
        methods: dict[tuple[str, int, str], Counter[str]] = {}
        for trial, _ in self._entries:
            methods.setdefault((trial.training, trial.steps, trial.phase), Counter())[trial.method] += 1
        if methods:
            rows = [("training", "steps", "phase", "trials", "methods")]
            rows += [
                (training, f"{steps:,}", phase, f"{found.total():,}", _most_common(found))
                for (training, steps, phase), found in methods.items()
            ]
            a, b, c, d, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
            lines += [f"{row[0]:{a}}  {row[1]:>{b}}  {row[2]:{c}}  {row[3]:>{d}}  {row[4]}" for row in rows]
        return "\n".join(lines)


def _most_common(counts: Counter[str]) -> str:
    """Names with their numbers, and how many names there is no room for. A name may have commas."""
    said = [f"{count} {name}" for name, count in counts.most_common(NAMED)]
    return "; ".join(said) + (f"; and {len(counts) - NAMED} others" if len(counts) > NAMED else "")


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "none"
