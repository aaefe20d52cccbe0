"""The controller's network: a causal Transformer that writes a token string, one decision after another.

The paper, "Model Architecture and Search Algorithm" and "Hyper-parameters of Experiments": 4 layers, width 128, 4 heads
of 32, inner width 32, every weight drawn from N(0, 0.02). 400,000 parameters or so: it runs on one CPU thread.

What the paper leaves open, and what we do:
1. Normalization comes first in each sublayer and once more before the heads; gains start at 1, biases at 0.
2. Every (position, value) has its own input embedding, and every position its own output head, since the values of
   different positions have nothing in common. Positions are embedded too.
3. The feed-forward nonlinearity is ReLU. There is no dropout.

`sample` keeps keys and values of earlier positions, so a string of T tokens costs T steps of one position each;
`forward` sees whole strings at once and is what learning differentiates. Tests hold the two together.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = 4
WIDTH = 128
HEADS = 4
HEAD_WIDTH = 32
INNER = 32
DEVIATION = 0.02

NEVER = -1e9
"""The logit of a value that a position does not have: probability exactly 0, and no NaN in an entropy's gradient."""


class Cache:
    """Keys and values of one layer for the positions written so far."""

    def __init__(self, like: Tensor, count: int, positions: int) -> None:
        self.keys = like.new_empty((count, HEADS, positions, HEAD_WIDTH))
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds one position, (N, heads, 1, head width) each; returns all of them so far."""
        self.keys[:, :, self.length] = key[:, :, 0]
        self.values[:, :, self.length] = value[:, :, 0]
        self.length += 1
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class Block(nn.Module):
    """Attention and feed-forward, each added to what it read."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * HEADS * HEAD_WIDTH)
        self.merge = nn.Linear(HEADS * HEAD_WIDTH, WIDTH)
        self.inner_norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, INNER)
        self.outer = nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """Whole strings, (N, T, width), or with a cache their next position, (N, 1, width)."""
        count, length, _ = x.shape
        projected = self.project(self.attention_norm(x)).view(count, length, 3, HEADS, HEAD_WIDTH)
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # (N, heads, T, head width) each
        if cache is not None:
            key, value = cache.append(key, value)
        context = F.scaled_dot_product_attention(query, key, value, is_causal=cache is None)
        x = x + self.merge(context.transpose(1, 2).reshape(count, length, HEADS * HEAD_WIDTH))
        update: Tensor = self.outer(F.relu(self.inner(self.inner_norm(x))))
        return x + update


class ControllerNetwork(nn.Module):
    """P(tokens) = product over positions of P(token | tokens before it); `choices[t]` values at position t."""

    def __init__(self, choices: Sequence[int], seed: int) -> None:
        super().__init__()
        self.choices = tuple(choices)
        positions, most = len(choices), max(choices)
        with torch.device("meta"):  # filled below from a generator of our own: torch's default one is left alone
            self.embed = nn.Embedding(1 + sum(choices), WIDTH)  # the first row stands before the first token
            self.position = nn.Parameter(torch.empty(positions, WIDTH))
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Parameter(torch.empty(positions, most, WIDTH))
            self.head_bias = nn.Parameter(torch.empty(positions, most))
        self.to(torch.float32).to_empty(device="cpu")
        self._initialize(torch.Generator().manual_seed(seed))
        counts = torch.tensor(self.choices, device="cpu")
        self.register_buffer("offsets", 1 + counts.cumsum(0) - counts, persistent=False)  # (T,) into `embed`
        self.register_buffer("absent", torch.arange(most, device="cpu") >= counts[:, None], persistent=False)
        self.offsets: Tensor
        self.absent: Tensor

    @torch.no_grad()
    def _initialize(self, generator: torch.Generator) -> None:
        gains = {id(module.weight) for module in self.modules() if isinstance(module, nn.LayerNorm)}
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif id(parameter) in gains:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, DEVIATION, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """The log-probability of every value given the tokens before it, (N, T) -> (N, T, most values)."""
        before = F.pad(tokens[:, :-1] + self.offsets[:-1], (1, 0))  # (N, T), a 0 in front
        x = self.embed(before) + self.position  # (N, T, width)
        for block in self.blocks:
            x = block(x)
        logits = torch.einsum("ntw,tvw->ntv", self.norm(x), self.head) + self.head_bias
        return logits.masked_fill(self.absent, NEVER).log_softmax(-1)

    @torch.no_grad()
    def sample(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Token strings for numbers in [0, 1), one per string and position; and their log-probabilities.

        (N, T) float64 -> (N, T) int64, (N,) float64. Each token is read off its cumulative distribution, in float64.
        """
        count, positions = uniforms.shape
        caches = [Cache(self.position, count, positions) for _ in self.blocks]
        tokens = torch.empty(count, positions, dtype=torch.int64, device="cpu")
        log_prob = torch.zeros(count, dtype=torch.float64, device="cpu")
        before = torch.zeros(count, dtype=torch.int64, device="cpu")
        for t, values in enumerate(self.choices):
            x = (self.embed(before) + self.position[t])[:, None]  # (N, 1, width)
            for block, cache in zip(self.blocks, caches, strict=True):
                x = block(x, cache)
            logits = F.linear(self.norm(x)[:, 0], self.head[t, :values], self.head_bias[t, :values])
            log_probs = logits.double().log_softmax(-1)  # (N, values)
            reached = log_probs.exp().cumsum(-1)[:, :-1]  # without the last: rounding must not lead past it
            token = (reached <= uniforms[:, t, None]).sum(-1)
            log_prob += log_probs.gather(-1, token[:, None])[:, 0]
            tokens[:, t] = token
            before = token + self.offsets[t]
        return tokens, log_prob

    def log_prob(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        """The log-probability of whole strings, (N,), from what `forward` returned for them."""
        return log_probs.gather(-1, tokens[..., None])[..., 0].sum(-1)
