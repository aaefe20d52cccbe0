"""Records <-> rows. Numbers that JSON has no word for are stored as null and read as NaN; nothing is pickled."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Row

from autodropout.search import schema
from autodropout.search.records import Curve, Failure, Outcome, StudyInfo, Trial, Update
from autodropout.search.states import FailureKind, State
from autodropout.spaces import space_from_dict

AnyRow = Row[Any]

MAX_MESSAGE = 4_000
MAX_TRACEBACK = 20_000


def time_of(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def write_json(data: object) -> str:
    """As ASCII without NaN: every database and every JSON reader takes it."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def study_values(info: StudyInfo, created: float) -> dict[str, Any]:
    return {
        "name": info.name,
        "space": write_json(info.space.to_dict()),
        "proposer": info.proposer,
        "seed": info.seed,
        "capacity": info.capacity,
        "minibatch": info.minibatch,
        "floor": float(info.floor),
        "created": created,
        "versions": write_json(dict(info.versions)),
        "attributes": write_json(dict(info.attributes)),
    }


def study_info(row: AnyRow) -> StudyInfo:
    return StudyInfo(
        name=row.name,
        space=space_from_dict(json.loads(row.space)),
        proposer=row.proposer,
        seed=row.seed,
        capacity=row.capacity,
        minibatch=row.minibatch,
        floor=row.floor,
        created=time_of(row.created),
        versions=json.loads(row.versions),
        attributes=json.loads(row.attributes),
    )


def curve_text(curve: Sequence[tuple[int, float]]) -> str | None:
    return write_json([[int(step), _finite(value)] for step, value in curve]) if curve else None


def _curve(text: str | None) -> Curve:
    return tuple((step, math.nan if value is None else value) for step, value in json.loads(text)) if text else ()


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _text(text: str, limit: int) -> str:
    """What a database can store of a text, its end where it is too long: NUL and half surrogates are spelled out."""
    text = text if len(text) <= limit else f"... {text[-limit:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


DECODERS: dict[str, tuple[Column[Any], Callable[[Any], Any] | None]] = {
    "number": (schema.trial.c.number, None),
    "state": (schema.trial.c.state, State),
    "tokens": (schema.trial.c.tokens, tuple),
    "log_prob": (schema.trial.c.log_prob, None),
    "version": (schema.trial.c.version, None),
    "seed": (schema.trial.c.seed, None),
    "attempts": (schema.trial.c.attempts, None),
    "value": (schema.trial.c.value, None),
    "curve": (schema.trial.c.curve, _curve),
    "stopped": (schema.trial.c.stopped, None),
    "failure": (schema.trial.c.failure, lambda kind: kind and FailureKind(kind)),
    "message": (schema.trial.c.message, None),
    "traceback": (schema.trial.c.traceback, None),
    "update": (schema.trial.c.update, None),
    "worker": (schema.trial.c.worker, None),
    "started": (schema.trial.c.started, time_of),
    "finished": (schema.trial.c.finished, time_of),
}
"""The columns of a trial by name, each with the way from what is stored to what a `Trial` has."""


def trial_values(trial: Trial) -> dict[str, Any]:
    """A new trial's row, without its study."""
    return {
        "number": trial.number,
        "state": trial.state.value,
        "attempts": trial.attempts,
        "version": trial.version,
        "seed": trial.seed,
        "log_prob": trial.log_prob,
        "stopped": trial.stopped,
        "tokens": bytes(trial.tokens),
    }


def trial_record(row: AnyRow) -> Trial:
    failure = Failure(FailureKind(row.failure), row.message, row.traceback) if row.failure else None
    return Trial(
        number=row.number,
        state=State(row.state),
        tokens=tuple(row.tokens),
        log_prob=row.log_prob,
        version=row.version,
        seed=row.seed,
        attempts=row.attempts,
        value=row.value,
        curve=_curve(row.curve),
        stopped=row.stopped,
        failure=failure,
        update=row.update,
        worker=row.worker,
        started=time_of(row.started),
        finished=time_of(row.finished),
    )


def failure_values(failure: Failure | None) -> dict[str, Any]:
    if failure is None:
        return {"failure": None, "message": None, "traceback": None}
    return {
        "failure": failure.kind.value,
        "message": _text(failure.message, MAX_MESSAGE),
        "traceback": _text(failure.traceback, MAX_TRACEBACK),
    }


def outcome_values(outcome: Outcome, finished: float) -> dict[str, Any]:
    return {
        "state": outcome.state.value,
        "value": None if outcome.value is None else float(outcome.value) + 0.0,  # no -0.0: SQLite would store 0.0
        "curve": curve_text(outcome.curve),
        "stopped": outcome.state is State.STOPPED,
        "finished": finished,
        **failure_values(outcome.failure),
    }


def update_values(number: int, trials: Sequence[int], metrics: Mapping[str, float], finished: float) -> dict[str, Any]:
    return {
        "number": number,
        "trials": write_json(list(trials)),
        "metrics": write_json({name: _finite(value) for name, value in metrics.items()}),
        "finished": finished,
    }


def update_record(row: AnyRow) -> Update:
    metrics = {name: math.nan if value is None else value for name, value in json.loads(row.metrics).items()}
    finished = datetime.fromtimestamp(row.finished, UTC)
    return Update(row.number, row.number + 1, tuple(json.loads(row.trials)), metrics, finished)
