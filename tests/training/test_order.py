"""The order of examples."""

import pytest
import torch

from autodropout.training import distributed
from autodropout.training.distributed import World
from autodropout.training.order import Order


def test_every_epoch_is_a_permutation_and_every_batch_full() -> None:
    order = Order(10, 4, seed=0)
    batches = [order(step) for step in range(15)]
    assert {len(batch) for batch in batches} == {4}
    epochs = torch.cat(batches).view(6, 10)
    assert all(sorted(epoch.tolist()) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 6


def test_a_pure_function_of_seed_and_step() -> None:
    one, other = Order(10, 4, seed=5), Order(10, 4, seed=5)
    forward = [one(step).tolist() for step in range(12)]
    assert [other(step).tolist() for step in reversed(range(12))] == forward[::-1]
    torch.rand(1)
    assert one(3).tolist() == forward[3]
    assert Order(10, 4, seed=6)(0).tolist() != forward[0]
    assert Order(10, 4, seed=5 + 2**32)(0).tolist() != forward[0], "torch would take 32 bits of it"


def test_a_batch_larger_than_the_examples() -> None:
    batch = Order(3, 8, seed=0)(1)  # examples 8 to 15 of the string: the end of epoch 2, epochs 3 and 4, one of 5
    assert len(batch) == 8
    assert sorted(batch[1:4].tolist()) == sorted(batch[4:7].tolist()) == [0, 1, 2]


def test_ranks_divide_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [Order(10, 4, seed=0)(step).tolist() for step in range(6)]
    shares = []
    for rank in (0, 1):
        monkeypatch.setattr(distributed, "world", lambda rank=rank: World(rank, 2))
        monkeypatch.setattr("autodropout.training.order.world", lambda rank=rank: World(rank, 2))
        order = Order(10, 4, seed=0)
        shares.append([order(step).tolist() for step in range(6)])
    assert [one + other for one, other in zip(*shares, strict=True)] == alone
    with pytest.raises(ValueError, match="a batch of 5 cannot be divided among 2 ranks"):
        Order(10, 5, seed=0)


def test_no_examples() -> None:
    with pytest.raises(ValueError, match="no examples"):
        Order(0, 4, seed=0)
