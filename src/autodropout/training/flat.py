"""A model's values side by side in one tensor, and their moving average: a kernel where there would be one a tensor.

    flat = Flat(model, half=True)          # before an optimizer, compiled code or a captured graph knows the parameters
    optimizer = SGD(flat.masters, ...)
    flat.refresh(); loss(model).backward(); flat.take_gradients(); optimizer.step()         # a step

A small network's weights are many short tensors. What is done to each value alone can be done to all at once, if they
lie together. What lies in the model afterwards are views, of the same shapes and memory formats.

In bfloat16 autocast casts the weights of a convolution or a linear layer in every forward, and their gradients back in
every backward: two kernels a layer. Here these layers have weights of bfloat16, which are written all at once from the
float32 that learn, as are the gradients of those. The values are the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

ALIGNED = 64  # values: a tensor begins where the allocator might have put it, so that kernels may read it widely


class Flat:
    """Where a model's floating-point values lie.

    `values` are all of them, (values,), with zeros between tensors: parameters and statistics, float32. `named` are the
    same by name, as in `state_dict`, `masters` the parameters among them, which an optimizer changes.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, *, half: bool = False) -> None:
        """With `half`, what autocast would cast to bfloat16 is in bfloat16."""
        followed = dict(model.named_parameters()) | dict(model.named_buffers())
        followed = {name: value for name, value in followed.items() if value.is_floating_point()}
        assert all(value.dtype == torch.float32 for value in followed.values())
        cast = _cast_by_autocast(model) if half else set()
        names = sorted(followed, key=lambda name: id(followed[name]) not in cast)  # those that are cast come first
        sizes = {name: -(-followed[name].numel() // ALIGNED) * ALIGNED for name in names}
        copied = sum(sizes[name] for name in names if id(followed[name]) in cast)
        self.values = torch.zeros(sum(sizes.values()), device=next(model.parameters()).device)
        self._halves = self.values[:copied].to(torch.bfloat16)
        self.named: dict[str, Tensor] = {}
        self.masters: list[nn.Parameter] = []
        self._copies: list[Tensor] = []  # the model's own, in bfloat16
        self._gradients: list[Tensor] = []  # of their masters
        start = 0
        for name, size in sizes.items():
            value = master = followed[name]
            view = self.named[name] = self.values.as_strided(value.shape, value.stride(), start).copy_(value)
            if id(value) in cast:
                master = nn.Parameter(view)
                master.grad = torch.zeros_like(view)
                self._copies.append(value)
                self._gradients.append(master.grad)
                view = self._halves.as_strided(value.shape, value.stride(), start)
            value.data = view
            if isinstance(master, nn.Parameter):
                self.masters.append(master)
            start += size

    @torch.no_grad()
    def refresh(self) -> None:
        """Let the model's copies be what their masters are now."""
        if self._copies:
            self._halves.copy_(self.values[: len(self._halves)])

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Give the masters the gradients of their copies."""
        gradients = [copy.grad for copy in self._copies if copy.grad is not None]
        assert len(gradients) == len(self._copies), "a backward pass reaches every weight"
        if gradients:
            torch._foreach_copy_(self._gradients, gradients)


def _cast_by_autocast(model: nn.Module) -> set[int]:
    """The ids of the parameters that are used by a convolution or a linear layer, and in no other way."""
    plain = {nn.Conv2d.forward, nn.Linear.forward}  # a layer of another kind may compute with its weights before
    layers = [module for module in model.modules() if type(module).forward in plain]
    return {id(value) for layer in layers for value in layer.parameters(recurse=False)}


def follow(averages: Tensor, values: Tensor, share: Tensor) -> None:
    """`MovingAverage.update`, of one tensor. Compiled, it reads and writes each value once."""
    averages.add_((values - averages).mul_(share))


class FlatAverage:
    """`MovingAverage` for a model that is flat. The share of each update is the caller's to know."""

    def __init__(self, values: Tensor, step: Callable[[Tensor, Tensor, Tensor], None] = follow) -> None:
        """With `follow`, or what it was compiled to."""
        self.averages = values.clone()
        self._values, self._step = values, step

    def follow(self, share: Tensor) -> None:
        """Go `share`, 0-d, of the way to the model's present values."""
        self._step(self.averages, self._values, share)

    def restart(self) -> None:
        """Be the average of the model as it is now, and of nothing before."""
        self.averages.copy_(self._values)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averages; afterwards its own values again."""
        own = self._values.clone()
        self._values.copy_(self.averages)
        try:
            yield
        finally:
            self._values.copy_(own)
