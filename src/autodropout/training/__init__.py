"""A child's training, from a model and data to a score."""

from autodropout.training.descent import Cosine, Exponential, RmsProp, Sgd, SlowCosine, Stairs
from autodropout.training.fixres import FixRes
from autodropout.training.images import ImageTraining
from autodropout.training.pictures import Pictures
from autodropout.training.run import Regularizer, Run, Scores
from autodropout.training.threads import threads

__all__ = [
    "Cosine",
    "Exponential",
    "FixRes",
    "ImageTraining",
    "Pictures",
    "Regularizer",
    "RmsProp",
    "Run",
    "Scores",
    "Sgd",
    "SlowCosine",
    "Stairs",
    "threads",
]
