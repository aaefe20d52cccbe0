"""Processes to be killed, without waiting for each one's imports: a process that imports everything and then forks.

parent  --{"task": ..., arguments}-->  zygote  --fork-->  child, which writes what was acknowledged to a file
        <--pid-----------------------
        --{"wait": pid}------------->
        <--status, once it has ended-

A zygote is a script that imports what its tasks need and calls `serve` with them.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Zygote:
    """The parent's end of the script."""

    def __init__(self, script: str) -> None:
        sources = Path(sys.modules["autodropout"].__file__).parents[1]
        paths = [sources, Path(__file__).parent, Path(script).parent]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        )
        self._last = 0

    def spawn(self, task: str, **arguments: Any) -> int:
        """Start a child on a task; its pid."""
        self._last = self._ask({"task": task, **arguments})
        return self._last

    def wait(self, pid: int | None = None) -> int:
        """The status of that child, or of the last one, once it has ended; negative for a signal."""
        return self._ask({"wait": self._last if pid is None else pid})

    def run(self, task: str, **arguments: Any) -> int:
        return self.wait(self.spawn(task, **arguments))

    def said(self) -> str:
        """All that came on stderr so far."""
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        self._process.communicate()
        print(self.said(), file=sys.stderr)
        self._errors.close()

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, self.said()
        return int(answer)


class Log:
    """Lines that survive the death of the process that wrote them."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, **line: Any) -> None:
        os.write(self._file, (json.dumps(line) + "\n").encode())


def crashing(call: Callable[..., Any], number: int, after: bool) -> Callable[..., Any]:
    """The function, in a process that is killed exactly before or after its call number `number`."""
    done = 0

    def counted(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments)
        if done == number and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return counted


def serve(tasks: Mapping[str, Callable[..., None]]) -> None:
    """The zygote's end: fork a child for each order, until there are no more."""
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        with warnings.catch_warnings():  # since Python 3.12 of other threads, which no child needs
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(_run(tasks, order))
        print(pid, flush=True)


def _run(tasks: Mapping[str, Callable[..., None]], order: dict[str, Any]) -> int:
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # stdout is for the zygote's answers
    try:
        tasks[order.pop("task")](**order)
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:  # noqa: BLE001  the child ends here in any case
        traceback.print_exc()
        return 1
    return 0
