"""How a training set is divided: heads of a deal, balanced, nested, the same for ever."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autodropout.data import Labelled, SemiSplits
from autodropout.data.splits import check_counts, dealt


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 3))
def test_a_deal_takes_the_classes_in_turn(labels: list[int], seed: int) -> None:
    order = dealt(labels, seed)
    assert sorted(order) == list(range(len(labels)))
    classes = sorted(set(labels))
    for turn in range(min(map(labels.count, classes))):
        turn_of = order[turn * len(classes) : (turn + 1) * len(classes)]
        assert [labels[image] for image in turn_of] == classes


def test_a_deal_never_changes() -> None:
    """Scores of different days are compared: the order is pinned."""
    assert dealt([0, 1, 0, 1, 0, 1, 1], seed=0) == [2, 3, 4, 5, 0, 1, 6]
    assert dealt([0, 1, 0, 1, 0, 1, 1], seed=1) != dealt([0, 1, 0, 1, 0, 1, 1], seed=0)


@pytest.mark.parametrize(("train", "validation"), [(20, 10), (27, 0), (17, 10), (10, 0)])
def test_counts_that_can_be_had(train: int, validation: int) -> None:
    check_counts(train, validation, classes=10, available=27 if train != 20 else 40, rarest=3)


@pytest.mark.parametrize(
    ("train", "validation", "message"),
    [
        (0, 10, r"0 \+ 10 images, there are 100"),
        (10, -10, r"10 \+ -10 images"),
        (100, 10, r"100 \+ 10 images, there are 100"),
        (25, 10, r"multiples of the 10 classes, got 25 \+ 10"),
        (20, 5, r"multiples of the 10 classes, got 20 \+ 5"),
        (50, 10, r"50 \+ 10 images, but a class has only 5"),
        (40, 60, r"40 \+ 60 images, but a class has only 5"),
    ],
)
def test_counts_that_cannot(train: int, validation: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_counts(train, validation, classes=10, available=100, rarest=5)


def test_a_run_of_images_is_not_copied() -> None:
    whole = Labelled(torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1), torch.arange(6))
    part = whole[2:4]
    assert part.labels.tolist() == [2, 3]
    assert part.images.data_ptr() == whole.images.data_ptr() + 2


def test_unlabelled_images_are_bytes() -> None:
    some = Labelled(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"uint8, got \(2, 3, 4, 4\)"):
        SemiSplits(some, some, some.images, some)
