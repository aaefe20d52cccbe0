"""Adam with gradients clipped to a norm, which leaves the weights alone where a gradient is not finite.

A policy may drop the whole skip input of a word. What its normalization is then given is small, and it makes the
gradient larger by as much; some words meet that in many layers of one pass. On the 16-layer Transformer-XL with fresh
weights, 12 of 24 random policies at rate 0.2 gave a first gradient of norm above 1,000, 6 of them one that is not
finite; all 12 drop whole words from a skip input, and their losses are ordinary (`benchmarks/gradients.py`,
`results/gradients.json`). Clipping deals with large gradients; a step with one that is not finite is left out, as loss
scaling in float16 has it, rather than ending a training that may go well.
"""

from torch import Tensor, nn
from torch.optim import Adam


class ClippedAdam:
    """`step(loss)` does a step of Adam; nothing in it waits for the device."""

    def __init__(self, model: nn.Module, lr: float, clip: float) -> None:
        """For a model that is on its device already; `clip` is the greatest norm of its gradient."""
        self.parameters = list(model.parameters())
        self.clip = clip
        self.adam = Adam(self.parameters, lr, fused=True)  # fused: it asks the device, not the host, whether to step

    def step(self, loss: Tensor) -> Tensor:
        """Backward, and a step down: a 0-d tensor, 1 where it was left out, else 0."""
        self.adam.zero_grad()
        loss.backward()
        left_out = nn.utils.clip_grad_norm_(self.parameters, self.clip).isfinite().logical_not()
        self.adam.found_inf = left_out.float()  # type: ignore[attr-defined]  # by which loss scaling leaves out steps
        self.adam.step()
        return left_out
