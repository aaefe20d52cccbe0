"""A translator's batches, its loss, its scores."""

from dataclasses import replace

import pytest
import torch
from translation_tools import TOY, Words, pairs, sentences, toy

from autodropout.data import Pairs
from autodropout.data.subwords import BOS, EOS, PAD
from autodropout.training import translation
from autodropout.training.decoding import Beam, beam_search
from autodropout.training.distributed import World
from autodropout.training.run import Run
from autodropout.training.token_batches import TokenBatches, begun, rows
from autodropout.training.translation import Objective, batch
from autodropout.training.translation_scores import bleu, mean_loss, summed_loss, translate

CPU = Run(device="cpu")


def test_an_epoch_has_every_pair_once_within_the_budget() -> None:
    text = pairs(200, 0, longest=30)
    batches = TokenBatches(text, tokens=200, seed=3)
    epoch = [batches(step) for step in range(len(batches))]
    assert sorted(torch.cat(epoch).tolist()) == list(range(200))
    for chosen in epoch:
        assert rows(text.source, chosen).numel() <= 200
        assert rows(text.target, chosen).numel() <= 200
    filled = sum(len(text.source[number]) for number in range(200))
    padded = sum(rows(text.source, chosen).numel() for chosen in epoch)
    assert filled > 0.7 * padded, "pairs of like length go together"
    assert len(batches) < 1.3 * padded / 200, "and batches are full"


def test_the_pairs_of_a_step_follow_from_seed_and_step() -> None:
    text = pairs(200, 0, longest=30)
    one, other = TokenBatches(text, 200, seed=3), TokenBatches(text, 200, seed=3)
    steps = 2 * len(one) + 1
    forward = [one(step) for step in range(steps)]
    backward = [other(step) for step in reversed(range(steps))]
    assert all(map(torch.equal, forward, reversed(backward)))
    first, second = forward[: len(one)], forward[len(one) : 2 * len(one)]
    assert sorted(torch.cat(second).tolist()) == list(range(200))
    assert not all(map(torch.equal, first, second)), "epochs differ"
    together = {frozenset(chosen.tolist()) for chosen in first}
    assert len(together & {frozenset(chosen.tolist()) for chosen in second}) < len(together) / 2, "in more than order"
    assert not torch.equal(TokenBatches(text, 200, seed=4)(0), one(0))


def test_a_pair_beyond_the_budget_is_a_batch_of_its_own() -> None:
    text = Pairs(sentences([[5] * 40, [5, EOS], [6, EOS]]), sentences([[5, EOS]] * 3))
    assert [chosen.tolist() for chosen in TokenBatches(text, tokens=20).in_order()] == [[1, 2], [0]]


def test_rows() -> None:
    text = sentences([[5, 6, 7, EOS], [8, EOS], [9] * 9])
    assert rows(text, torch.tensor([1, 0])).tolist() == [[8, EOS] + [PAD] * 6, [5, 6, 7, EOS] + [PAD] * 4]
    assert rows(text, torch.tensor([2])).tolist() == [[9] * 9 + [PAD] * 7]
    assert begun(torch.tensor([[5, 6, EOS], [7, EOS, PAD]])).tolist() == [[BOS, 5, 6], [BOS, 7, EOS]]


def test_the_longest_sentence_fits_the_model_with_its_padding() -> None:
    longest = 1024  # and its end: 1,025 tokens, in a row of 1,032
    model = replace(TOY, longest=longest, tokens=2 * longest, beam=Beam(size=2, extra=2)).build()
    row = rows(sentences([[5] * longest + [EOS]]), torch.tensor([0]))
    assert model(row, row[:, :1]).shape[:2] == (1, 1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_loss_in_closed_form(smoothing: float) -> None:
    logits = torch.randn(2, 3, 7, dtype=torch.float32, requires_grad=True)
    target = torch.tensor([[4, 5, EOS], [6, EOS, PAD]])
    log = logits.log_softmax(-1)
    expected = torch.zeros(())
    for row, column in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        wanted = torch.full((7,), smoothing / 7)
        wanted[target[row, column]] += 1 - smoothing
        expected = expected - (wanted * log[row, column]).sum()
    loss = summed_loss(logits, target, smoothing)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert logits.grad is not None
    assert (logits.grad[1, 2] == 0).all(), "padding teaches nothing"
    assert (logits.grad[0].abs().sum(-1) > 0).all()


def test_the_mean_loss_counts_every_token_once_however_batches_are_cut() -> None:
    text = toy().validation
    torch.manual_seed(1)
    model = TOY.build()
    expected = 0.0
    with torch.no_grad():
        for source, target in zip(text.source, text.target, strict=True):
            told = torch.tensor([[BOS, *target[:-1].tolist()]])
            log = model.eval()(source[None].long(), told).log_softmax(-1)[0]
            expected -= sum(log[at, token].item() for at, token in enumerate(target.tolist()))
    expected /= sum(map(len, text.target))
    for tokens in (8, 40, 1000):
        assert mean_loss(model.train(), text, tokens, CPU) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_together_compute_the_gradient_of_the_whole_batch(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """DDP averages what the ranks have; with three ranks and two pairs one of them has nothing to say."""
    text, chosen = toy().train, torch.tensor([7, 3])
    torch.manual_seed(1)
    objective = Objective(TOY.build(), 0.1)
    gradients = []
    for ranks in (1, size):
        objective.zero_grad()
        for rank in range(ranks):
            monkeypatch.setattr(translation, "world", lambda rank=rank, ranks=ranks: World(rank, ranks))
            source, target, counted = batch(text, chosen, torch.device("cpu"))
            loss = objective(source, target) * (ranks / counted)
            (loss / ranks).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in objective.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_translations_come_in_the_order_of_their_sources() -> None:
    text = toy().validation
    torch.manual_seed(1)
    model, beam = TOY.build().eval(), Beam(size=2, alpha=3.0, extra=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # opinions that differ from source to source
    together = translate(model, text, Words(), beam, 80, CPU)
    for number, source in enumerate(text.source):
        found, _ = beam_search(
            model, source[None].long(), torch.tensor([len(source) + 3]),
            start=BOS, end=EOS, never=(PAD, 1, BOS), beam=beam,
        )  # fmt: skip
        assert together[number] == Words().decode(found[0])
    assert len(set(together)) > 1


def test_bleu() -> None:
    text = ["A dog runs over the wet grass.", "Two men sit on a bench in a park."]
    assert bleu(text, text)[0] == pytest.approx(100.0)
    worse, signature = bleu(["A dog runs over the wet street.", text[1]], text)
    assert 50 < worse < 95
    assert "case:mixed" in signature
    assert "tok:13a" in signature
    assert "version:" in signature
    with pytest.raises(ValueError, match="got 2, 1"):
        bleu(text[:1], text)
