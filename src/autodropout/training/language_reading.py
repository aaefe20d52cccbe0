"""How well the children of a crowd read a held-out text: its pages as CUDA graphs, with the weights as they are.

    page number, on the device  ->  words and targets, the same for all children
    vmap(Page) over weights and what is remembered  ->  nats (K,), what is remembered of this page

Pages differ in how much is remembered before them: nothing at first, as when a child is alone. One graph serves all
pages of one kind.
"""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from autodropout.data import Corpus
from autodropout.training.graphed import Lane, Work, at
from autodropout.training.language import LanguageTraining
from autodropout.training.run import Run
from autodropout.training.stacked import Stack
from autodropout.training.stacked_language import StackedLanguage


class Reading:
    """Its methods are called inside of `lane.active()`, and so is it made.

    Args:
        training: how a text is read.
        text: its text, of which the held-out parts are read.
        run: where and how.
        lane: of the crowd.
        stack: the children's weights.
        model: what they are the weights of.
    """

    def __init__(
        self, training: LanguageTraining, text: Corpus, run: Run, lane: Lane, stack: Stack, model: StackedLanguage
    ) -> None:
        where = run.where
        self._run, self._lane, self._stack, self._model = run, lane, stack, model
        self._layers, self._width, self._memory = training.size.layers, training.size.width, training.evaluation_memory
        self._pages = {
            "validation": training.pages(text.validation, "the validation text").to(where),
            "test": training.pages(text.test, "the test text").to(where),
        }
        self._nats = model.nats
        if run.compile or where.type == "cuda":
            self._nats = torch.compile(self._nats, dynamic=False)
        self._page = torch.zeros(1, dtype=torch.int64, device=where)  # how many are read
        self._total = torch.zeros(stack.children, dtype=torch.float64, device=where)  # nats
        self._remembered: dict[int, Tensor] = {}  # by its length
        self._readers: dict[tuple[str, bool, int], Work] = {}

    def prepare(self) -> bool:
        """Compile and capture what reads the validation text; False where that was done before."""
        there = {averaged for text, averaged, _ in self._readers if text == "validation"}
        missing = {False, True} - there
        for averaged in sorted(missing):
            self.nats(averaged=averaged)
        return bool(missing)

    def nats(self, *, averaged: bool, text: str = "validation") -> list[float]:
        """What `log_loss` says of each slot; by the averaged weights, or those of the last step."""
        readers = self._readers_of_pages(averaged, text)
        for state in (self._page, self._total):
            state.zero_()
        for read in readers:
            read()
        nats: list[float] = (self._total / self._pages[text].predicted).tolist()
        return nats

    def _readers_of_pages(self, averaged: bool, text: str) -> list[Work]:
        """For each page what reads it."""
        segments, rows, segment = self._pages[text].tokens.shape
        lengths = [min(page * segment, self._memory) for page in range(segments + 1)]
        for length in lengths:
            if length not in self._remembered:
                shape = (self._stack.children, self._layers, rows, length, self._width)
                self._remembered[length] = torch.zeros(shape, device=self._run.where)
        for before, after in pairwise(lengths):
            if (text, averaged, before) not in self._readers:
                read = self._lane.capture(partial(self._read, text, averaged, before, after))
                self._readers[text, averaged, before] = read
        return [self._readers[text, averaged, before] for before in lengths[:-1]]

    @torch.no_grad()
    def _read(self, text: str, averaged: bool, before: int, after: int) -> None:
        """The next page, with so many words remembered before and after it. All of it is captured."""
        self._model.page.eval()
        pages = self._pages[text]
        page = self._page.clamp(max=len(pages.tokens) - 1)
        words, targets = at(pages.tokens, page), at(pages.targets, page)  # (rows, T), (rows, T)
        weights = self._stack.averages if averaged else self._stack.weights
        with self._run.autocast():
            nats, remembered = self._nats(weights, self._remembered[before], words, targets)
        self._remembered[after].copy_(remembered)
        self._total.add_(nats)
        self._page.add_(1)
