"""A child's training, from a model and data to a score."""

from autodropout.training.images import Sgd, accuracy, train
from autodropout.training.threads import threads

__all__ = ["Sgd", "accuracy", "threads", "train"]
