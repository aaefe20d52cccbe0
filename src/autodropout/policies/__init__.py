"""Policies that come with the package: one JSON file each, opened by name with `autodropout.load("name")`.

A file here says where it comes from: its provenance names study and trial, the score, the rate, the data and the model.
Those named ptb-... were scored as language models are in this package, by 80 / perplexity, so that more is better.
"""

import importlib.resources
import math
from importlib.resources.abc import Traversable


def bundled() -> dict[str, Traversable]:
    """The files by name, in the order of their names."""
    folder: Traversable = importlib.resources.files(__name__)
    found = {entry.name.removesuffix(".json"): entry for entry in folder.iterdir() if entry.name.endswith(".json")}
    return dict(sorted(found.items()))


def score_in_words(name: str, score: float) -> str:
    """The score of a bundled policy, in the unit that people know where it is not that already."""
    said = f"{score:.4g}"
    if name.startswith("ptb-") and name in bundled() and math.isfinite(score) and score > 0:
        said += f" (80 / perplexity: a validation perplexity of {80 / score:.2f})"
    return said
