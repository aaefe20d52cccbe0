"""Datasets, as tensors in memory: each a module with `load`, and the records they share."""

from autodropout.data.splits import Labelled, Splits

__all__ = ["Labelled", "Splits"]
