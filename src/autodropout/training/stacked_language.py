"""Forward passes of K language models at once: `Objective` and the reading of a page under `torch.vmap`.

    weights, rows of the words read, memory (K, ...), a seed of masks, tokens and rates for each child; words for all
        -> loss (K,), penalty (K,), memory (K, ...)

The model itself serves as a template: its own parameters do not matter, and its drops are given one child's tokens,
rate and seed for the time of a call, tensors that `vmap` sees through. A policy is thus an input, and no random number
comes from a generator: `vmap` would refuse that.
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from autodropout.layers import Drop
from autodropout.models.spare import Embedding, padded
from autodropout.models.transformer_xl import TransformerXL
from autodropout.training.language_loss import Objective
from autodropout.training.noise import drops
from autodropout.training.streams import IGNORED
from autodropout.training.word_nats import word_nats

EMBEDDING = "model.embedding.weight"  # among the objective's parameters


class StackedLanguage:
    """Pure functions of stacked tensors, to be compiled.

    Args:
        objective: what one child minimizes, its model on the device.
        sites: the drops of a live attachment on that model, by which policies act.
        evaluation_memory: words.
    """

    def __init__(self, objective: Objective, sites: list[Drop], evaluation_memory: int) -> None:
        model: TransformerXL = objective.model
        self.objective = objective
        self.page = Page(model, evaluation_memory)
        self._sites = sites
        self._drops = drops(model)
        model.embedding = self._embedding = LookedUp(model.embedding)
        for drop in self._drops:
            drop.rate = drop.rate.to(model.embedding.weight.device)

    def losses(
        self,
        weights: Mapping[str, Tensor],
        rows: Tensor,
        memory: Tensor,
        tokens: Tensor,
        rates: Tensor,
        noise: Tensor,
        words: Tensor,
        targets: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of a training step.

        Args:
            weights: (K, ...), by the names of the objective's parameters. The gradient of the embedding's is that of
                the softmax alone.
            rows: (K, N, T, C), of each child's embedding those of the words: their gradient is its other part.
            memory: (K, layers, N, M, C).
            tokens: (sites, K, 4), int32; by site first, so that what a site's kernel reads lies side by side.
            rates: (sites, K).
            noise: (K,), int64.
            words, targets: (N, T).

        Returns:
            Cross-entropies, (K,), penalties, (K,), and the new memory, in the old one's type.
        """

        def of_child(
            weights: dict[str, Tensor], rows: Tensor, memory: Tensor, tokens: Tensor, rates: Tensor, noise: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            self._embedding.rows = rows
            own = [(drop.tokens, drop.rate) for drop in self._sites]
            for number, drop in enumerate(self._sites):
                drop.tokens, drop.rate = tokens[number], rates[number]
            for drop in self._drops:
                drop.noise = noise
            loss, penalty, new = functional_call(self.objective, weights, (words, targets, memory))
            for drop, (own_tokens, own_rate) in zip(self._sites, own, strict=True):
                drop.tokens, drop.rate = own_tokens, own_rate
            for drop in self._drops:
                drop.noise = None
            self._embedding.rows = None
            return loss, penalty, new.to(memory.dtype)

        stacked: tuple[Tensor, Tensor, Tensor] = vmap(of_child, in_dims=(0, 0, 0, 1, 1, 0))(
            dict(weights), rows, memory, tokens, rates, noise
        )
        return stacked

    def nats(
        self, weights: Mapping[str, Tensor], memory: Tensor, words: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of one page, (K,), and the new memory."""

        def of_child(weights: dict[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
            read: tuple[Tensor, Tensor] = functional_call(self.page, weights, (words, targets, memory))
            return read

        stacked: tuple[Tensor, Tensor] = vmap(of_child)(dict(weights), memory)
        return stacked


class LookedUp(Embedding):
    """A model's embedding, unless it is given the rows of the words that it will be asked for.

    Then they have a gradient of their own (`word_rows.add_rows`), and are of float32 where the weights are copies.
    """

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__(embedding.num_embeddings, embedding.embedding_dim, _weight=embedding.weight)
        self.weight = embedding.weight  # the very same
        self.rows: Tensor | None = None

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words) if self.rows is None else self.rows[..., : self.embedding_dim]


def cross_entropy(model: TransformerXL, hidden: Tensor, targets: Tensor) -> Tensor:
    """`language_loss.cross_entropy` for children side by side.

    The weights come first in the product, so that their gradient comes out of one in the order of the embedding. As
    `F.linear` it would come out transposed under `vmap`, and be turned over at the cost of four passes.
    """
    table = model.embedding.weight  # (vocabulary, C, or some more)
    scores = table @ padded(hidden.flatten(0, -2), table.shape[-1]).mT  # (vocabulary, words)
    nats: Tensor = word_nats(scores, model.softmax_bias, targets.flatten())[0]
    return nats.mean()


class Page(nn.Module):
    """A page of a text: its nats, and what is remembered of it. Its parameters have the names of `Objective`'s."""

    def __init__(self, model: TransformerXL, memory: int) -> None:
        super().__init__()
        self.model, self.memory = model, memory

    def forward(self, words: Tensor, targets: Tensor, remembered: Tensor) -> tuple[Tensor, Tensor]:
        hidden, remembered = self.model(words, remembered, self.memory)  # (rows, T, C)
        logits = self.model.logits(hidden).float().flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum"), remembered
