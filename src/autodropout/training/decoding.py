"""Beam search: the translation a model finds most probable, as far as a few hypotheses at a time can tell.

    translations, scores = beam_search(model, source, start=1, end=2, never=(0, 1), beam=Beam(size=4, alpha=0.6))

A translation's score is the log-probability of its tokens, the end token counted, over `((5 + length) / 6) ** alpha`
(Wu et al. 2016). At every step each hypothesis may end, and the `size` best continuations go on; one as long as the
limit must end. A sentence is done when no continuation can beat its best ended hypothesis, so that stopping early
changes nothing. The paper does not describe its decoding: a beam of 4, alpha 0.6 and at most 50 tokens more than the
source are Vaswani et al.'s.

All sentences of a batch and all their hypotheses take a step together; keys and values of earlier steps are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor


class Rows(Protocol):
    """What a model keeps of translations under way, one a row."""

    def repeated(self, times: int) -> Self:
        """Each row several times, one after the other."""
        ...

    def reordered(self, rows: Tensor) -> Self:
        """Each row goes on from the tokens of row `rows[i]`, which translates the same source."""
        ...


State = TypeVar("State", bound=Rows)


class Translator(Protocol[State]):
    """A model that can be asked for one token after the other."""

    def start(self, source: Tensor) -> State:
        """Begin the translations of (N, S) tokens."""
        ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits (N, vocabulary) for what follows the tokens (N,), and the state to go on with."""
        ...


@dataclass(frozen=True, slots=True)
class Beam:
    """How widely and how far to search."""

    size: int = 4  # hypotheses of a sentence that go on at each step
    alpha: float = 0.6  # 0: no penalty for short translations
    extra: int = 50  # a translation has at most so many tokens more than its source

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a beam's size must be at least 1, got {self.size}")
        if not self.alpha >= 0.0:
            raise ValueError(f"a beam's alpha must be at least 0, got {self.alpha}")
        if self.extra < 0:
            raise ValueError(f"a beam's extra must be at least 0, got {self.extra}")

    def penalty(self, length: Tensor | int) -> Tensor:
        return ((5.0 + torch.as_tensor(length)) / 6.0) ** self.alpha


@torch.no_grad()
def beam_search(
    model: Translator[State],
    source: Tensor,  # (N, S)
    limits: Tensor,  # (N,)
    *,
    start: int,
    end: int,
    never: Sequence[int] = (),
    beam: Beam,
) -> tuple[list[list[int]], Tensor]:
    """The best translation of each row, without start and end tokens; and the scores, (N,).

    Args:
        model: in eval mode.
        source: tokens, filled up with padding.
        limits: the most tokens of each translation, the end token counted; at least 1.
        start: the token every translation begins from.
        end: the one that ends it.
        never: tokens that no translation has, such as padding.
        beam: how widely to search.
    """
    sentences, size = len(source), beam.size
    state = model.start(source).repeated(size)
    row = torch.arange(sentences, device=source.device)
    search = _Search(sentences, size, limits, beam, source.device)
    last = torch.full((sentences * size,), start, device=source.device)
    for length in range(1, int(limits.max()) + 1):  # of a hypothesis that ends in this step
        logits, state = model.step(last, state)
        log = logits.float().log_softmax(-1).unflatten(0, (sentences, size))  # (N, size, vocabulary)
        search.end(log[:, :, end], length)
        if search.is_done():
            break
        log[:, :, [end, *never]] = -torch.inf
        parent, token = search.go_on(log)  # (N, size) each
        last = token.flatten()
        state = state.reordered((row[:, None] * size + parent).flatten())
    return search.best()


class _Search:
    """The hypotheses of all sentences, and the best that has ended of each."""

    def __init__(self, sentences: int, size: int, limits: Tensor, beam: Beam, device: torch.device) -> None:
        self.beam, self.size = beam, size
        self.limits = limits
        self.tokens = torch.empty((sentences, size, 0), dtype=torch.int64, device=device)  # (N, size, T)
        self.total = torch.full((sentences, size), -torch.inf, device=device)  # log-probability
        self.total[:, 0] = 0.0  # at first all hypotheses are the same
        longest = int(limits.max())
        self.ended = torch.zeros((sentences, longest), dtype=torch.int64, device=device)
        self.ended_length = torch.zeros(sentences, dtype=torch.int64, device=device)
        self.score = torch.full((sentences,), -torch.inf, device=device)

    def end(self, log: Tensor, length: int) -> None:
        """Let every hypothesis end, (N, size) being its log-probability to do so; those at their limit have to."""
        scores, which = ((self.total + log) / self.beam.penalty(length).item()).max(1)  # (N,) each
        better = scores > self.score
        chosen = self.tokens[torch.arange(len(which), device=which.device), which]  # (N, T)
        held = self.ended[:, : length - 1]
        held.copy_(torch.where(better[:, None], chosen, held))
        self.ended_length = torch.where(better, length - 1, self.ended_length)
        self.score = torch.where(better, scores, self.score)
        self.total = self.total.masked_fill((self.limits <= length)[:, None], -torch.inf)

    def is_done(self) -> bool:
        """Whether every sentence's best ended hypothesis beats the best that any other could still become."""
        hope = self.total.max(1).values / self.beam.penalty(self.limits)  # log-probabilities fall, penalties rise
        return bool((hope <= self.score).all())

    def go_on(self, log: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the best continuations: the hypothesis each comes from, and its new token."""
        vocabulary = log.shape[-1]
        together = (self.total[:, :, None] + log).flatten(1)  # (N, size * vocabulary)
        self.total, index = together.topk(self.size, 1)
        parent, token = index // vocabulary, index % vocabulary
        held = self.tokens.gather(1, parent[:, :, None].expand(-1, -1, self.tokens.shape[2]))
        self.tokens = torch.cat((held, token[:, :, None]), 2)
        return parent, token

    def best(self) -> tuple[list[list[int]], Tensor]:
        lengths: list[int] = self.ended_length.tolist()
        rows: list[list[int]] = self.ended.tolist()
        return [tokens[:length] for tokens, length in zip(rows, lengths, strict=True)], self.score
