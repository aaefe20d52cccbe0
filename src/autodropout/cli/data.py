"""The commands about datasets: `autodropout data list`, `autodropout data get NAME`."""

from typing import Annotated

import typer

from autodropout.cli.options import AsJson, DataFolder
from autodropout.cli.shell import print_json

app = typer.Typer(help="Find and fetch the datasets of the recipes.", no_args_is_help=True, rich_markup_mode=None)


def _names() -> list[str]:
    from autodropout.data.fetch.catalogue import DATASETS

    return list(DATASETS)


@app.command("list")
def list_datasets(data: DataFolder = None, as_json: AsJson = False) -> None:
    """Say which datasets there are.

    Where they were found, and how a download is checked.

    \b
    Examples:
      autodropout data list
      autodropout data list --data /disks/datasets --json
    """
    from autodropout.data.fetch.catalogue import DATASETS
    from autodropout.data.folders import MissingData, root

    facts = []
    for dataset in DATASETS.values():
        try:
            found: str | None = str(dataset.where(data))
        except MissingData:
            found = None
        facts.append(
            {
                "name": dataset.name,
                "what": dataset.what,
                "download": dataset.size,
                "found": found,
                "terms": dataset.terms,
                "checked_by": dataset.checked_by,
                "from": [url for item in dataset.downloads for url in item.urls],
            }
        )
    if as_json:
        print_json({"folder": str(root(data)), "datasets": facts})
        return
    for fact in facts:
        typer.echo(f"{fact['name']:<17}{fact['what']}")
        for what in ("found", "download", "checked_by", "terms"):
            typer.echo(f"{'':<17}{what.replace('_', ' ') + ':':<12}{fact[what] or 'no'}")


@app.command("get")
def get_dataset(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", autocompletion=_names, help="As `autodropout data list` shows them."),
    ],
    data: DataFolder = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Take files that nobody has published a checksum of.")
    ] = False,
) -> None:
    """Fetch datasets from where they are published; print where they are.

    What is there already is not fetched again; what was cut is continued. Everything is checked before it is unpacked.

    \b
    Examples:
      autodropout data get cifar10 ptb
      autodropout data get iwslt14 --unverified --data /disks/datasets
    """
    from autodropout.data.fetch.catalogue import DATASETS
    from autodropout.data.fetch.get import get

    if unknown := [name for name in names if name not in DATASETS]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(DATASETS)}")
    for name in names:
        typer.echo(get(DATASETS[name], data, unverified=unverified, say=_say))


def _say(line: str) -> None:
    typer.echo(line, err=True)
