"""Training a translator: from text to scores, resuming, and learning on real text."""

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
from translation_tools import PIECES, TOY, toy

import autodropout as ad
from autodropout.data import Pairs, Translation, multi30k
from autodropout.data.folders import MissingData
from autodropout.training import translation
from autodropout.training.checkpoint import CheckpointError
from autodropout.training.decoding import Beam
from autodropout.training.run import Run

CPU = Run(device="cpu")


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
