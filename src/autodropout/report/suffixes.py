"""Which files are written as what: a wrong suffix is refused, so that nothing is called what it is not."""

import os
from collections.abc import Sequence
from pathlib import Path


def checked_suffix(path: str | os.PathLike[str], allowed: Sequence[str], said: str) -> str:
    """The suffix of a file's name without its dot, in small letters; the first of those allowed where it has none."""
    suffix = Path(path).suffix[1:].lower() or allowed[0]
    if suffix not in allowed:
        raise ValueError(f"{os.fspath(path)}: {said}, not a .{suffix}")
    return suffix
