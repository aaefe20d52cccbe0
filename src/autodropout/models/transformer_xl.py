"""Transformer-XL (Dai et al., "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", ACL 2019).

    words -> embedding -> 16 x [attention over memory and segment -> feed-forward] -> hidden -> softmax over the words

The model of the paper's language experiments (appendix, "Language Model": 16 layers, width 380, 10 heads of 38, inner
900). A text is read segment by segment. Each layer keeps what it was given for the last words as memory, without
gradients, and attends to memory and segment together. Word i scores word j, at distance i - j >= 0, by

    (W_q x_i + u) . W_k x_j  +  (W_q x_i + v) . W_r R(i - j)          R(distance): a sinusoid encoding

times 1 / sqrt(size of a head). u and v are learned, for each layer and head (one pair for all layers in the authors'
PyTorch code, one for each in their TensorFlow code).

Every site of a Transformer policy is reached by `ad.attach`: query, key, value and output are modules, the
probabilities pass through an `nn.Identity`, sums take whole tensors. A query is masked before u and v are added.

The size of the paper's models: with the vocabularies of Penn Treebank (10,000) and WikiText-2 (33,278) it is 26,362,960
and 35,231,878 parameters here; the paper says 24 and 35 million. Its two figures cannot belong to one architecture: the
larger vocabulary costs 8.9 million more, not 11. The first fits one W_r for all layers (24.2 million), the second one
for each (35.2 million), as in the authors' released code and here.

Decided here, since neither paper says it and the released code has no Penn Treebank:
1. The softmax uses the embedding's weights, and a bias of its own. Untied they would make it 30.2 and 47.9 million.
2. The dropouts of embedding (0.5) and softmax (0.6) are variational, one draw for each channel of a sequence: so does
   AWD-LSTM with what enters its first layer and leaves its last. They are the model's, not a policy's.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodropout.layers import Drop, DropLayer, rules
from autodropout.models.relative_attention import aligned, relative_attention
from autodropout.models.spare import Embedding, Linear, padded, spare
from autodropout.patterns.switch import compiled_for_gpu

INITIAL_DEVIATION = 0.02
EMBEDDING_SITE, SOFTMAX_SITE = -2, -3  # whose masks are not those of any site that `attach` numbers: 0, 1, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerXLSize:
    """What a Transformer-XL consists of, but for its vocabulary."""

    layers: int
    width: int
    heads: int
    head_size: int
    inner: int
    memory: int  # words a layer remembers
    embedding_dropout: float = 0.0
    softmax_dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "head_size", "inner"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % 2:
            raise ValueError(f"width must be even, a sine and a cosine for each frequency, got {self.width}")
        if self.memory < 0:
            raise ValueError(f"memory must not be negative, got {self.memory}")
        for name in ("embedding_dropout", "softmax_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")


class TransformerXL(nn.Module):
    """Reads words, and remembers. `model.logits(model.softmax_dropout(hidden))` scores the word after each."""

    def __init__(self, vocabulary: int, size: TransformerXLSize) -> None:
        super().__init__()
        if vocabulary < 1:
            raise ValueError(f"vocabulary must be at least 1, got {vocabulary}")
        self.size = size
        self.embedding = Embedding(vocabulary, size.width)
        self.embedding_dropout = VariationalDropout(size.embedding_dropout, site=EMBEDDING_SITE)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.softmax_dropout = VariationalDropout(size.softmax_dropout, site=SOFTMAX_SITE)
        self.softmax_bias = nn.Parameter(torch.empty(vocabulary))
        initialize(self.named_parameters())

    def forward(
        self, tokens: Tensor, memory: Tensor | None = None, remember: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The last layer's hidden states, and the memory to pass along with the next segment.

        Args:
            tokens: (N, T), int64.
            memory: (layers, N, M, C), what the call before returned; None at the beginning of a text.
            remember: how long the new memory may be, `size.memory` when left out.
        """
        x = self.embedding_dropout(self.embedding(tokens) * math.sqrt(self.size.width))  # (N, T, C)
        if memory is None:
            memory = x.new_zeros(len(self.layers), len(x), 0, self.size.width)
        length, before = x.shape[1], memory.shape[2]
        reach = before + length
        future = torch.ones(length, reach, dtype=torch.bool, device=x.device).triu(before + 1)  # (T, S)
        encoding = distance_encoding(reach, self.size.width, x.device).to(x.dtype)  # (S + 1, C)
        encoding = padded(encoding, self.size.width, reach + 1 + room(reach + 1, x))
        seen = []
        for layer, earlier in zip(self.layers, memory, strict=True):
            seen.append(x)
            x = layer(x, earlier, encoding, future)  # (N, T, C)
        kept = min(self.size.memory if remember is None else remember, reach)
        forgotten = reach - kept  # of memory and segment, the oldest words
        old = memory[:, :, min(forgotten, before) :]
        new = torch.stack(seen).detach()[:, :, max(forgotten - before, 0) :]
        return x, torch.cat((old, new), 2)  # (layers, N, kept, C)

    def blank_memory(self, samples: int) -> Tensor:
        """A full memory of nothing, zeros: with it a training has segments and memories of one shape throughout."""
        size = self.size
        return self.embedding.weight.new_zeros(size.layers, samples, size.memory, size.width)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the word after each: (..., C) -> (..., vocabulary)."""
        scores = F.linear(padded(hidden, self.embedding.weight.shape[-1]), self.embedding.weight)
        return scores + self.softmax_bias.to(scores.dtype)  # so that autocast's half precision stays one


class Layer(nn.Module):
    """Attention and feed-forward, each added to what it was given and then normalized."""

    def __init__(self, size: TransformerXLSize) -> None:
        super().__init__()
        self.attention = RelativeAttention(size)
        self.norm1 = nn.LayerNorm(size.width)
        self.feedforward = nn.Sequential(Linear(size.width, size.inner), nn.ReLU(), Linear(size.inner, size.width))
        self.norm2 = nn.LayerNorm(size.width)

    def forward(self, x: Tensor, memory: Tensor, encoding: Tensor, future: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, memory, encoding, future))
        y: Tensor = self.norm2(x + self.feedforward(x))  # (N, T, C)
        return y


class RelativeAttention(nn.Module):
    """Attention to memory and segment by content and distance."""

    def __init__(self, size: TransformerXLSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.scale = size.head_size**-0.5
        channels = size.heads * size.head_size
        self.query = Linear(size.width, channels, bias=False)
        self.key = Linear(size.width, channels, bias=False)
        self.value = Linear(size.width, channels, bias=False)
        self.distance = Linear(size.width, channels, bias=False)
        self.output = Linear(channels, size.width, bias=False)
        self.content_bias = nn.Parameter(torch.empty(size.heads, 1, size.head_size))  # u
        self.distance_bias = nn.Parameter(torch.empty(size.heads, 1, size.head_size))  # v
        self.probabilities = nn.Identity()  # where `attach` finds them
        self.fuses = False  # where it is compiled for a GPU: see `fuse`
        self.drop: Drop | None = None  # on the probabilities, if so

    def forward(self, x: Tensor, memory: Tensor, encoding: Tensor, future: Tensor) -> Tensor:
        known = torch.cat((memory, x), 1)  # (N, S, C)
        query, key, value = self.query(x), self.key(known), self.value(known)  # (N, T, heads * D), (N, S, heads * D)
        attend = self._fused if self.fuses and compiled_for_gpu(x) else self._plain
        output: Tensor = self.output(attend(query, key, value, self.distance(encoding), future))
        return output

    def _plain(self, query: Tensor, key: Tensor, value: Tensor, distance: Tensor, future: Tensor) -> Tensor:
        by_distance = torch.unflatten(self._by_distance(query, distance), 1, (len(query), -1)).transpose(0, 1)
        content = (self._by_head(query) + self.content_bias) * self.scale @ self._by_head(key).mT  # (N, heads, T, S)
        scores = content + aligned(by_distance)[..., : key.shape[1]]
        probabilities = self.probabilities(scores.masked_fill(future, -torch.inf).softmax(-1))
        context: Tensor = probabilities @ self._by_head(value)  # (N, heads, T, D)
        return context.transpose(1, 2).flatten(2)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, distance: Tensor, future: Tensor) -> Tensor:
        """The same, with no probabilities in memory: `future` follows from where a query stands."""
        length, reach = query.shape[1], key.shape[1]
        bits = scale = None
        if self.training and self.drop is not None:
            bits, scale = self.drop.bits(query.new_empty(()).expand(len(query), self.heads, length, reach))
        by_content = ((query + self.content_bias.flatten()) * self.scale).to(key.dtype)  # as a product has it
        by_distance = self._by_distance(query, distance)
        before = reach - length
        context: Tensor = relative_attention(by_content, key, value, by_distance, bits, scale, self.heads, before)[0]
        return context

    def _by_distance(self, query: Tensor, distance: Tensor) -> Tensor:
        """Scores by distance, (heads, N * T, S + 1), or some more that nobody reads.

        All samples are scored by the same distances: as rows of one product, not each in a product of its own.
        """
        rows = (self._by_head(query) + self.distance_bias) * self.scale  # (N, heads, T, D)
        size = rows.shape[-1] + room(rows.shape[-1], query)
        return padded(rows.transpose(0, 1).flatten(1, 2), size) @ padded(self._by_head(distance), size).mT

    def _by_head(self, h: Tensor) -> Tensor:
        return torch.unflatten(h, -1, (self.heads, -1)).transpose(-3, -2)  # (..., T, heads * D) -> (..., heads, T, D)


class VariationalDropout(DropLayer):
    """One draw for each sample and channel, for all words of the segment (Gal and Ghahramani 2016)."""

    def __init__(self, rate: float, site: int) -> None:
        super().__init__(rules.VariationalDropout(), rate, site)


@torch.no_grad()
def initialize(parameters: Iterable[tuple[str, Tensor]], generator: torch.Generator | None = None) -> None:
    """Initial weights, in place, for parameters by name: matrices N(0, 0.02), biases 0, gains of normalizations 1."""
    for name, parameter in parameters:
        if parameter.dim() > 1:
            parameter.normal_(std=INITIAL_DEVIATION, generator=generator)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def distance_encoding(longest: int, width: int, device: torch.device | None = None) -> Tensor:
    """R(longest), ..., R(1), R(0): sines of a distance at width/2 frequencies, then cosines. (longest + 1, width)."""
    distance = torch.arange(longest, -1, -1, dtype=torch.float32, device=device)
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    angles = distance[:, None] / 10_000**exponents  # (longest + 1, width / 2)
    return torch.cat((angles.sin(), angles.cos()), 1)


def fuse(model: TransformerXL, drops: Sequence[Drop | None]) -> None:
    """Let code compiled for a GPU make no probabilities: of each layer, a live drop on them acts inside the attention.

    What `attach` has put on the probabilities acts elsewhere, and not there.
    """
    for layer, drop in zip(model.layers, drops, strict=True):
        assert isinstance(layer, Layer)
        layer.attention.fuses, layer.attention.drop = True, drop


def room(length: int, x: Tensor) -> int:
    """How many values to pad a row by in code compiled for a GPU; elsewhere none, since to pad costs a pass."""
    return spare(length) if compiled_for_gpu(x) else 0
