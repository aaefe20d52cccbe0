"""Transformer for translation (Vaswani et al., "Attention Is All You Need", 2017), the model of the paper's IWSLT'14
and WMT'14 experiments (appendix "Machine Translation").

    source -> embed -> 6 x [self-attention, feed-forward] -----------------------------> memory
    target -> embed -> 6 x [self-attention, attention over memory, feed-forward] -> x softmax with the same embedding

`Transformer(vocabulary, TransformerSize())` is their base model. One matrix embeds source and target and is the
softmax's too, as the paper has it. As in the formulas of Vaswani et al., attention's projections have no biases, the
feed-forward's have. The model drops nothing by itself: policies and baselines are attached.

Departures from Vaswani et al.:
1. Normalization comes before each sub-layer and once at the end, as in the authors' later code, not after each sum.
   The paper's learning rate climbs to 1.6e-3, theirs to 7e-4, and the original order is the more fragile one (Xiong et
   al. 2020). `norm_first=False` has it.

Decoding goes token by token, keys and values kept: `state = model.start(source)`, then `model.step(tokens, state)`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSize:
    """What a Transformer consists of, but for its vocabulary; Transformer-Base as it is."""

    layers: int = 6  # of the encoder, and as many of the decoder
    width: int = 512
    heads: int = 8
    inner: int = 2048
    norm_first: bool = True  # False: normalize after each sum, as published

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "inner"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width < 1 or self.width % self.heads or self.width % 2:
            raise ValueError(f"width must be even and divide into {self.heads} heads, got {self.width}")


class Attention(nn.Module):
    """Several heads of attention, written out: the probabilities pass a module, so that a policy reaches them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.probabilities = nn.Identity()
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, source: Tensor, allowed: Tensor) -> Tensor:
        """What x, of shape (N, T, C), finds in the source, (N, S, C); `allowed` broadcasts to (N, heads, T, S)."""
        return self.read(x, self.key(source), self.value(source), allowed)

    def read(self, x: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
        """The same for keys and values that are known already, (N, S, C) each."""
        q, k, v = self._split(self.query(x)), self._split(key), self._split(value)  # (N, heads, T or S, C / heads)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (N, heads, T, S)
        # The lowest number, not -inf: a query that may read nothing reads everything evenly, instead of NaN.
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        found = self.probabilities(scores.softmax(-1)) @ v  # (N, heads, T, C / heads)
        output: Tensor = self.output(found.transpose(1, 2).flatten(2))  # (N, T, C)
        return output

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, inner)
        self.second = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(F.relu(self.first(x)))
        return y


class EncoderLayer(nn.Module):
    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.norm_first = size.norm_first
        self.attention = Attention(size.width, size.heads)
        self.attention_norm = nn.LayerNorm(size.width)
        self.feedforward = FeedForward(size.width, size.inner)
        self.feedforward_norm = nn.LayerNorm(size.width)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        if self.norm_first:
            y = self.attention_norm(x)
            x = x + self.attention(y, y, allowed)
            x = x + self.feedforward(self.feedforward_norm(x))
        else:
            x = self.attention_norm(x + self.attention(x, x, allowed))
            x = self.feedforward_norm(x + self.feedforward(x))
        return x


@dataclass(frozen=True, slots=True)
class Past:
    """What one decoder layer keeps of the tokens so far, and of the source: keys and values, heads side by side."""

    key: Tensor  # (N, T, C)
    value: Tensor
    memory_key: Tensor  # (N, S, C)
    memory_value: Tensor

    def grown(self, key: Tensor, value: Tensor) -> "Past":
        joined = torch.cat((self.key, key), 1), torch.cat((self.value, value), 1)
        return Past(*joined, self.memory_key, self.memory_value)

    def repeated(self, times: int) -> "Past":
        parts = (self.key, self.value, self.memory_key, self.memory_value)
        return Past(*(part.repeat_interleave(times, 0) for part in parts))

    def reordered(self, rows: Tensor) -> "Past":
        return Past(self.key[rows], self.value[rows], self.memory_key, self.memory_value)


class DecoderLayer(nn.Module):
    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.norm_first = size.norm_first
        self.attention = Attention(size.width, size.heads)
        self.attention_norm = nn.LayerNorm(size.width)
        self.cross_attention = Attention(size.width, size.heads)
        self.cross_attention_norm = nn.LayerNorm(size.width)
        self.feedforward = FeedForward(size.width, size.inner)
        self.feedforward_norm = nn.LayerNorm(size.width)

    def forward(self, x: Tensor, memory: Tensor, causal: Tensor, readable: Tensor) -> Tensor:
        if self.norm_first:
            y = self.attention_norm(x)
            x = x + self.attention(y, y, causal)
            x = x + self.cross_attention(self.cross_attention_norm(x), memory, readable)
            x = x + self.feedforward(self.feedforward_norm(x))
        else:
            x = self.attention_norm(x + self.attention(x, x, causal))
            x = self.cross_attention_norm(x + self.cross_attention(x, memory, readable))
            x = self.feedforward_norm(x + self.feedforward(x))
        return x

    def start(self, memory: Tensor) -> Past:
        """Before the first token."""
        key, value = self.cross_attention.key(memory), self.cross_attention.value(memory)
        return Past(key[:, :0], value[:, :0], key, value)

    def step(self, x: Tensor, past: Past, readable: Tensor) -> tuple[Tensor, Past]:
        """`forward` for one new token, (N, 1, C), after those in `past`."""
        y = self.attention_norm(x) if self.norm_first else x
        past = past.grown(self.attention.key(y), self.attention.value(y))
        everything = torch.ones((), dtype=torch.bool, device=x.device)
        x = self._norm_last(self.attention_norm, x + self.attention.read(y, past.key, past.value, everything))
        y = self.cross_attention_norm(x) if self.norm_first else x
        found = self.cross_attention.read(y, past.memory_key, past.memory_value, readable)
        x = self._norm_last(self.cross_attention_norm, x + found)
        y = self.feedforward_norm(x) if self.norm_first else x
        return self._norm_last(self.feedforward_norm, x + self.feedforward(y)), past

    def _norm_last(self, norm: nn.Module, total: Tensor) -> Tensor:
        normed: Tensor = total if self.norm_first else norm(total)
        return normed


@dataclass(frozen=True, slots=True)
class State:
    """Translations under way, one a row."""

    layers: tuple[Past, ...]
    readable: Tensor  # (N, 1, 1, S)

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self.layers[0].key.shape[1]

    def repeated(self, times: int) -> "State":
        """Each row several times, one after the other."""
        return State(tuple(past.repeated(times) for past in self.layers), self.readable.repeat_interleave(times, 0))

    def reordered(self, rows: Tensor) -> "State":
        """Each row goes on from the tokens of another, `rows[i]`, of the same source: what is kept of that stays."""
        return State(tuple(past.reordered(rows) for past in self.layers), self.readable)


class Transformer(nn.Module):
    """Source and target tokens to logits for the target's next tokens."""

    positions: Tensor

    def __init__(self, vocabulary: int, size: TransformerSize, *, padding: int = 0, longest: int = 1024) -> None:
        """With fresh weights.

        Args:
            vocabulary: how many tokens there are, of source and target together.
            size: what it consists of.
            padding: the token that fills rows up.
            longest: the most tokens in a row, of source or target.
        """
        super().__init__()
        if longest < 1:
            raise ValueError(f"longest must be at least 1, got {longest}")
        if not 0 <= padding < vocabulary:
            raise ValueError(f"padding must be a token of the vocabulary, of {vocabulary}, got {padding}")
        self.padding = padding
        self.longest = longest
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.register_buffer("positions", sinusoids(longest, size.width), persistent=False)
        self.encoder = nn.ModuleList(EncoderLayer(size) for _ in range(size.layers))
        self.encoder_norm = nn.LayerNorm(size.width) if size.norm_first else nn.Identity()
        self.decoder = nn.ModuleList(DecoderLayer(size) for _ in range(size.layers))
        self.decoder_norm = nn.LayerNorm(size.width) if size.norm_first else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=size.width**-0.5)  # logits of unit size, embeddings too once scaled

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits, (N, T, vocabulary), for what follows each target token.

        Args:
            source: tokens (N, S), filled up with `padding` at the end.
            target: tokens (N, T) that begin with the start token; filled up likewise. No token sees those after it, so
                padding needs no mask here.
        """
        memory, readable = self.encode(source)
        steps = torch.arange(target.shape[1], device=target.device)
        causal = steps[:, None] >= steps  # (T, T)
        x = self._embed(target)  # (N, T, C)
        for layer in self.decoder:
            x = layer(x, memory, causal, readable)
        return self._logits(x)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The memory of (N, S) tokens, (N, S, C), and which of it may be read, (N, 1, 1, S): all but the padding."""
        readable = (source != self.padding)[:, None, None]
        x = self._embed(source)
        for layer in self.encoder:
            x = layer(x, readable)
        return self.encoder_norm(x), readable

    def start(self, source: Tensor) -> State:
        """Translations of the source tokens (N, S), with no token yet; give the start token to `step` first."""
        memory, readable = self.encode(source)
        return State(tuple(layer.start(memory) for layer in self._decoder_layers()), readable)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits, (N, vocabulary), for what follows the token given to each row, (N,), and the state to go on with."""
        x = self._embed(tokens[:, None], first=state.length)  # (N, 1, C)
        layers = []
        for layer, past in zip(self._decoder_layers(), state.layers, strict=True):
            x, grown = layer.step(x, past, state.readable)
            layers.append(grown)
        return self._logits(x)[:, 0], State(tuple(layers), state.readable)

    def _decoder_layers(self) -> Iterator[DecoderLayer]:
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            yield layer

    def _embed(self, tokens: Tensor, first: int = 0) -> Tensor:
        end = first + tokens.shape[1]
        if end > self.longest:
            raise ValueError(f"a row of {end} tokens is longer than this model's positions, {self.longest}")
        scale = math.sqrt(self.embedding.embedding_dim)
        embedded: Tensor = self.embedding(tokens) * scale + self.positions[first:end]
        return embedded

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.decoder_norm(x), self.embedding.weight)


def sinusoids(length: int, width: int) -> Tensor:
    """Encodings of the positions 0, 1, ...: sines and cosines of wavelengths 2 pi to 10000 * 2 pi, (length, width).

    Sines fill the even channels, cosines the odd ones (section 3.5 of Vaswani et al.).
    """
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)  # (width / 2,)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * rate  # (length, width / 2)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1).float()
