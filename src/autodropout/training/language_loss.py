"""What a step of a language model minimizes, and how a text is judged."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodropout.models.transformer_xl import TransformerXL
from autodropout.training.distributed import total, world
from autodropout.training.streams import IGNORED, Pages


def cross_entropy(model: TransformerXL, hidden: Tensor, targets: Tensor) -> Tensor:
    """Nats a word, in the mean."""
    return F.cross_entropy(model.logits(hidden).float().flatten(0, 1), targets.flatten())


class Objective(nn.Module):
    """What a step minimizes, in two parts: cross-entropy in nats a word, and the penalties on hidden states.

    `loss` takes the model, what its softmax is given, (N, T, C), and the words that were right, (N, T).
    """

    def __init__(
        self,
        model: TransformerXL,
        state_value: float,
        state_difference: float,
        loss: Callable[[TransformerXL, Tensor, Tensor], Tensor] = cross_entropy,
    ) -> None:
        super().__init__()
        self.model = model
        self.state_value = state_value
        self.state_difference = state_difference
        self.loss = loss

    def forward(self, tokens: Tensor, targets: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        hidden, memory = self.model(tokens, memory)  # (N, T, C)
        dropped = self.model.softmax_dropout(hidden)
        loss = self.loss(self.model, dropped, targets)
        penalty = self.state_value * mean_square(dropped) + self.state_difference * mean_square(hidden.diff(dim=1))
        return loss, penalty, memory


def mean_square(h: Tensor) -> Tensor:
    return h.float().square().mean()


@torch.no_grad()
def log_loss(model: TransformerXL, pages: Pages, memory: int) -> float:
    """Nats a word of a text, read in eval mode with a memory of so many words. The ranks share the rows.

    Raises:
        FloatingPointError: it is not finite.
    """
    training = model.training
    model.eval()
    rank, size = world().rank, world().size
    remembered: Tensor | None = None
    nats = torch.zeros((), dtype=torch.float64, device=pages.tokens.device)
    mine = [part[:, rank::size] for part in (pages.tokens, pages.targets)]  # (segments, rows, segment)
    for tokens, targets in zip(*mine, strict=True) if mine[0].numel() else ():  # there may be more ranks than rows
        hidden, remembered = model(tokens, remembered, memory)  # (rows, T, C)
        logits = model.logits(hidden).float().flatten(0, 1)
        nats += F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    model.train(training)
    value = total(nats).item() / pages.predicted
    if not math.isfinite(value):
        raise FloatingPointError(f"the loss on a text to be judged by is {value}")
    return value


def perplexity(nats: float) -> float:
    """exp(nats a word), which is kept finite: a model so bad will not be told from a worse one."""
    return math.exp(min(nats, 700.0))
