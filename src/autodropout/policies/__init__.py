"""Policies that come with the package: one JSON file each, opened by name with `autodropout.load("name")`.

A file here says where it comes from: its provenance names study and trial, the score, the rate, the data and the model.
"""

import importlib.resources
from importlib.resources.abc import Traversable


def bundled() -> dict[str, Traversable]:
    """The files by name, in the order of their names."""
    folder: Traversable = importlib.resources.files(__name__)
    found = {entry.name.removesuffix(".json"): entry for entry in folder.iterdir() if entry.name.endswith(".json")}
    return dict(sorted(found.items()))
