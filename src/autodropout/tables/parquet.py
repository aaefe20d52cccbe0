"""A table of trials as one Parquet file: typed columns, and a head with its version and a checksum over all of it.

The checksum is SHA-256 of the head and of every row, written as JSON in one way: so it does not depend on how a version
of Parquet packs its pages, and a file that was damaged, cut or edited is refused, whatever its own checks say.

Needs `pip install 'autodropout[export]'`, imported on first use.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from autodropout.tables.trials import NAMES, Entry, TableError, from_dict, to_dict

SCHEMA = 1
"""The version of the file's form."""

HEAD = b"autodropout.table"
"""The key of the head among the file's metadata."""

KINDS = {
    "phase": "string",
    "method": "string",
    "number": "int32",
    "tokens": "list<uint8>",
    "rate": "double",
    "seed": "int64",
    "training": "string",
    "steps": "int32",
    "value": "double",
    "curve": "list<(int32, double)>",
    "seconds": "double",
    "together": "int32",
    "stopped": "bool",
    "failure": "string",
    "log_prob": "double",
    "version": "int32",
    "test": "double",
}

Contents = tuple[dict[str, Any], list[Entry]]
"""The head, and the entries."""


def pack(head: Mapping[str, Any], entries: Sequence[Entry]) -> bytes:
    """The file's bytes. The head is JSON data with `name`, `space`, `trainings` and `facts`."""
    pyarrow = _pyarrow()
    head = {"schema": SCHEMA, **head}
    head["sha256"] = checksum(head, entries)
    rows = [_row(entry) for entry in entries]
    schema = pyarrow.schema(
        [(name, _type(pyarrow, kind)) for name, kind in KINDS.items()], {HEAD: json.dumps(head, allow_nan=False)}
    )
    table = pyarrow.Table.from_pydict({name: [row[name] for row in rows] for name in KINDS}, schema=schema)
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def unpack(content: bytes, source: str) -> Contents:
    """What `pack` was given, its bytes checked; `source` names the file in error messages.

    Raises:
        TableError: the bytes are damaged, of another version, or no table of trials at all.
    """
    pyarrow = _pyarrow()
    try:
        return _decoded(pyarrow.parquet.read_table(pyarrow.BufferReader(content)), source)
    except TableError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError) as error:  # by the byte that is wrong
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise TableError(f"{source} is damaged, or not a Parquet file: {why}") from None


def _decoded(table: Any, source: str) -> Contents:
    head = _head(table.schema.metadata or {}, source)
    if missing := [name for name in KINDS if name not in table.column_names]:
        raise TableError(f"{source} is damaged: it has no column {', '.join(missing)}")
    entries = []
    for number, row in enumerate(table.select(list(KINDS)).to_pylist()):
        curve = [(point["step"], point["value"]) for point in row["curve"] or ()]
        entries.append(from_dict(row | {"curve": curve}, f"{source}, row {number}"))
    said = head.pop("sha256")
    if (found := checksum(head, entries)) != said:
        raise TableError(f"{source} is damaged: its checksum is {found[:16]}..., it should be {said[:16]}...")
    return head, entries


def checksum(head: Mapping[str, Any], entries: Sequence[Entry]) -> str:
    digest = hashlib.sha256(_line(head))
    for entry in entries:
        digest.update(_line(to_dict(entry)))
    return digest.hexdigest()


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, sort_keys=True, allow_nan=False).encode() + b"\n"


def _row(entry: Entry) -> dict[str, Any]:
    values = {name: getattr(entry.trial, name) for name in NAMES}
    values["curve"] = [{"step": step, "value": value} for step, value in entry.trial.curve]
    return values | {"tokens": list(entry.trial.tokens), "test": entry.test}


def _head(metadata: Mapping[bytes, bytes], source: str) -> dict[str, Any]:
    if HEAD not in metadata:
        raise TableError(f"{source} is a Parquet file, but not a table of trials")
    try:
        head = json.loads(metadata[HEAD])
        version = head["schema"]
    except (ValueError, TypeError, KeyError):
        raise TableError(f"{source} is damaged: its head cannot be read") from None
    if version != SCHEMA:
        raise TableError(f"{source} is of schema {version}; this autodropout reads {SCHEMA}")
    if missing := [name for name in ("name", "space", "trainings", "facts", "sha256") if name not in head]:
        raise TableError(f"{source} is damaged: its head lacks {', '.join(missing)}")
    return dict(head)


def _type(pyarrow: Any, kind: str) -> Any:
    match kind:
        case "list<uint8>":
            return pyarrow.list_(pyarrow.uint8())
        case "list<(int32, double)>":
            return pyarrow.list_(pyarrow.struct([("step", pyarrow.int32()), ("value", pyarrow.float64())]))
        case _:
            return pyarrow.type_for_alias(kind)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ModuleNotFoundError("tables of trials need pyarrow: pip install 'autodropout[export]'") from None
    return pyarrow
