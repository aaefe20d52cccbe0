"""Training a translator: its batches, its loss, its scores, resuming, and what it says of text it cannot use."""

import json
import math
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from translation_tools import PIECES, TOY, Words, pairs, sentences, toy

import autodropout as ad
from autodropout.data import Pairs, Translation, multi30k
from autodropout.data.folders import MissingData
from autodropout.data.subwords import BOS, EOS, PAD
from autodropout.training import translation
from autodropout.training.checkpoint import CheckpointError
from autodropout.training.decoding import Beam, beam_search
from autodropout.training.distributed import World
from autodropout.training.run import Run
from autodropout.training.token_batches import TokenBatches, begun, rows
from autodropout.training.translation import Objective, batch
from autodropout.training.translation_scores import bleu, mean_loss, summed_loss, translate

CPU = Run(device="cpu")


# batches


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


# loss


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


# scores


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


# training


def test_a_training_from_text_to_scores(tmp_path: Path) -> None:
    heard: list[tuple[int, float]] = []
    run = Run(tmp_path, device="cpu", report=lambda *one: heard.append(one))
    scores = TOY.fit_on(toy(), None, 0.0, 0, run)
    lines = logged(tmp_path)
    assert [line["step"] for line in lines] == [10, 20, 30]
    losses = [line["metrics"]["validation_loss"] for line in lines]
    assert losses[0] > losses[1] > losses[2], "it learns"
    assert losses[0] < math.log(PIECES) + 0.5
    bleu = scores.metrics["validation_bleu"]
    assert heard == [(10, math.exp(-losses[0])), (20, math.exp(-losses[1])), (30, bleu / 100)]
    assert scores.reward == bleu / 100
    assert scores.metrics["validation_perplexity"] == pytest.approx(math.exp(losses[2]))
    assert not [name for name in scores.metrics if name.startswith("test")]
    translations = (tmp_path / "validation.en").read_text().splitlines()
    about = json.loads((tmp_path / "validation.bleu.json").read_text())
    assert len(translations) == about["pairs"] == 12
    assert about["bleu"] == bleu
    assert "version:" in about["signature"]
    assert not (tmp_path / "test.en").exists()

    again = TOY.fit_on(toy(), None, 0.0, 0, Run(tmp_path, device="cpu", test=True))
    assert again.reward == scores.reward
    assert again.metrics["test_loss"] > 0
    assert 0 <= again.metrics["test_bleu"] <= 100
    assert len((tmp_path / "test.en").read_text().splitlines()) == 12


def test_it_learns_to_translate_sentences_it_has_not_seen() -> None:
    size = replace(TOY.size, width=32, heads=4, inner=64)
    how = replace(TOY, steps=300, warmup=20, lr=1e-2, tokens=500, size=size, evaluate_every=300)
    assert how.fit_on(toy(train=400, judged=20), None, 0.0, 0, CPU).metrics["validation_bleu"] > 60


def outcome(folder: Path | None, regularizer: ad.TransformerPolicy | None = None, seed: int = 0, **changes) -> float:
    scores = replace(TOY, **changes).fit_on(toy(), regularizer, 0.3, seed, Run(folder, device="cpu"))
    return scores.metrics["validation_loss"]


def test_policy_and_seed_decide_everything() -> None:
    space = TOY.space()
    one, other = space.sample(seed=0), space.sample(seed=1)
    loss = outcome(None, one)
    torch.rand(5)
    assert outcome(None, one) == loss
    assert len({loss, outcome(None, other), outcome(None, one, seed=1), outcome(None)}) == 4


class Crash(Exception):
    pass


def test_a_training_that_crashed_ends_as_if_it_had_not(tmp_path: Path) -> None:
    policy = TOY.space().sample(seed=0)
    whole = outcome(tmp_path / "whole", policy)

    def crash(step: int, value: float) -> None:
        if step == 20:
            raise Crash

    with pytest.raises(Crash):
        TOY.fit_on(toy(), policy, 0.3, 0, Run(tmp_path / "cut", device="cpu", checkpoint_every=7, report=crash))
    assert (tmp_path / "cut" / "checkpoint-000000014.safetensors").exists()
    assert outcome(tmp_path / "cut", policy) == whole
    for name in ("validation.en", "checkpoint-000000030.safetensors"):
        assert (tmp_path / "cut" / name).exists()
    assert logged(tmp_path / "cut") == logged(tmp_path / "whole")


def logged(folder: Path) -> list[dict]:
    """The log but for its times."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line) | {"time": None} for line in lines]


WORKER = [str(Path(__file__).with_name("translation_worker.py"))]


@pytest.mark.slow
def test_a_training_that_was_killed_ends_as_if_it_had_not(tmp_path: Path) -> None:
    subprocess.run([sys.executable, *WORKER, str(tmp_path / "whole")], check=True, timeout=120)
    cut = tmp_path / "cut"
    with subprocess.Popen([sys.executable, *WORKER, str(cut), "0.2"]) as process:
        until = time.monotonic() + 60
        while not list(cut.glob("checkpoint-*")) and time.monotonic() < until:
            time.sleep(0.05)
        process.kill()
    assert not (cut / "validation.en").exists()
    subprocess.run([sys.executable, *WORKER, str(cut)], check=True, timeout=120)
    assert logged(cut) == logged(tmp_path / "whole")


@pytest.mark.slow
def test_two_ranks_train_as_one_process_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *WORKER]
    subprocess.run([*command, str(tmp_path / "two")], check=True, timeout=240)
    replace(TOY, tokens=80).fit_on(toy(), None, 0.1, 0, Run(tmp_path / "one", device="cpu"))
    for two, alone in zip(logged(tmp_path / "two"), logged(tmp_path / "one"), strict=True):
        for name in ("train_loss", "validation_loss"):
            assert two["metrics"][name] == pytest.approx(alone["metrics"][name], rel=1e-3)
    assert len((tmp_path / "two" / "validation.en").read_text().splitlines()) == 12


def test_a_checkpoint_of_other_text_is_refused(tmp_path: Path) -> None:
    TOY.fit_on(toy(), None, 0.0, 0, Run(tmp_path, device="cpu"))
    with pytest.raises(CheckpointError, match="pairs"):
        TOY.fit_on(toy(train=61), None, 0.0, 0, Run(tmp_path, device="cpu"))


def test_bfloat16() -> None:
    loss = TOY.fit_on(toy(), None, 0.0, 0, Run(device="cpu", precision="bfloat16")).metrics["validation_loss"]
    assert loss == pytest.approx(outcome(None), rel=0.05)


def test_divergence() -> None:
    with pytest.raises(FloatingPointError):
        outcome(None, lr=1e30)


def test_every_site_of_the_paper_is_in_its_space_and_reached() -> None:
    space = TOY.space()
    assert isinstance(space, ad.TransformerSpace)
    assert len(space.sites) == 11
    model = TOY.build()
    on = ad.attach(model, space.sample(seed=0), rate=0.1, example=translation._example(model))
    assert on.unreached == ()


def test_a_training_travels() -> None:
    assert pickle.loads(pickle.dumps(TOY)) == TOY


# mistakes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "wmt15"}, "iwslt14, multi30k, tatoeba, wmt14, got 'wmt15'"),
        ({"lowercase": True}, "multi30k is read as it is written"),
        ({"steps": 0}, "steps .* got 0"),
        ({"train": 0}, "train .* got 0"),
        ({"judged": 0}, "judged .* got 0"),
        ({"warmup": 30}, r"warmup .*\[0, 30\).* got 30"),
        ({"lr": 0.0}, "lr .* got 0.0"),
        ({"label_smoothing": 1.0}, "label_smoothing .* got 1.0"),
        ({"tokens": 10}, "10 tokens has no room for a sentence of 10 and its end"),
    ],
)
def test_configurations_that_are_none(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TOY, **change)


GOOD = pairs(3, 0)


def one(source: list[int], target: list[int], references: tuple[str, ...] = ("a",)) -> Pairs:
    return Pairs(sentences([source]), sentences([target]), references)


def with_part(name: str, part: Pairs) -> Translation:
    """Around the checks of `Translation` itself, which has some of these."""
    data = object.__new__(Translation)
    parts = {"train": GOOD, "validation": GOOD, "test": GOOD, name: part}
    for field, value in {**parts, "vocabulary": Words(), "left_out": 0}.items():
        object.__setattr__(data, field, value)
    return data


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        ("train", Pairs(sentences([]), sentences([])), "there are no training pairs"),
        ("validation", Pairs(sentences([]), sentences([])), "there are no validation pairs"),
        (
            "train",
            one([5, EOS], [5, PIECES, EOS]),
            f"training target holds the token {PIECES}: not in 1 to {PIECES - 1}",
        ),
        ("test", one([5, -1, EOS], [5, EOS]), "test source holds the token -1"),
        ("train", one([5, PAD, EOS], [5, EOS]), "training source holds the token 0"),
        ("train", one([5] * 11 + [EOS], [5, EOS]), "training pair 0: the source has 12 tokens, the limit is 11"),
        ("validation", one([5, EOS], [5] * 1024 + [EOS]), "validation pair 0: the target has 1025 tokens, .* 1024"),
        ("validation", one([5, EOS], [5, EOS], ()), "1 validation pairs have 0 references"),
        ("train", one([], [5, EOS]), "training pair 0: the source lacks its end"),
        ("train", one([5, 6], [5, EOS]), "training source does not end with its end token"),
    ],
)
def test_text_that_cannot_be_used(name: str, part: Pairs, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TOY.fit_on(with_part(name, part), None, 0.0, 0, CPU)


def test_sources_and_targets_that_are_not_equally_many() -> None:
    with pytest.raises(ValueError, match="1 sources, 2 targets"):
        Pairs(sentences([[EOS]]), sentences([[EOS], [EOS]]))


def test_a_vocabulary_of_another_size() -> None:
    with pytest.raises(ValueError, match=f"{PIECES} subwords, the model {PIECES + 1}"):
        replace(TOY, pieces=PIECES + 1).fit_on(toy(), None, 0.0, 0, CPU)


def test_text_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="multi30k"):
        replace(TOY, data=tmp_path).fit(None, 0.0, 0, CPU)


# learning, on real text


def captions(**options) -> Translation:
    try:
        return multi30k.load("de", "en", pieces=2_000, **options)
    except MissingData:
        pytest.skip("Multi30k is not there")


SMALL = replace(
    TOY,
    pieces=2_000,
    longest=360,
    tokens=1_000,
    steps=350,
    warmup=40,
    lr=2e-3,
    size=replace(TOY.size, layers=2, width=128, heads=4, inner=256),
    beam=Beam(),
)


@pytest.mark.slow
def test_two_hundred_captions_are_learned_by_heart() -> None:
    data = captions(train=200)
    references = tuple(data.vocabulary.decode(target.tolist()) for target in data.train.target)
    known = Pairs(data.train.source, data.train.target, references)
    how = replace(SMALL, evaluate_every=350)
    scores = how.fit_on(replace(data, validation=known), None, 0.0, 0, CPU)
    assert scores.metrics["validation_bleu"] > 90


@pytest.mark.slow
def test_the_held_out_loss_falls_on_ten_thousand_captions(tmp_path: Path) -> None:
    how = replace(SMALL, steps=300, evaluate_every=75, judged=200)
    how.fit_on(captions(train=10_000), None, 0.0, 0, Run(tmp_path, device="cpu"))
    losses = [line["metrics"]["validation_loss"] for line in logged(tmp_path)]
    assert all(later < earlier - 0.02 for earlier, later in pairwise(losses))
    assert losses[-1] < 4.5  # a model of the frequencies of subwords alone has about 5.6
