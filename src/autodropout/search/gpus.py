"""Which GPUs this machine has, found without torch: a driver process need not load it to count them."""

import os
from pathlib import Path

DEVICES = Path("/dev")
"""Where Linux shows them, as nvidia0, nvidia1 and so on."""


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that a process started now would see, as the variable CUDA_VISIBLE_DEVICES names them."""
    present = sum(path.name.removeprefix("nvidia").isdecimal() for path in DEVICES.glob("nvidia[0-9]*"))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not present or chosen is None:
        return tuple(map(str, range(present)))
    names = [name.strip() for name in chosen.split(",")]
    seen = next((index for index, name in enumerate(names) if name in ("", "-1")), len(names))  # CUDA stops there
    return tuple(names[:seen])
