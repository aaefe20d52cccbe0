"""What a dataset is here: labelled images in memory, in three parts that share no image."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Labelled:
    """Images and their classes."""

    images: Tensor  # (N, C, H, W), float32
    labels: Tensor  # (N,), int64

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.labels.dim() != 1 or len(self.images) != len(self.labels):
            shapes = f"{tuple(self.images.shape)} and {tuple(self.labels.shape)}"
            raise ValueError(f"images must be (N, C, H, W) and labels (N,), got {shapes}")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Splits:
    """A child learns from `train`, its reward comes from `validation`; `test` waits until nothing is left to choose."""

    train: Labelled
    validation: Labelled
    test: Labelled
