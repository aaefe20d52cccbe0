"""Beam search: against all translations there are, and against a slow search one hypothesis at a time."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from autodropout.models.transformer import Transformer, TransformerSize
from autodropout.training.decoding import Beam, beam_search

PAD, START, END, A, B, C = range(6)
WORDS = (A, B, C)
NEVER = (PAD, START)


@dataclass(frozen=True)
class Prefixes:
    """The whole translations so far, and which source each is of."""

    source: Tensor  # (N,)
    tokens: Tensor  # (N, T)

    def repeated(self, times: int) -> "Prefixes":
        return Prefixes(self.source.repeat_interleave(times), self.tokens.repeat_interleave(times, 0))

    def reordered(self, rows: Tensor) -> "Prefixes":
        assert torch.equal(self.source[rows], self.source), "a row may go on from one of the same source only"
        return Prefixes(self.source, self.tokens[rows])


class Table:
    """A model whose logits are drawn for each prefix: it has nothing to learn, and no structure to help a search."""

    def __init__(self, sharpness: float = 1.5) -> None:
        self.sharpness = sharpness

    def logits(self, source: int, prefix: list[int]) -> Tensor:
        seed = source
        for token in prefix:
            seed = seed * 31 + token + 1
        return self.sharpness * torch.randn(6, generator=torch.Generator().manual_seed(seed))

    def start(self, source: Tensor) -> Prefixes:
        return Prefixes(source[:, 0], torch.empty((len(source), 0), dtype=torch.int64))

    def step(self, tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        state = Prefixes(state.source, torch.cat((state.tokens, tokens[:, None]), 1))
        pairs = zip(state.source.tolist(), state.tokens.tolist(), strict=True)
        return torch.stack([self.logits(*pair) for pair in pairs]), state

    def score(self, source: int, words: tuple[int, ...], alpha: float) -> float:
        """Of one whole translation."""
        total = 0.0
        prefix = [START]
        for token in (*words, END):
            total += self.logits(source, prefix).log_softmax(-1)[token].item()
            prefix.append(token)
        return total / ((5 + len(words) + 1) / 6) ** alpha


def all_translations(limit: int) -> list[tuple[int, ...]]:
    return [words for length in range(limit) for words in product(WORDS, repeat=length)]


SOURCES = torch.tensor([[7], [8], [9], [10], [11]])


def search(model, beam: Beam, limits: Tensor, source: Tensor = SOURCES) -> tuple[list[list[int]], Tensor]:
    return beam_search(model, source, limits, start=START, end=END, never=NEVER, beam=beam)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_that_is_wide_enough_finds_the_best_of_all(alpha: float) -> None:
    model = Table()
    limits = torch.tensor([4, 4, 3, 2, 1])
    found, scores = search(model, Beam(size=27, alpha=alpha), limits)
    for row, limit in enumerate(limits.tolist()):
        source = int(SOURCES[row])
        best = max(all_translations(limit), key=lambda words: model.score(source, words, alpha))
        assert tuple(found[row]) == best
        assert scores[row].item() == pytest.approx(model.score(source, best, alpha), abs=1e-5)
    assert found[4] == [], "with room for one token, that is the end"


def slow_search(model: Table, source: int, beam: Beam, limit: int) -> tuple[int, ...]:
    """Hypotheses in a list, all steps up to the limit, nothing stopped early."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, limit + 1):
        longer = []
        for total, words in alive:
            log = model.logits(source, [START, *words]).log_softmax(-1)
            ended.append(((total + log[END].item()) / ((5 + length) / 6) ** beam.alpha, words))
            longer += [(total + log[word].item(), (*words, word)) for word in WORDS]
        alive = sorted(longer, reverse=True)[: beam.size]
    return max(ended)[1]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_narrow_beam_finds_what_a_slow_search_does(size: int, alpha: float) -> None:
    model, limits = Table(), torch.tensor([9, 12, 5, 8, 12])
    beam = Beam(size=size, alpha=alpha)
    found, _ = search(model, beam, limits)
    for row, limit in enumerate(limits.tolist()):
        assert tuple(found[row]) == slow_search(model, int(SOURCES[row]), beam, limit)


def test_a_sentence_alone_is_translated_as_in_a_batch() -> None:
    model, limits = Table(), torch.tensor([9, 12, 5, 8, 12])
    found, scores = search(model, Beam(), limits)
    for row in range(len(SOURCES)):
        alone, score = search(model, Beam(), limits[row : row + 1], SOURCES[row : row + 1])
        assert alone == [found[row]]
        assert score.item() == pytest.approx(scores[row].item())


class Endless(Table):
    """Ends only when it has to."""

    def logits(self, source: int, prefix: list[int]) -> Tensor:
        return torch.tensor([2.0, 2.0, -50.0, 1.0, 0.0, 0.0])  # it would also like to say what it never may


def test_a_translation_ends_at_its_limit() -> None:
    found, _ = search(Endless(), Beam(size=2, alpha=1.0), torch.tensor([3, 6, 1, 2, 4]))
    assert found == [[A] * 2, [A] * 5, [], [A], [A] * 3]


def test_a_longer_translation_is_preferred_with_a_higher_penalty() -> None:
    lengths = []
    for alpha in (0.0, 1.0, 3.0):
        found, _ = search(Table(), Beam(size=8, alpha=alpha), torch.full((5,), 10))
        lengths.append(sum(map(len, found)))
    assert lengths[0] < lengths[1] < lengths[2]


def test_the_search_stops_when_nothing_better_can_come() -> None:
    class Counting(Table):
        steps = 0

        def logits(self, source: int, prefix: list[int]) -> Tensor:
            return torch.tensor([0.0, 0.0, 20.0 if len(prefix) > 2 else -20.0, 1.0, 0.0, 0.0])

        def step(self, tokens: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
            self.steps += 1
            return super().step(tokens, state)

    model = Counting()
    found, _ = search(model, Beam(), torch.full((5,), 100))
    assert found == [[A, A]] * 5
    assert model.steps < 10


@pytest.mark.parametrize("norm_first", [True, False])
def test_cached_search_of_a_transformer_finds_the_best_of_all_by_its_forward(norm_first: bool) -> None:
    torch.manual_seed(6)
    size = TransformerSize(layers=2, width=16, heads=2, inner=32, norm_first=norm_first)
    model = Transformer(6, size, padding=PAD, longest=16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # opinions that differ from source to source
    source = torch.tensor([[A, B, C, END], [C, END, PAD, PAD], [B, B, END, PAD]])
    limits, beam = torch.tensor([4, 4, 3]), Beam(size=27, alpha=3.0)
    found, scores = search(model, beam, limits, source)
    assert len(set(map(tuple, found))) > 1
    for row, limit in enumerate(limits.tolist()):
        best, best_score = (), -torch.inf
        for words in all_translations(limit):
            told = torch.tensor([[START, *words]])
            log = model(source[row : row + 1], told).log_softmax(-1)[0]  # (T, vocabulary)
            total = sum(log[at, token].item() for at, token in enumerate((*words, END)))
            score = total / ((5 + len(words) + 1) / 6) ** beam.alpha
            if score > best_score:
                best, best_score = words, score
        assert tuple(found[row]) == best
        assert scores[row].item() == pytest.approx(best_score, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"size": 0}, "size .* got 0"), ({"alpha": -0.1}, "alpha .* got -0.1"), ({"extra": -1}, "-1")],
)
def test_mistakes(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Beam(**options)
