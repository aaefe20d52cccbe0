"""Mixing inside the network: Manifold Mixup (Verma et al., ICML 2019) and MoEx (Li et al., CVPR 2021).

Both change what chosen modules take in, for one forward of the model:

    mix(model, images, labels)  ->  note what to do  ->  model(images)
                                                           first of all: take the note, or none    (on_model)
                                                           at each place: do what it says          (on_place)

So a forward that no mix asked for is never changed, and a recomputation under activation checkpointing, in backward,
still finds the note of its forward. Hooks are functions and what they need lies in the modules' `__dict__`, as `attach`
does it: state_dict, named_modules, copies and eval outputs stay as they were, and policies go on and off freely.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from autodropout.attach.guard import forget_compiled, unwrap
from autodropout.training.augment.mixing import beta, blend, check, one_hot, partners

KEY = "_autodropout_mix"  # in module.__dict__: (Exchange, number of the place)
MOMENTS_EPSILON = 1e-5

Change = Callable[[Tensor, Tensor, Tensor], Tensor]  # (what comes in, partners, how much is kept) -> what goes in


class Exchange:
    """What the places of one model share. A note is the partners, (N,), and for each place what it keeps."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self.asked: tuple[Tensor, tuple[Tensor, ...]] | None = None  # for the next forward
        self.now: tuple[Tensor, tuple[Tensor, ...]] | None = None  # for the forward under way, or the last one

    @property
    def taken(self) -> bool:
        return self.asked is None


def on_model(module: nn.Module, args: Any) -> None:
    """Forward pre-hook of the model as a whole."""
    exchange: Exchange = module.__dict__[KEY][0]
    exchange.now, exchange.asked = exchange.asked, None


def on_place(module: nn.Module, args: Any) -> Any:
    """Forward pre-hook of a place."""
    exchange, number = module.__dict__[KEY]
    if exchange.now is None:
        return None
    order, keeps = exchange.now
    return (exchange.change(args[0], order, keeps[number]), *args[1:])


class _Hidden:
    """Puts an exchange on a model and takes it off."""

    def __init__(self, model: nn.Module, places: tuple[str, ...], change: Change) -> None:
        model = unwrap(model)
        modules = dict(model.named_modules())
        unknown = [name for name in places if name not in modules or not name]
        if unknown or not places or len(set(places)) < len(places):
            raise ValueError(f"places must name modules inside the model, got {places!r}")
        if any(KEY in module.__dict__ for module in modules.values()):
            raise ValueError("this model is mixed inside already: remove() that mix first")
        self._hosts = (model, *(modules[name] for name in places))
        self._exchange = Exchange(change)
        self._handles: list[RemovableHandle] = []
        self._on = True  # the compiler cannot look at handles
        for number, host in enumerate(self._hosts):
            host.__dict__[KEY] = (self._exchange, number - 1)
            # Before a policy's own pre-hooks: a drop may carry the undropped tensor along, and that must be mixed too.
            self._handles.append(host.register_forward_pre_hook(on_place if number else on_model, prepend=True))
        forget_compiled()

    def _forward(self, model: nn.Module, images: Tensor, order: Tensor, keeps: tuple[Tensor, ...]) -> Tensor:
        if not self._on:
            raise RuntimeError("this mix was removed from its model")
        self._exchange.asked = (order, keeps)
        logits: Tensor = model(images)
        if not self._exchange.taken:
            self._exchange.asked = None
            raise ValueError("the model that was called is not, and does not contain, the model this mix was made for")
        return logits

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        for host in self._hosts:
            host.__dict__.pop(KEY, None)
        self._on = False
        forget_compiled()


class ManifoldMixup(_Hidden):
    """Mixup of the images or of the input of one of the places, drawn anew for each batch.

    The draw stays on the device: every place blends, with its partner's weight 0 where it is not the one drawn.

    Args:
        classes: how many.
        model: the bare model; what is called later may be it compiled, or wrapped for data parallelism.
        places: names of modules; the authors mix the images or what enters the second or third stage of a ResNet.
        alpha: of the weight's Beta(alpha, alpha); the authors' 2.
        per_sample: a weight for each image instead of one for the batch.
    """

    def __init__(
        self, classes: int, model: nn.Module, places: tuple[str, ...], alpha: float = 2.0, per_sample: bool = False
    ) -> None:
        check(classes, alpha)
        super().__init__(model, places, blend)
        self.classes, self.places, self.alpha, self.per_sample = classes, places, alpha, per_sample

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        order = partners(images)
        keep = beta(self.alpha, len(images) if self.per_sample else 1, images.device)  # (N,) or (1,)
        drawn = torch.randint(len(self.places) + 1, (), device=images.device)
        keeps = [torch.where(drawn == number, keep, 1) for number in range(len(self.places) + 1)]
        target = blend(one_hot(labels, self.classes), order, keep)
        return self._forward(model, blend(images, order, keeps[0]), order, tuple(keeps[1:])), target


class MoEx(_Hidden):
    """Each image takes on its partner's moments: mean and deviation over the channels, at each position of a map.

    Args:
        classes: how many.
        model: the bare model, as for ManifoldMixup.
        place: name of a module; the authors' is the first stage of a ResNet, so the exchange comes after the stem.
        weight: of an image's own label; the authors' 0.5 on CIFAR, 0.9 on ImageNet.
        probability: of exchanging in a batch; the authors' 0.25 on CIFAR, 1 on ImageNet.
    """

    def __init__(
        self, classes: int, model: nn.Module, place: str, weight: float = 0.5, probability: float = 0.25
    ) -> None:
        check(classes, probability=probability)
        if not 0 <= weight <= 1:
            raise ValueError(f"weight must lie in [0, 1], got {weight}")
        super().__init__(model, (place,), exchange_moments)
        self.classes, self.place, self.weight, self.probability = classes, place, weight, probability

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        order = partners(images)
        own = (torch.rand(1, device=images.device) >= self.probability).float()  # (1,): 1 when nothing is exchanged
        target = blend(one_hot(labels, self.classes), order, own + (1 - own) * self.weight)
        return self._forward(model, images, order, (own,)), target


def exchange_moments(h: Tensor, order: Tensor, own: Tensor) -> Tensor:
    """`h` (N, C, H, W), each position normalized over its channels and given the partner's mean and deviation.

    In float32 whatever the dtype; `h` itself where `own` is 1.
    """
    wide = h.float()
    mean = wide.mean(1, keepdim=True)  # (N, 1, H, W)
    deviation = (wide.var(1, keepdim=True) + MOMENTS_EPSILON).sqrt()
    moved = (wide - mean) / deviation * deviation[order] + mean[order]
    return torch.where(own > 0, h, moved.to(h.dtype))


def stages(model: nn.Module, example: Tensor) -> tuple[str, ...]:
    """Names of a ConvNet's stages in forward order: ResNet's layer1, ...; EfficientNet's features.1, ...

    A stage is an outermost module that takes one map, gives one map of at least half its size, and has at least two
    convolutions. Found by one forward in eval mode; the model is left as it was.
    """
    model = unwrap(model)
    called: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    names = {module: name for name, module in model.named_modules()}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if len(args) == 1 and all(isinstance(value, Tensor) and value.dim() == 4 for value in (args[0], output)):
            called.append((names[module], tuple(args[0].shape[2:]), tuple(output.shape[2:])))

    modes = [(module, module.training) for module in model.modules()]
    handles = [module.register_forward_hook(note) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            model(example)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode

    def is_stage(name: str, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        convolutions = sum(isinstance(module, nn.Conv2d) for module in model.get_submodule(name).modules())
        halved = all(2 * small >= large for small, large in zip(after, before, strict=True))
        return bool(name) and halved and convolutions >= 2

    found = [name for name, before, after in called if is_stage(name, before, after)]
    inner = {name for name in found for other in found if name.startswith(f"{other}.")}
    return tuple(name for name in found if name not in inner)
