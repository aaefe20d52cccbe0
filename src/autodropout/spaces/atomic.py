"""Writing a file so that readers, and a crash at any instant, find the old content or the new, never a part."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, then rename over it. On failure the target is as it was."""
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot save {path}: there is no folder {folder}")
    partial = folder / f".autodropout-{secrets.token_hex(8)}.tmp"  # the same folder: renaming must not cross disks
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if error.filename is None:  # a full disk does not say where
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened, and needs no flush
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)  # the rename itself must survive a power cut
        finally:
            os.close(handle)
