"""The commands: `autodropout search digits`, then `resume`, `status`, `best`, `show`, `report`, `compare`, `export`;
around a search `recipes`, `data`, `train`, `tune-rate`, `ablate`, `transfer`.

A STUDY on the command line is a name in `--storage`, or a ledger's URL with the name after a `#`; without a name it is
the ledger's only study. Results go to stdout, progress and errors to stderr. Exit codes: 0, 1 for a failure, 2 for a
command that cannot be understood, 130 after Ctrl-C.

- `searching`: the two commands that run a study; `plan`: what they keep of it; `reading`: those that read one
- `experiments`: what is trained without a search; `data`: datasets
- `options`: the arguments they share; `studies`: how a study is found; `shell`: how errors end a command

What takes time to import is imported by the commands that need it: `--help` and the shell's completion of commands and
options take typer alone, `status` and `best` a database but no torch. A new command is a function in a module of its
kind, and a line in the list below.
"""

from typing import Annotated

import typer

from autodropout.cli import data, experiments, reading, searching
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
    experiments.recipes,
    experiments.train,
    experiments.tune_rate,
    experiments.ablate,
    experiments.transfer,
):
    app.command()(command)
app.add_typer(data.app, name="data")

__all__ = ["app"]
