"""K children of one architecture side by side: each parameter of all of them in one tensor, (K, ...).

    weights, a leaf for each parameter  --vmap(forward)-->  a loss for each child  --grad of their sum-->  gradients
       ^                                                                                                     |
       +------------- clipped Adam, every child by its own norm, learning rate and number of steps <---------+

The gradient of the sum of K losses is K children's gradients, since no child's loss depends on another's weights. All
operations are K times as large and as many as one child's, which is what a GPU wants of small models.

Every step is done in place and asks the host nothing, so that it can be captured in a CUDA graph (`graphed.py`). The
next children are copied into the same tensors, and the same graph trains them.

The cost of a step of Adam, in bytes of memory a parameter: 12 read and 12 written for the weight and its two moments,
and the gradient read twice, for the norm and for the update: 32 in float32. In bfloat16 matrices have copies that
products use, forward and backward, and that the update writes: gradients are of 2 bytes then, and it is 24 + 2 * 2 + 2
= 30. Were weights cast by autocast in every forward, and their gradients back, it would be 32 + 6 + 6 = 44. The values
are the same.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from autodropout.models.spare import Embedding, Linear, spare
from autodropout.patterns.switch import on_gpu

BETAS, EPSILON = (0.9, 0.999), 1e-8  # torch's defaults, which ClippedAdam has too


class Stack:
    """The parameters of K children of one model.

    `weights` are those that learn, float32; `leaves` what forward uses and gradients are taken of: the very same
    memory, but for linear layers and embeddings in bfloat16, of which they are copies. `averages` are a second set of
    float32.

    Matrices of linear layers lie in memory as their gradients come out of a product: by input, then by output. Where
    there are copies they have spare rows and columns, if the layer knows how to deal with them (`models/spare.py`).
    """

    def __init__(self, model: nn.Module, children: int, device: torch.device, *, half: bool) -> None:
        linear, embeddings = _parameters(model, nn.Linear), _parameters(model, nn.Embedding)
        widened = _parameters(model, (Linear, Embedding)) if half else set()
        self.children = children
        self.weights: dict[str, Tensor] = {}
        self.copies: dict[str, Tensor | None] = {}
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        for name, parameter in model.named_parameters():
            shape = list(parameter.shape)
            transposed = id(parameter) in linear and parameter.dim() == 2
            if parameter.dim() == 2 and id(parameter) in widened:
                shape = [shape[0] + (spare(shape[0]) if transposed else 0), shape[1] + spare(shape[1])]
            weight = torch.zeros((children, *(reversed(shape) if transposed else shape)), device=device)
            self.weights[name] = weight.mT if transposed else weight  # (K, ...)
            copied = half and id(parameter) in linear | embeddings
            self.copies[name] = self.weights[name].to(torch.bfloat16) if copied else None
        self.averages = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.leaves = {
            name: (weight if (copy := self.copies[name]) is None else copy).detach().requires_grad_()
            for name, weight in self.weights.items()
        }

    @torch.no_grad()
    def put(self, number: int, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Give a child these weights."""
        own = self.child(number)
        for name, parameter in parameters:
            own[name].copy_(parameter)
            if (copy := self.copies[name]) is not None:
                copy[number].copy_(self.weights[name][number])

    def child(self, number: int) -> dict[str, Tensor]:
        """One child's weights by name, as views."""
        inside = {name: tuple(map(slice, shape)) for name, shape in self._shapes.items()}
        return {name: weight[number][inside[name]] for name, weight in self.weights.items()}

    @torch.no_grad()
    def average(self, number: Tensor) -> None:
        """Take the present weights into their mean, as the `number`th (0, 1, ...) since it began; a 0-d tensor."""
        share = 1.0 / (number + 1.0)
        for name, weight in self.weights.items():
            self.averages[name].lerp_(weight, share.to(weight.dtype))


def _parameters(model: nn.Module, kind: type[nn.Module] | tuple[type[nn.Module], ...]) -> set[int]:
    """Their ids, of all modules of a kind."""
    return {id(own) for module in model.modules() if isinstance(module, kind) for own in module.parameters()}


class StackedAdam:
    """What `ClippedAdam` does, for each child of a stack as if it were alone.

    A child's gradient is clipped by the norm of its own; where that is not finite, that child's weights, moments and
    number of steps stay as they are.
    """

    def __init__(self, stack: Stack, clip: float) -> None:
        self.stack, self.clip = stack, clip
        self.first = {name: torch.zeros_like(weight) for name, weight in stack.weights.items()}
        self.second = {name: torch.zeros_like(weight) for name, weight in stack.weights.items()}
        device = next(iter(stack.weights.values())).device
        self.taken = torch.zeros(stack.children, dtype=torch.float64, device=device)  # steps

    def reset(self) -> None:
        for moment in (*self.first.values(), *self.second.values(), self.taken):
            moment.zero_()

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], lr: Tensor) -> Tensor:
        """A step down with gradients of the leaves and learning rates of (K,); (K,) booleans: whose was left out."""
        weights = self.stack.weights
        # A compiler may cut gradients out of larger products: those are copied.
        flat = {name: _flat(gradient, weights[name]).contiguous() for name, gradient in gradients.items()}  # (K, size)
        norm = norms(list(flat.values()))  # (K,)
        goes = norm.isfinite()
        factor = (self.clip / (norm + 1e-6)).clamp(max=1.0)  # as clip_grad_norm_ has it
        self.taken += goes
        correction1, correction2 = (1.0 - beta**self.taken for beta in BETAS)
        pace, root = (lr / correction1).float(), correction2.sqrt().float()
        scalars = [value[:, None] for value in (goes, factor, pace, root)]  # (K, 1)
        for name, gradient in flat.items():
            weight, copy = weights[name], self.stack.copies[name]
            flat_copy = None if copy is None else _flat(copy, weight)
            moments = _flat(self.first[name], weight), _flat(self.second[name], weight)
            descend(_flat(weight, weight), flat_copy, *moments, gradient, *scalars)
        return ~goes


def _flat(value: Tensor, like: Tensor) -> Tensor:
    """(K, ...) -> (K, size), in the order in which `like` lies in memory: no copy where the two lie alike."""
    return (value if like.is_contiguous() else value.mT).flatten(1)


def norms(gradients: Sequence[Tensor]) -> Tensor:
    """Of all gradients together, for each child: tensors of (K, size) -> (K,)."""
    if on_gpu(gradients[0]):
        from autodropout.training import adam_kernel

        return adam_kernel.norms(gradients)
    squares = [gradient.float().square().sum(1) for gradient in gradients]
    return torch.stack(squares).sum(0).sqrt()


def descend(
    weight: Tensor, copy: Tensor | None, first: Tensor, second: Tensor, gradient: Tensor, goes: Tensor, factor: Tensor,
    pace: Tensor, root: Tensor,
) -> None:  # fmt: skip
    """Adam's update of one parameter of all children, in place: (K, size), with scalars of (K, 1)."""
    if on_gpu(weight):
        from autodropout.training import adam_kernel

        assert copy is None or copy.dtype == torch.bfloat16
        adam_kernel.descend(weight, copy, first, second, gradient, goes, factor, pace, root, BETAS, EPSILON)
        return
    clipped = gradient.float() * factor
    mean = torch.lerp(first, clipped, 1.0 - BETAS[0])
    square = BETAS[1] * second + (1.0 - BETAS[1]) * clipped * clipped
    new = torch.where(goes, weight - pace * mean / (square.sqrt() / root + EPSILON), weight)
    first.copy_(torch.where(goes, mean, first))
    second.copy_(torch.where(goes, square, second))
    weight.copy_(new)
    if copy is not None:
        copy.copy_(new)
