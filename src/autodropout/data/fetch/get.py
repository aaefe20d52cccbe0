"""Get one dataset: download its files, check them, unpack them, put the folder in place.

    FOLDER/.downloads/NAME/...    what is downloaded, removed at the end
    FOLDER/.NAME-....tmp/         what is unpacked, while it is
    FOLDER/NAME/                  the dataset: whole, or not there

Interrupted at any instant, the same command continues: downloads are resumed, unpacking begins anew.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from autodropout.data.atomic import alone, whole_folder
from autodropout.data.fetch.catalogue import Dataset, Download
from autodropout.data.fetch.checks import WrongContent, check_file, check_members, check_record
from autodropout.data.fetch.download import FetchError, download
from autodropout.data.fetch.unpack import UnsafeArchive, is_archive, unpack
from autodropout.data.folders import MissingData, root


class Unverified(ValueError):
    """Nobody has published a checksum, and the user has not said to go on without one."""


def get(
    dataset: Dataset,
    data: Path | str | None = None,
    *,
    unverified: bool = False,
    say: Callable[[str], None] = lambda line: None,
    pause: float = 1.0,
) -> Path:
    """The folder of a dataset, fetched unless it is there.

    Args:
        data: the folder of datasets; see `folders.root`.
        unverified: take files that nobody has published a checksum of; see `checks`.
        say: told what is done, a line each.
        pause: see `download`.

    Raises:
        MissingData: it cannot be fetched by us; the message says what to do.
        Unverified, WrongContent, UnsafeArchive: what came, or would come, is not to be trusted.
        FetchError: the download failed.
    """
    top = root(data)
    try:
        return dataset.where(top)
    except MissingData:
        if not dataset.downloads:
            raise
    with alone(top / dataset.name):
        with suppress(MissingData):  # another process may have fetched it while we waited
            return dataset.where(top)
        target, downloads = top / dataset.name, top / ".downloads" / dataset.name
        if target.exists() and any(target.iterdir()):
            raise FetchError(f"{target} is there but incomplete: move it away, and it is fetched anew")
        if (unchecked := [item.file for item in dataset.downloads if not item.is_checked]) and not unverified:
            raise Unverified(
                f"nobody has published a checksum of {', '.join(unchecked)}: a changed file would go unnoticed. To "
                f"take it all the same, and to have later downloads compared with it, say --unverified"
            )
        for item in dataset.downloads:
            _fetched(item, downloads / item.file, top, say, pause)
        with whole_folder(target) as partial:
            for item in dataset.downloads:
                say(f"unpacking {item.file}" if is_archive(item.file) else f"keeping {item.file}")
                _placed(item, downloads / item.file, partial)
        shutil.rmtree(downloads)
        return dataset.where(top)


def _fetched(item: Download, file: Path, top: Path, say: Callable[[str], None], pause: float) -> None:
    """Download a file from the first address that has it, and check it; what does not pass is removed."""
    for url in item.urls:
        try:
            if not file.exists():  # from an earlier run that was interrupted
                say(f"fetching {url}")
                download(url, file, pause=pause)
            say(f"checking {item.file}: {item.checked_by}")
            _checked(item, file, top)
            return
        except (FetchError, WrongContent, UnsafeArchive) as error:
            if url == item.urls[-1]:
                raise
            say(f"{error}; trying the next address")


def _checked(item: Download, file: Path, top: Path) -> None:
    try:
        if item.checksum is not None:
            check_file(file, item.checksum)
        if is_archive(item.file):
            check_members(file, item.members)
        if not item.is_checked:
            check_record(file, item.urls[0], top)
    except (WrongContent, UnsafeArchive):
        file.unlink()
        raise


def _placed(item: Download, file: Path, folder: Path) -> None:
    if is_archive(item.file):
        unpack(file, folder, only=tuple(item.members))
    else:
        shutil.copyfile(file, folder / item.file)
