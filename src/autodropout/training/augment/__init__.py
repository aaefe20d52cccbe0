"""Augmentation on the device, in batches: what a child's images go through between memory and the model's loss."""

from autodropout.training.augment.hidden import ManifoldMixup, MoEx, stages
from autodropout.training.augment.mixing import CutMix, Mix, Mixup, NoMix
from autodropout.training.augment.pipelines import (
    AUGMENTATIONS,
    CIFAR_MEAN,
    CIFAR_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Augment,
    augmentation,
    fixmatch_strong,
    imagenet_eval,
    imagenet_randaugment,
    imagenet_train,
    imagenet_uda,
    plain,
    randaugment,
    standard,
    uda_strong,
)
from autodropout.training.augment.randaugment import FIXMATCH, RANDAUGMENT, UDA, Operation, RandAugment
from autodropout.training.augment.registry import MIXES, mixing

__all__ = [
    "AUGMENTATIONS",
    "CIFAR_MEAN",
    "CIFAR_STD",
    "FIXMATCH",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "MIXES",
    "RANDAUGMENT",
    "UDA",
    "Augment",
    "CutMix",
    "ManifoldMixup",
    "Mix",
    "Mixup",
    "MoEx",
    "NoMix",
    "Operation",
    "RandAugment",
    "augmentation",
    "fixmatch_strong",
    "imagenet_eval",
    "imagenet_randaugment",
    "imagenet_train",
    "imagenet_uda",
    "mixing",
    "plain",
    "randaugment",
    "stages",
    "standard",
    "uda_strong",
]
