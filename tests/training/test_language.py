"""Training language models: step by step what it says, resumable to the bit, and fair in judging."""

import math
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from language_tools import SIZE, VOCABULARY, small, write_text
from torch import Tensor, nn

import autodropout as ad
from autodropout.data import ptb
from autodropout.models.transformer_xl import TransformerXL, initialize
from autodropout.spaces import TRANSFORMER_SITES
from autodropout.training import language
from autodropout.training.language import LanguageTraining
from autodropout.training.language_loss import Objective, log_loss, perplexity
from autodropout.training.noise import Noise
from autodropout.training.run import Run, identity
from autodropout.training.streams import Pages, Streams

CPU = Run(device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("data"))


class Enough(Exception):
    pass


class Fixed(nn.Module):
    """Stands in for a model: hidden states that are given, and a softmax dropout that doubles."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, tokens: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.hidden, memory

    def softmax_dropout(self, hidden: Tensor) -> Tensor:
        return 2 * hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.zeros(*hidden.shape[:2], 5)


def test_penalties_on_values_and_differences() -> None:
    hidden = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [3.0, 4.0]]])  # one row of three words, two channels
    objective = Objective(Fixed(hidden), state_value=0.5, state_difference=0.25)
    loss, penalty, _ = objective(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.int64), None)
    assert loss == pytest.approx(math.log(5))
    # values: 4 (1 + 9 + 9 + 16) / 6; differences: (2, 0) and (0, 4), (4 + 16) / 4
    assert penalty == pytest.approx(0.5 * 4 * 35 / 6 + 0.25 * 20 / 4)


def test_training_step_by_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights at each evaluation, against a loop that does what the paper's appendix says in the plainest way."""
    how = small(folder)
    seen: list[dict[str, Tensor]] = []
    judge = LanguageTraining.judge

    def look(self: LanguageTraining, model: TransformerXL, pages: Pages, run: Run) -> float:
        seen.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
        return judge(self, model, pages, run)

    monkeypatch.setattr(LanguageTraining, "judge", look)
    how.fit(None, 0.0, seed=5, run=CPU)

    model = how.build().train()
    initialize(model.named_parameters(), torch.Generator().manual_seed(5))
    noise = Noise(model, 5, torch.device("cpu"))
    adam = torch.optim.Adam(model.parameters())
    streams = Streams(ptb.load(data=folder).train, rows=4, segment=8)
    memory = torch.zeros(2, 4, 8, 16)
    expected, trail = [], []
    for step in range(20):
        cosine = 1e-3 + (3e-3 - 1e-3) * (1 + math.cos(math.pi * step / 16)) / 2
        adam.param_groups[0]["lr"] = cosine if step < 16 else 5e-4
        noise.at(step)
        tokens, targets = streams(step)
        hidden, memory = model(tokens, memory)
        dropped = model.softmax_dropout(hidden)
        loss = F.cross_entropy(model.logits(dropped).flatten(0, 1), targets.flatten())
        values, differences = dropped.pow(2).mean(), (hidden[:, 1:] - hidden[:, :-1]).pow(2).mean()
        model.zero_grad()
        (loss + 0.02 * values + 0.01 * differences).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        adam.step()
        weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        if step >= 16:
            trail.append(weights)
        if step % 5 == 4:
            mean = {name: torch.stack([past[name] for past in trail]).mean(0) for name in weights} if trail else weights
            expected.append(mean)
    assert len(seen) == len(expected) == 4
    for one, other in zip(seen, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)


def test_it_learns(folder: Path) -> None:
    """From 13 words down towards the 1.6 that the text leaves open."""
    rewards: list[float] = []
    how = small(folder, steps=400, lr=1e-2, lr_after_cosine=3e-3, lr_constant=1e-3, evaluate_every=100)
    scores = how.fit(None, 0.0, 0, replace(CPU, report=lambda step, reward: rewards.append(reward), test=True))
    assert rewards[0] > 80 / VOCABULARY
    assert scores.metrics["validation_perplexity"] < 3
    assert scores.metrics["test_perplexity"] < 3
    assert scores.reward == max(rewards) == pytest.approx(80 / scores.metrics["validation_perplexity"])


def test_seed_and_policy_decide_everything(folder: Path) -> None:
    how = small(folder, steps=6)
    policy = how.space().sample(seed=0)

    def reward(regularizer=policy, rate: float = 0.3, seed: int = 1) -> float:
        torch.rand(5)  # whatever drew numbers before
        return how.fit(regularizer, rate, seed, CPU).reward

    first = reward()
    assert first == reward()
    others = [
        reward(seed=2),
        reward(rate=0.1),
        reward(how.space().sample(seed=2)),
        reward(None),
        reward(ad.baseline("variational_dropout")),
    ]
    assert len({first, *others}) == 6


def test_what_is_said_of_a_reward(folder: Path) -> None:
    """Also of one that is too small for a number: of a model that is all but certain of the wrong words."""
    how = small(folder)
    assert how.metrics("test", 0.8) == {"test_perplexity": 100.0}
    assert how.metrics("test", 0.0)["test_perplexity"] == pytest.approx(perplexity(1e9))


def test_the_space_is_that_of_its_model(folder: Path) -> None:
    assert small(folder).space() == ad.TransformerSpace(sites=TRANSFORMER_SITES)


def test_all_sites_of_the_policy_are_reached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attachments = []

    def look(*args, **options) -> ad.Attachment:
        attachments.append(ad.attach(*args, **options))
        return attachments[-1]

    monkeypatch.setattr(language, "attach", look)
    small(folder, steps=1).fit(small(folder).space().sample(seed=0), 0.25, 0, CPU)
    (on,) = attachments
    assert (on.rate, on.unreached, len(on.sites)) == (0.25, (), 22)


def test_interrupted_and_resumed_it_comes_to_the_same(folder: Path, tmp_path: Path) -> None:
    how = small(folder)
    policy = how.space().sample(seed=0)
    curve: list[tuple[int, float]] = []
    whole = how.fit(policy, 0.3, 1, replace(CPU, report=lambda *one: curve.append(one), test=True))

    def stop_at(last: int, step: int, reward: float) -> None:
        if step == last:
            raise Enough

    run = replace(CPU, folder=tmp_path / "run", checkpoint_every=3, test=True)
    for last in (10, 20):  # before weights are averaged, and after
        with pytest.raises(Enough):
            how.fit(policy, 0.3, 1, replace(run, report=partial(stop_at, last)))
    again: list[tuple[int, float]] = []
    resumed = how.fit(policy, 0.3, 1, replace(run, report=lambda *one: again.append(one)))
    assert again == curve
    assert resumed.reward == whole.reward
    for name in ("validation_perplexity", "test_perplexity", "train_loss"):
        assert resumed.metrics[name] == whole.metrics[name]
    finished = how.fit(policy, 0.3, 1, run)
    assert finished.reward == whole.reward
    assert finished.metrics["test_perplexity"] == whole.metrics["test_perplexity"]


def test_another_experiment_is_not_resumed(folder: Path, tmp_path: Path) -> None:
    run = replace(CPU, folder=tmp_path / "run")
    small(folder, steps=5).fit(None, 0.0, 0, run)
    with pytest.raises(ValueError, match="clip"):
        small(folder, steps=5, clip=0.5).fit(None, 0.0, 0, run)


def test_it_travels_and_says_what_it_is(folder: Path) -> None:
    how = small(folder)
    assert pickle.loads(pickle.dumps(how)) == how
    elsewhere = replace(how, data=Path("elsewhere"))
    assert identity(how, None, 0.2, 0) == identity(elsewhere, None, 0.2, 0)
    assert identity(how, None, 0.2, 0) != identity(replace(how, segment=9), None, 0.2, 0)


def nats_by_hand(model: TransformerXL, words: Tensor) -> Tensor:
    """Of each word after the first, the whole text being read at once."""
    hidden, _ = model.eval()(words[None, :-1])
    return F.cross_entropy(model.logits(hidden)[0], words[1:], reduction="none")


def test_log_loss_counts_every_word() -> None:
    torch.manual_seed(3)
    model = TransformerXL(VOCABULARY, SIZE)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    words = torch.randint(0, VOCABULARY, (30,))
    whole = nats_by_hand(model, words)
    model.train()
    for segment in (4, 7, 29):
        one_row = Pages.of(words, rows=1, segment=segment)
        assert log_loss(model, one_row, memory=30) == pytest.approx(whole.mean().item(), rel=1e-5)
        forgetful = torch.cat([nats_by_hand(model, words[at : at + segment + 1]) for at in range(0, 29, segment)])
        model.train()
        assert log_loss(model, one_row, memory=0) == pytest.approx(forgetful.mean().item(), rel=1e-5)
    assert model.training, "left as it was"
    rows = torch.cat([nats_by_hand(model, part) for part in (words[:11], words[10:21], words[20:])])  # 10, 10 and 9
    assert log_loss(model, Pages.of(words, rows=3, segment=4), memory=30) == pytest.approx(rows.mean().item(), rel=1e-5)


def test_perplexity_stays_finite() -> None:
    assert perplexity(math.log(80.0)) == pytest.approx(80.0)
    assert math.isfinite(perplexity(1e6))


def test_a_search_never_sees_the_test_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ptb.load(data=folder)

    class Guarded:
        """The text, without `test`."""

        train, validation, vocabulary = whole.train, whole.validation, whole.vocabulary

    monkeypatch.setitem(language.CORPORA, "ptb", lambda data: Guarded)
    scores = small(folder, steps=2).fit(None, 0.0, 0, CPU)
    assert "test_perplexity" not in scores.metrics
    with pytest.raises(AttributeError, match="test"):
        small(folder, steps=2).fit(None, 0.0, 0, replace(CPU, test=True))


def test_half_precision_is_near(folder: Path) -> None:
    how = small(folder)
    whole, half = how.fit(None, 0.0, 0, CPU), how.fit(None, 0.0, 0, replace(CPU, precision="bfloat16"))
    assert half.reward == pytest.approx(whole.reward, rel=0.05)
    assert half.reward != whole.reward
