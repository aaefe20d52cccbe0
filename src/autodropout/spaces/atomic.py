"""Writing a file so that readers, and a crash at any instant, find the old content or the new, never a part."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, *parts: bytes | memoryview) -> None:
    """Write beside the target, flush to disk, then rename over it. On failure the target is as it was.

    Args:
        path: the target.
        parts: its content, one after the other: what is large need not be put together first.
    """
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot save {path}: there is no folder {folder}")
    partial = folder / f".autodropout-{secrets.token_hex(8)}.tmp"  # the same folder: renaming must not cross disks
    try:
        with partial.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:  # of a full disk it would not say where, and the name it has is not the user's
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened, and needs no flush
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)  # the rename itself must survive a power cut
        finally:
            os.close(handle)
