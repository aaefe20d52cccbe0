"""A pattern and a seed give a mask: plain PyTorch (`conv.py`, `sequence.py`) and, beside it, a slow readable oracle."""

from autodropout.patterns.bernoulli import bernoulli, rare
from autodropout.patterns.conv import Tiling, conv_mask
from autodropout.patterns.sequence import Runs, sequence_mask

__all__ = ["Runs", "Tiling", "bernoulli", "conv_mask", "rare", "sequence_mask"]
