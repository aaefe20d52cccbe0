"""Where datasets are: a folder named by the caller, or by AUTODROPOUT_DATA, or the user's cache.

One folder holds them all, each under its own name (`cifar10/`, `ptb/`, ...) or in the folder its official archive
unpacks to (`cifar-10-batches-bin/`); it may also be the dataset's folder itself. Nothing is searched for elsewhere.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "AUTODROPOUT_DATA"


@dataclass(frozen=True, slots=True)
class Reads:
    """What a training reads."""

    dataset: str  # by its name in `fetch.catalogue`
    data: Path | None = None  # the folder of datasets; see `root`


class MissingData(FileNotFoundError):
    """A dataset is not there; the message says where it was looked for and what to do.

    Args:
        begun: whether some of its files are there.
    """

    def __init__(self, message: str, *, begun: bool = False) -> None:
        super().__init__(message)
        self.begun = begun


def root(data: Path | str | None = None) -> Path:
    """The folder of all datasets: `data`, else AUTODROPOUT_DATA, else autodropout/ in the user's cache."""
    chosen = data or os.environ.get(VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else user_cache()


def user_cache() -> Path:
    """$XDG_CACHE_HOME/autodropout; a relative one does not count, as the XDG specification has it."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "autodropout"


def find(
    name: str,
    files: Sequence[str],
    *,
    inside: Sequence[str] = (),
    data: Path | str | None = None,
    advice: str = "",
    gzipped: bool = False,
) -> Path:
    """The folder that holds all of a dataset's files.

    Args:
        name: of the dataset, and of its folder.
        files: what must be there, as paths relative to that folder.
        inside: folders that official archives unpack to, tried under the dataset's folder and under the root.
        data: see `root`.
        advice: what to do when it is missing, where `autodropout data get NAME` is not the answer.
        gzipped: each file may also be there as .gz; for datasets that are read through `gzipped_or_not`.

    Raises:
        MissingData: no folder has all the files.
    """
    top = root(data)
    folders = [top / name, *(top / name / part for part in inside), *(top / part for part in inside), top]
    incomplete = ""
    for folder in folders:
        paths = {file: folder / file for file in files}
        missing = [file for file, path in paths.items() if not (gzipped_or_not(path) if gzipped else path).exists()]
        if not missing:
            return folder
        if len(missing) < len(files) and not incomplete:
            incomplete = f"; {folder} lacks {', '.join(missing)}"
    wanted = f"{', '.join(files[:3])}{', ...' if len(files) > 3 else ''}"
    looked = ", ".join(map(str, dict.fromkeys(folders)))
    todo = advice or f"run `autodropout data get {name}`, or point {VARIABLE} or --data to a folder that has it"
    message = f"no {name} ({wanted}): looked in {looked}{incomplete}. To mend it, {todo}"
    raise MissingData(message, begun=bool(incomplete))


def find_either(
    name: str,
    official: Sequence[str],
    plain: Sequence[str],
    *,
    inside: Sequence[str] = (),
    data: Path | str | None = None,
    advice: str = "",
    gzipped: bool = False,
) -> tuple[Path, bool]:
    """The folder that holds a dataset's official files, and True; or one that holds its plain ones, and False.

    Raises:
        MissingData: there is neither.
    """
    sought: dict[str, Any] = {"data": data, "advice": advice, "gzipped": gzipped}
    try:
        return find(name, official, inside=inside, **sought), True
    except MissingData as missing:
        try:
            return find(name, plain, **sought), False
        except MissingData as missing_too:
            raise (missing_too if missing_too.begun and not missing.begun else missing) from None


def gzipped_or_not(file: Path) -> Path:
    """The file, or the gzipped one that stands in its place."""
    packed = file.with_name(file.name + ".gz")
    return packed if packed.exists() and not file.exists() else file


def beside(folder: Path) -> Path:
    """Where to keep what is made from a dataset: its folder, or the user's cache where that cannot be written to.

    Two datasets whose folders have one name have two places there.
    """
    if os.access(folder, os.W_OK):
        return folder
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:12]
    cache = user_cache() / "prepared" / f"{folder.name}-{digest}"
    cache.mkdir(parents=True, exist_ok=True)
    return cache
