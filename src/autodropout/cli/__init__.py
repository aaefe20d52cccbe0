"""The commands: `autodropout search digits`, then `resume`, `status`, `best`, `confirm`, `show`, `report`, `compare`,
`export`; around a search `recipes`, `data`, `policies`, `train`, `tune-rate`, `ablate`, `transfer`.

A STUDY on the command line is a name in `--storage`, or a ledger's URL with the name after a `#`; without a name it is
the ledger's only study. Results go to stdout, progress and errors to stderr. Exit codes: 0, 1 for a failure, 2 for a
command that cannot be understood, 130 after Ctrl-C.

- `searching`: the two commands that run a study; `plan`: what they keep of it; `reading`: those that read one
- `confirming`: the best of a study once more; `experiments`: what is trained without a search; `training`: how both do
- `listing`: the recipes; `data`: datasets
- `telling`: a policy in words
- `options`: the arguments they share; `studies`: how a study is found; `shell`: how errors end a command

What takes time to import is imported by the commands that need it: `--help` and the shell's completion of commands and
options take typer alone, `status` and `best` a database but no torch. A new command is a function in a module of its
kind, and a line in the list below.
"""

from typing import Annotated

import typer

import autodropout
from autodropout.cli import confirming, data, experiments, listing, reading, searching
from autodropout.cli.shell import Commands

HELP = """Search for shapes of dropout, look at what was found, train with it.

A policy says where, and in which shapes, a model drops. A study is a search for one: each of its trials trains a
child, a model under a policy that a proposer thought of, and scores it. All of it is kept in a ledger, a database, so
that a search can be ended at any moment and goes on where it was.

\b
Start with:
  autodropout search digits    a whole search, in five to six minutes
  autodropout status           where it stands, from another terminal
"""
NOTES = """Where a command takes a STUDY, give its name, or URL#NAME for one in another ledger than --storage's.

Exit codes: 0; 1 for a failure; 2 for a command that cannot be understood; 130 after Ctrl-C."""

app = typer.Typer(
    cls=Commands,
    help=HELP,
    epilog=NOTES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables leave no room for the words
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autodropout {autodropout.__version__}")
        raise typer.Exit


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code an error arose.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """The options before the command's name; `Commands` reads them."""


for command in (
    searching.search,
    searching.resume,
    confirming.confirm,
    reading.status,
    reading.best,
    reading.show,
    reading.policies,
    reading.report,
    reading.compare,
    reading.export,
    listing.recipes,
    experiments.train,
    experiments.tune_rate,
    experiments.ablate,
    experiments.transfer,
):
    app.command()(command)
app.add_typer(data.app, name="data")

__all__ = ["app"]
