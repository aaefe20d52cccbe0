"""A disk so small that a test can fill it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system in memory; the test is skipped where none can be mounted."""
    disk = folder / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", disk]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)
