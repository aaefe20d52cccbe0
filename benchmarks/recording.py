"""What every benchmark shares: its options, what it writes down beside its numbers, its table, its databases."""

import argparse
import importlib.metadata
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def options(description: str | None, out: str | None, smoke: str) -> argparse.ArgumentParser:
    """A parser with --smoke and --out; a benchmark whose file depends on other options gives no `out`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help=f"{smoke}, to see that it runs")
    parser.add_argument("--out", type=Path, default=None if out is None else Path(out))
    return parser


def facts(what: str, packages: Sequence[str], machine: str | None = None) -> dict[str, Any]:
    """The head of a record: what was measured, when, where, of which commit, with which versions."""
    return {
        "what": what,
        "date": date.today().isoformat(),
        "commit": commit(),
        "machine": machine or f"{platform.machine()}, {os.cpu_count()} cores",
        "load_at_start": round(os.getloadavg()[0], 2),  # disk and CPU may be shared: a busy machine multiplies times
        "versions": {"python": platform.python_version(), **{package: version(package) for package in packages}},
    }


def version(package: str) -> str:
    return sqlite3.sqlite_version if package == "sqlite" else importlib.metadata.version(package)


def commit() -> str | None:
    """The present commit, with a plus where the sources differ from it; None outside a checkout."""
    git = ["git", "-C", str(ROOT)]
    try:
        number = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return number.stdout.strip() + ("+" if changes.stdout.strip() else "")


def write(record: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


class Table:
    """Rows of a label and some columns, printed as they come."""

    def __init__(self, columns: Sequence[str], label: int, width: int = 19) -> None:
        self._columns, self._label, self._width = columns, label, width
        print(" " * label + "".join(f"{name:>{width}}" for name in columns))

    def row(self, label: str, values: Mapping[str, object]) -> None:
        shown = ("" if values[name] is None else values[name] for name in self._columns)
        print(f"{label:{self._label}}" + "".join(f"{value:>{self._width}}" for value in shown), flush=True)


def averaged(values: Sequence[float | None], *, error: bool = False) -> str:
    """Mean ± deviation, or standard error, (n), for a table; None is a training that diverged, and is counted."""
    known = [value for value in values if value is not None]
    lost = f", {len(values) - len(known)} diverged" if len(known) < len(values) else ""
    mean = f"{statistics.fmean(known):.2f}" if known else "-"
    wide = statistics.stdev(known) / (len(known) ** 0.5 if error else 1.0) if len(known) > 1 else None
    return f"{mean}{'' if wide is None else f' ± {wide:.2f}'} ({len(known)}{lost})"


def interval(found: Mapping[str, float]) -> str:
    """An estimate and where it may well lie, for a table."""
    return f"{found['estimate']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def decimals(value: float | None) -> str:
    """For a table."""
    return "-" if value is None else f"{value:.2f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a table, and an empty one."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |" for line in lines] + [""]


def unit_of(record: Mapping[str, Any]) -> str:
    """What a study's scores are; the first files of Penn Treebank's do not say."""
    return str(record.get("unit", "perplexity"))


def units_of(records: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(dict.fromkeys(map(unit_of, records)))


def named(files: Iterable[Path]) -> str:
    """Files, as a page speaks of them."""
    return ", ".join(f"`{path.name}`" for path in files)


@contextmanager
def databases(postgresql: str | None) -> Iterator[Callable[[], dict[str, str]]]:
    """Gives, at each call, the URLs of new empty databases by kind. A server is started, if one is installed, unless
    the URL of one is given; its writes reach the disk."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".")))
        server = None
        if postgresql is None:
            sys.path.append(str(ROOT / "tests"))
            from ledger_server import running_server

            server = stack.enter_context(running_server(fsync=True))

        def new() -> dict[str, str]:
            urls = {"SQLite": f"sqlite:///{folder}/{uuid.uuid4().hex}.db"}
            if postgresql is not None:
                urls["PostgreSQL"] = postgresql
            elif server is not None:
                urls["PostgreSQL"] = server.create(uuid.uuid4().hex)
            return urls

        yield new
