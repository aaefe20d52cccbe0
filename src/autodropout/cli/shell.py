"""What every command shares: how errors and Ctrl-C end it, which names an option takes, how a policy is found, what may
be shown."""

import json
import os
import re
import shlex
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from autodropout.search.errors import ChildError, LedgerError

if TYPE_CHECKING:
    from autodropout.spaces import Policy

USERS = (ValueError, FloatingPointError, LedgerError, ChildError, ModuleNotFoundError, OSError)
"""What a user can mend: a mistake of theirs, a rate too high, a file, a database, a missing package, their child."""

_UsageError: Any = typer.BadParameter.__mro__[1]  # click's, wherever typer keeps it


class Commands(TyperGroup):
    """Errors of users are told in a line, without a traceback, unless --debug asks for one; no password is shown."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # `autodropout best | head`: typer knows
        except _UsageError as error:  # may repeat an argument
            error.message = masked(error.message)
            raise
        except USERS as error:
            if ctx.params.get("debug"):
                typer.echo(masked("".join(traceback.format_exception(error))), err=True, nl=False)
            for line in (f"error: {_said(error)}", *getattr(error, "__notes__", ())):
                typer.echo(masked(line), err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _said(error: Exception) -> str:
    """Its message; of the system's, without the number."""
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


def masked(text: str) -> str:
    """The text without the passwords of the URLs in it."""
    text = re.sub(r"(\w://[^\s:/@]*):[^\s@]*@", r"\1:***@", text)
    return re.sub(r"(?i)([?&]\w*(?:pass|pw|secret)\w*=)[^\s&#]*", r"\1***", text)


def one_of(names: Callable[[], tuple[str, ...]]) -> Callable[[str | None], str | None]:
    """The callback of an option that must be one of these names."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in names():
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names())}")
        return value

    return check


def load_policy(name: str) -> "Policy":
    """As `ad.load`; who names a study, most likely, learns how its best policy becomes a file."""
    from autodropout.spaces import PolicyError, load

    try:
        return load(name)
    except PolicyError as error:
        if not Path(name).exists():  # no path, which would be another error, but a name that no bundled policy has
            error.add_note(f"a study's best: autodropout best {shlex.quote(name)} --out policy.json")
        raise


def is_first_rank() -> bool:
    """Under torchrun one of the ranks writes and speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def print_json(data: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(data, indent=2))


def look_for_data(folder: Path | str | None) -> None:
    """Where loaders look for datasets, in processes begun from now on too; None: as it was."""
    if folder is not None:
        os.environ["AUTODROPOUT_DATA"] = str(folder)
