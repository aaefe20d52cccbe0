"""A text in rows of words, read segment by segment: to learn from, and to be judged by.

To learn, the text is a ring, and row r of R starts r/R of the way round. Each step reads the next segment of every
row, for as long as the training lasts:

    step      0         1         2         3
    row 0   |a b c d  |e f g h  |i j k l  |m n o p        24 words in 2 rows, segments of 4: after three steps
    row 1   |m n o p  |q r s t  |u v w x  |a b c d        row 0 goes on where row 1 began

Departures from the usual way, which cuts the text into R streams and begins them anew, with an empty memory, at each
epoch:
1. What a model remembers is always what came before: a row goes on into the next row's part.
2. Every segment is full, so that all steps have one shape, and no word at the end is left out.
3. Segments begin elsewhere in each epoch, where the rows' length is no multiple of theirs.

The window of a step is a pure function of its number: there is nothing to save or restore.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

IGNORED = -100  # what cross-entropy takes for "no word to predict"


class Streams:
    """The segments to learn from."""

    def __init__(self, words: Tensor, rows: int, segment: int, mine: slice = slice(None)) -> None:
        """The ring of `words`, (T,), in so many rows, of which those in `mine` are read: a rank's share."""
        check_fit("the training text", len(words), rows, segment)
        self.words = words
        self.segment = segment
        starts = torch.tensor([row * len(words) // rows for row in range(rows)])[mine]
        self.window = (starts[:, None] + torch.arange(segment + 1)).to(words.device)  # (rows, segment + 1)

    def __call__(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """The words of a step and the word after each: two of (rows, segment)."""
        read = self.words[(self.window + step * self.segment) % len(self.words)]  # (rows, segment + 1)
        return read[:, :-1], read[:, 1:]


@dataclass(frozen=True, slots=True)
class Pages:
    """A whole text once, to be judged by: every word but the first is predicted once, by one row."""

    tokens: Tensor  # (segments, rows, segment), int64
    targets: Tensor  # the same shape; IGNORED where a row's part of the text is over
    predicted: int  # words

    @classmethod
    def of(cls, words: Tensor, rows: int, segment: int, name: str = "the text") -> "Pages":
        """Cut `words`, (T,), into rows, one after another, and these into segments, the last ones filled up."""
        check_fit(name, len(words), rows, segment)
        predicted = len(words) - 1
        share = -(-predicted // rows)  # words a row predicts
        segments = -(-share // segment)
        inside = torch.arange(segments * segment)
        place = torch.arange(rows)[:, None] * share + inside  # (rows, segments * segment)
        ends = (inside >= share) | (place >= predicted)
        place = place.clamp(max=predicted - 1)
        targets = words[place + 1].masked_fill(ends, IGNORED)
        tokens, targets = (
            torch.unflatten(part, 1, (segments, segment)).transpose(0, 1) for part in (words[place], targets)
        )
        return cls(tokens, targets, predicted)

    def to(self, device: torch.device) -> "Pages":
        return replace(self, tokens=self.tokens.to(device), targets=self.targets.to(device))


def check_fit(name: str, words: int, rows: int, segment: int) -> None:
    """That each row has a segment to read, and a word after it.

    Raises:
        ValueError: the text is too short.
    """
    for what, value in (("rows", rows), ("segment", segment)):
        if value < 1:
            raise ValueError(f"{what} must be at least 1, got {value}")
    if words <= rows * segment:
        raise ValueError(f"{name} has {words:,} words, too few for {rows} rows of segments of {segment}")
