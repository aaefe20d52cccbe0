"""Ways of mixing by name, with the hyper-parameters of their papers.

| name | on CIFAR | on ImageNet |
|---|---|---|
| mixup | alpha 1 | alpha 0.2 |
| cutmix | alpha 1, probability 0.5 | alpha 1, probability 1 |
| manifold_mixup | alpha 2; images, entries of stages 2 and 3 | the same |
| moex | weight 0.5, probability 0.25; entry of stage 1 | weight 0.9, probability 1 |
"""

from typing import Literal, get_args

from torch import Tensor, nn

from autodropout.training.augment.hidden import ManifoldMixup, MoEx, stages
from autodropout.training.augment.mixing import CutMix, Mix, Mixup, NoMix

MIXES = ("none", "mixup", "cutmix", "manifold_mixup", "moex")
INSIDE = ("manifold_mixup", "moex")  # those that need the model
Setting = Literal["cifar", "imagenet"]


def mixing(
    name: str,
    classes: int,
    *,
    model: nn.Module | None = None,
    example: Tensor | None = None,
    places: tuple[str, ...] | None = None,
    setting: Setting = "cifar",
) -> Mix:
    """A mix by name, one of MIXES. To be called before `torch.compile`.

    Args:
        name: which.
        classes: how many.
        model: the bare model, for those that mix inside it.
        example: a batch for it, to find its stages with, unless `places` are given.
        places: names of the modules whose input is mixed; one for moex.
        setting: whose hyper-parameters.
    """
    if name not in MIXES:
        raise ValueError(f"no mix is called {name!r}; there are {', '.join(MIXES)}")
    if setting not in get_args(Setting):
        raise ValueError(f"setting must be one of {get_args(Setting)}, got {setting!r}")
    small = setting == "cifar"
    if name == "mixup":
        return Mixup(classes, alpha=1.0 if small else 0.2)
    if name == "cutmix":
        return CutMix(classes, probability=0.5 if small else 1.0)
    if name not in INSIDE:
        return NoMix(classes)
    if model is None or (example is None and places is None):
        raise ValueError(f"{name!r} needs the model, and an example for it or places in it")
    if name == "manifold_mixup":
        return ManifoldMixup(classes, model, places or _stages(model, example)[1:3])
    first, *others = places or _stages(model, example)[:1]
    if others:
        raise ValueError(f"moex has one place, got {places!r}")
    return MoEx(classes, model, first, *((0.5, 0.25) if small else (0.9, 1.0)))


def _stages(model: nn.Module, example: Tensor | None) -> tuple[str, ...]:
    assert example is not None
    found = stages(model, example)
    if len(found) < 2:
        raise ValueError(f"found the stages {found!r} in this model, which are too few: name the places")
    return found
