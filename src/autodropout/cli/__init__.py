"""The commands: `autodropout search digits`, then `resume`, `status`, `best`, `show`, `report`, `compare`, `export`.

A STUDY on the command line is a name in `--storage`, or a ledger's URL with the name after a `#`; without a name it is
the ledger's only study. Results go to stdout, progress and errors to stderr. Exit codes: 0, 1 for a failure, 2 for a
command that cannot be understood, 130 after Ctrl-C.

- `searching`: the two commands that run a study; `reading`: all others
- `options`: the arguments they share; `shell`: how errors end them, how a study is found

Recipes and what draws are imported by the commands that need them: `status` and the shell's completion need neither.
"""

from typing import Annotated

import typer

from autodropout.cli import reading, searching
from autodropout.cli.shell import Commands

app = typer.Typer(
    cls=Commands,
    help="Learned shapes of dropout: search for a policy, look at it, take it away.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables leave no room for the words
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code an error arose.")] = False,
) -> None:
    """The options before the command's name; `Commands` reads them."""


for command in (
    searching.search,
    searching.resume,
    reading.status,
    reading.best,
    reading.show,
    reading.report,
    reading.compare,
    reading.export,
):
    app.command()(command)

__all__ = ["app"]
