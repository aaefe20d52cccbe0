"""Rows and segments of a text: every word where it belongs, once."""

import pytest
import torch
from torch import Tensor

from autodropout.training.streams import IGNORED, Pages, Streams

LETTERS = "abcdefghijklmnopqrstuvwx"


def letters(words: Tensor) -> list[str]:
    return ["".join(LETTERS[word] for word in row) for row in words.tolist()]


def test_rows_of_a_ring() -> None:
    streams = Streams(torch.arange(24), rows=2, segment=4)
    assert [letters(streams(step)[0]) for step in (0, 1, 2, 3, 6)] == [
        ["abcd", "mnop"],
        ["efgh", "qrst"],
        ["ijkl", "uvwx"],
        ["mnop", "abcd"],
        ["abcd", "mnop"],
    ]
    assert letters(streams(2)[1]) == ["jklm", "vwxa"], "the word after each, round the end too"


def test_a_text_that_rows_do_not_divide() -> None:
    """24 words in 5 rows of segments of 3: rows start at 0, 4, 9, 14, 19, and go on without a gap."""
    streams = Streams(torch.arange(24), rows=5, segment=3)
    assert letters(streams(0)[0]) == ["abc", "efg", "jkl", "opq", "tuv"]
    assert letters(streams(1)[0]) == ["def", "hij", "mno", "rst", "wxa"]
    for step in range(40):
        tokens, targets = streams(step)
        assert torch.equal(targets, (tokens + 1) % 24)
        assert torch.equal(streams(step + 1)[0][:, 0], targets[:, -1])
    seen = torch.cat([streams(step)[0].flatten() for step in range(8)])  # 8 steps of 3 words: each row goes round once
    assert torch.equal(seen.bincount(), torch.full((24,), 5))


def test_ranks_read_their_own_rows() -> None:
    words = torch.arange(24)
    whole, first, second = (Streams(words, 4, 5, mine) for mine in (slice(None), slice(0, 2), slice(2, 4)))
    for part in (0, 1):
        assert torch.equal(whole(7)[part], torch.cat((first(7)[part], second(7)[part])))


@pytest.mark.parametrize(("words", "rows", "segment"), [(24, 1, 4), (24, 3, 4), (23, 3, 7), (24, 5, 2), (13, 3, 4)])
def test_pages_show_every_word_once(words: int, rows: int, segment: int) -> None:
    text = torch.arange(words)
    pages = Pages.of(text, rows, segment)
    assert pages.tokens.shape == pages.targets.shape
    assert pages.tokens.shape[1:] == (rows, segment)
    counted = pages.targets != IGNORED
    assert pages.predicted == counted.sum() == words - 1
    assert sorted(pages.targets[counted].tolist()) == text[1:].tolist()
    assert torch.equal(pages.tokens[counted] + 1, pages.targets[counted]), "each after the word before it"
    by_row = pages.tokens.transpose(0, 1).flatten(1)  # a row reads on from segment to segment
    for row, real in zip(by_row, counted.transpose(0, 1).flatten(1), strict=True):
        assert (row[real].diff() == 1).all()
        assert real.long().diff().max() <= 0, "what is filled up stands at the end"


@pytest.mark.parametrize("make", [Streams, Pages.of])
@pytest.mark.parametrize(
    ("words", "rows", "segment", "message"),
    [
        (24, 3, 8, "has 24 words, too few for 3 rows of segments of 8"),
        (0, 1, 1, "has 0 words"),
        (24, 0, 4, "rows must be at least 1, got 0"),
        (24, 2, 0, "segment must be at least 1, got 0"),
    ],
)
def test_texts_too_short(make, words: int, rows: int, segment: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(torch.arange(words), rows, segment)
