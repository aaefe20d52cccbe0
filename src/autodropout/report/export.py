"""A study's trials for other tools: a Parquet table, or an Optuna study to open in optuna-dashboard.

autodropout export mine --out trials.parquet     (pip install 'autodropout[export]')
autodropout export mine --optuna optuna.journal  (pip install 'autodropout[optuna]'), then `optuna-dashboard FILE`
"""

import io
import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from autodropout.report.suffixes import checked_suffix
from autodropout.search.errors import StorageError
from autodropout.search.reading import Reader
from autodropout.search.records import Trial
from autodropout.search.states import PENDING, State
from autodropout.spaces.atomic import write_atomically

if TYPE_CHECKING:
    import optuna


def write_parquet(study: Reader, path: str | os.PathLike[str]) -> int:
    """Write one row a trial, whatever its state; returns how many. The study's own facts are in the file's metadata.

    Columns: those of a trial, then one for each token with the value it stands for, named as in the space.
    """
    checked_suffix(path, ("parquet",), "a table is a .parquet")
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ModuleNotFoundError("writing Parquet needs pyarrow: pip install 'autodropout[export]'") from None
    info, trials = study.info, study.trials()
    time = pyarrow.timestamp("us", tz="UTC")
    curve = pyarrow.list_(pyarrow.struct([("step", pyarrow.int64()), ("value", pyarrow.float64())]))
    columns: dict[str, tuple[Any, list[Any]]] = {
        "number": (pyarrow.int32(), [trial.number for trial in trials]),
        "state": (pyarrow.string(), [trial.state.name for trial in trials]),
        "value": (pyarrow.float64(), [trial.value for trial in trials]),
        "stopped": (pyarrow.bool_(), [trial.stopped for trial in trials]),
        "failure": (pyarrow.string(), [trial.failure and trial.failure.kind.value for trial in trials]),
        "message": (pyarrow.string(), [trial.failure and trial.failure.message for trial in trials]),
        "traceback": (pyarrow.string(), [trial.failure and trial.failure.traceback for trial in trials]),
        "log_prob": (pyarrow.float64(), [trial.log_prob for trial in trials]),
        "version": (pyarrow.int32(), [trial.version for trial in trials]),
        "update": (pyarrow.int32(), [trial.update for trial in trials]),
        "seed": (pyarrow.int64(), [trial.seed for trial in trials]),
        "attempts": (pyarrow.int32(), [trial.attempts for trial in trials]),
        "worker": (pyarrow.string(), [trial.worker for trial in trials]),
        "started": (time, [trial.started for trial in trials]),
        "finished": (time, [trial.finished for trial in trials]),
        "curve": (curve, [[{"step": step, "value": value} for step, value in trial.curve] for trial in trials]),
        "tokens": (pyarrow.list_(pyarrow.uint8()), [list(trial.tokens) for trial in trials]),
    }
    kinds = {bool: pyarrow.bool_(), int: pyarrow.int32(), float: pyarrow.float64()}
    for position, token in enumerate(info.space.tokens):
        values = [token.values[trial.tokens[position]] for trial in trials]
        columns[token.name] = (kinds[type(token.values[0])], values)
    facts = {
        "study": info.name,
        "space": info.space.to_dict(),
        "proposer": info.proposer,
        "seed": info.seed,
        "capacity": info.capacity,
        "minibatch": info.minibatch,
        "floor": info.floor,
        "versions": dict(info.versions),
        "attributes": dict(info.attributes),
    }
    schema = pyarrow.schema([(name, kind) for name, (kind, _) in columns.items()], {"autodropout": json.dumps(facts)})
    table = pyarrow.Table.from_pydict({name: values for name, (_, values) in columns.items()}, schema=schema)
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    write_atomically(Path(path), file.getvalue())
    return len(trials)


def write_optuna(study: Reader, where: str, name: str) -> int:
    """Copy the trials that have ended into a new Optuna study; returns how many.

    Stopped trials become PRUNED, those that failed or diverged FAIL: as in the ledger, none of them can be the best.
    `where` is the path of a journal file, or a database's URL. Optuna stores trials one by one: about 1,000 a second
    in a journal, 30 in a database.
    """
    try:
        import optuna
        from optuna.storages import JournalStorage, RDBStorage
        from optuna.storages.journal import JournalFileBackend
    except ModuleNotFoundError:
        raise ModuleNotFoundError("exporting to Optuna needs it: pip install 'autodropout[optuna]'") from None
    if "://" not in where and Path(where).exists() and _first_byte(where) not in (b"", b"{"):
        raise ValueError(f"{where} is something else than a journal of Optuna's; name another file")
    trials = [_optuna_trial(study, trial) for trial in study.trials() if trial.state not in PENDING]
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    database: RDBStorage | None = None
    try:
        database = RDBStorage(where) if "://" in where else None
        storage = database or JournalStorage(JournalFileBackend(where))
        optuna.create_study(storage=storage, study_name=name, direction="maximize").add_trials(trials)
    except optuna.exceptions.DuplicatedStudyError:
        raise ValueError(f"there is an Optuna study {name!r} already; give the copy another name") from None
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError) as error:
        problem = " ".join(str(error.__cause__ or error).split())[:400]
        raise StorageError(f"Optuna cannot use its storage: {problem}") from None
    finally:
        optuna.logging.set_verbosity(verbosity)
        if database is not None:
            database.remove_session()
            database.engine.dispose()
    return len(trials)


def _first_byte(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(1)


def _optuna_trial(study: Reader, trial: Trial) -> "optuna.trial.FrozenTrial":
    import optuna

    info = study.info
    done = optuna.trial.TrialState.COMPLETE
    if trial.failure is not None or trial.state is State.FAILED:
        done = optuna.trial.TrialState.FAIL
    elif trial.stopped:
        done = optuna.trial.TrialState.PRUNED
    attributes = {
        "autodropout_trial": trial.number,
        "attempts": trial.attempts,
        "failure": None if trial.failure is None else f"{trial.failure.kind.value}: {trial.failure.message}"[:1000],
    }
    return optuna.trial.FrozenTrial(
        number=trial.number,
        trial_id=-1,  # the storage gives one
        state=done,
        value=trial.value if done is not optuna.trial.TrialState.FAIL else None,
        datetime_start=_local(trial.started or trial.finished),
        datetime_complete=_local(trial.finished),
        params={token.name: token.values[i] for token, i in zip(info.space.tokens, trial.tokens, strict=True)},
        distributions={
            token.name: optuna.distributions.CategoricalDistribution(token.values) for token in info.space.tokens
        },
        user_attrs={name: value for name, value in attributes.items() if value is not None},
        system_attrs={},
        intermediate_values=dict(trial.curve),
    )


def _local(time: datetime | None) -> datetime | None:
    """Optuna's times are naive, and local."""
    return None if time is None else time.astimezone().replace(tzinfo=None)
