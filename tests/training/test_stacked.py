"""Language models trained side by side: each is the child it would be alone, whatever becomes of the others."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from language_tools import SIZE, curves_alone, curves_together, everywhere, small, write_text
from torch import Tensor
from torch._dynamo.utils import counters

import autodropout as ad
from autodropout.models.transformer_xl import TransformerXL, TransformerXLSize, initialize
from autodropout.patterns import bernoulli
from autodropout.recipes.language import RATE
from autodropout.training import language_crowd, stacked_language
from autodropout.training.language import example_for
from autodropout.training.language_crowd import Crowd
from autodropout.training.language_loss import cross_entropy, log_loss
from autodropout.training.noise import Noise
from autodropout.training.run import Run
from autodropout.training.stacked import StackedAdam

CPU = Run(device="cpu")
QUIET = replace(SIZE, embedding_dropout=0.0, softmax_dropout=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def _cold() -> None:
    language_crowd._warm.clear()


# A child in a crowd is the child alone


@pytest.mark.parametrize("dropouts", [True, False])
@pytest.mark.parametrize("rate", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_a_child_in_a_crowd_is_the_child_alone(folder: Path, rate: float, dropouts: bool) -> None:
    """Twenty steps, evaluated after each second one: weights, masks, clipping, schedule, averages, memory, reading."""
    how = small(folder, evaluate_every=2, size=SIZE if dropouts else QUIET)
    policies = [how.space().sample(seed=number) for number in range(3)]
    seeds = [5, 6, 5]
    together = curves_together(how, policies, rate, seeds, CPU)
    assert [len(curve) for curve in together] == [10] * 3
    torch.testing.assert_close(
        torch.tensor(together), torch.tensor(curves_alone(how, policies, rate, seeds, CPU)), rtol=2e-6, atol=0
    )
    assert together[0] != together[1]
    assert (together[0] == together[2]) == (rate == 0.0), "policies are all that tells these two from each other"


ODD = replace(SIZE, width=18, heads=3, head_size=5, inner=30)


@pytest.mark.parametrize("size", [SIZE, ODD])
def test_in_bfloat16(folder: Path, size: TransformerXLSize) -> None:
    """The difference is small beside that between bfloat16 and float32: no part computes in another precision."""
    how, run = small(folder, steps=10, size=size), replace(CPU, precision="bfloat16")
    policies, seeds = [everywhere(), everywhere(share_c=True)], [1, 2]
    together, alone = (torch.tensor(f(how, policies, 0.2, seeds, run)) for f in (curves_together, curves_alone))
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=0)


def test_rows_are_made_longer_by_zeros_and_stay_so(folder: Path) -> None:
    crowd = Crowd(small(folder, size=ODD), replace(CPU, precision="bfloat16"), 2)
    crowd.begin([everywhere(), everywhere(share_t=True)], 0.2, [1, 2])
    started = {name: weight.clone() for name, weight in crowd.stack.weights.items()}
    for _ in range(5):
        crowd.train_step()
    widened = {}
    for name, weight in crowd.stack.weights.items():
        own = crowd.stack.child(1)[name]
        assert not torch.equal(own, started[name][1][tuple(map(slice, own.shape))]), f"{name} learns"
        spare = weight[1].clone()
        spare[tuple(map(slice, own.shape))] = 0.0
        assert not spare.any(), name
        widened[name.removeprefix("model.")] = tuple(own.shape), tuple(weight[1].shape)
    assert widened["layers.0.feedforward.0.weight"] == ((30, 18), (32, 24))
    assert widened["layers.0.attention.output.weight"] == ((18, 15), (24, 16))
    vocabulary = len(crowd.stack.child(0)["model.softmax_bias"])
    assert widened["embedding.weight"] == ((vocabulary, 18), (vocabulary, 24))
    assert widened["layers.0.feedforward.0.bias"] == ((30,), (30,))


@pytest.mark.parametrize(("segment_memory", "evaluation_memory"), [(8, 0), (8, 20), (0, 8), (3, 8)])
def test_memories_of_other_lengths(folder: Path, segment_memory: int, evaluation_memory: int) -> None:
    how = small(folder, steps=5, size=replace(SIZE, memory=segment_memory), evaluation_memory=evaluation_memory)
    policies, seeds = [everywhere(), None], [1, 2]
    together, alone = (torch.tensor(f(how, policies, 0.2, seeds, CPU)) for f in (curves_together, curves_alone))
    torch.testing.assert_close(together, alone, rtol=2e-6, atol=0)


def test_slots_and_company_do_not_matter(folder: Path) -> None:
    how = small(folder, steps=10)
    policies = [how.space().sample(seed=number) for number in range(4)]
    four = how.fit_many(policies, 0.3, [1, 2, 3, 4], CPU)
    assert how.fit_many(policies[::-1], 0.3, [4, 3, 2, 1], CPU) == pytest.approx(four[::-1], rel=1e-6)
    one = [how.fit_many([policy], 0.3, [seed], CPU)[0] for policy, seed in zip(policies, [1, 2, 3, 4], strict=True)]
    assert one == pytest.approx(four, rel=1e-6)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_one_graph_serves_all_policies(folder: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    how, run = small(folder, steps=5, size=replace(SIZE, layers=1)), replace(CPU, compile=True)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    jobs = [
        ([everywhere(), how.space().sample(seed=1)], 0.3, [1, 2]),
        ([everywhere(share_t=True), how.space().sample(seed=2)], 0.1, [3, 4]),
        ([None, everywhere(share_c=True)], 0.0, [5, 6]),
    ]
    torch.compiler.reset()
    counters.clear()
    rewards, graphs = [], []
    for job in jobs:
        rewards.append(how.fit_many(*job, run))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] == graphs[2]
    assert not counters["graph_break"]
    for job, reward in zip(jobs, rewards, strict=True):
        assert reward == pytest.approx(how.fit_many(*job, CPU), rel=1e-5)


# Policies


def test_each_child_has_its_own_policy(folder: Path) -> None:
    """One that drops every value of every site cannot learn; beside it others learn as they do alone."""
    how = small(folder, steps=200, lr=1e-2, lr_after_cosine=3e-3, lr_constant=1e-3, evaluate_every=100, size=QUIET)
    all_of_it = everywhere(size=70, stride=0)
    free, dropped, again = how.fit_many([None, all_of_it, None], 1.0, [0, 0, 0], CPU)
    assert free == again > 1.5 * dropped
    assert free == pytest.approx(how.fit(None, 0.0, 0, CPU).reward, rel=1e-3)  # 200 steps of rounding


def test_a_second_job_and_idle_slots(folder: Path) -> None:
    """Whatever a crowd did before, it does the next job as a new one would, in the very same tensors."""
    how = small(folder, steps=10)
    policies = [how.space().sample(seed=number) for number in range(5)]
    how.fit_many(policies[:3], 0.3, [1, 2, 3], CPU)
    [crowd] = language_crowd._warm.values()
    places = [weight.data_ptr() for weight in crowd.stack.weights.values()]
    warm = how.fit_many(policies[3:], 0.1, [4, 5], CPU)
    assert [weight.data_ptr() for weight in crowd.stack.weights.values()] == places
    assert list(language_crowd._warm.values()) == [crowd], "two children fit where three were"
    language_crowd._warm.clear()
    assert warm == pytest.approx(how.fit_many(policies[3:], 0.1, [4, 5], CPU), rel=1e-6)
    assert how.fit_many([], 0.1, [], CPU) == []


def test_more_children_than_slots_and_another_training(folder: Path) -> None:
    how = small(folder, steps=3)
    how.fit_many([None], 0.1, [0], CPU)
    how.fit_many([None] * 3, 0.1, [0, 1, 2], CPU)
    assert [crowd.children for crowd in language_crowd._warm.values()] == [3]
    small(folder, steps=4).fit_many([None], 0.1, [0], CPU)
    assert [crowd.training.steps for crowd in language_crowd._warm.values()] == [4], "one crowd is kept, no more"


# Ends


def raising(error: BaseException, at: int, seen: list[int]) -> Callable[[int, float], None]:
    def report(step: int, reward: float) -> None:
        seen.append(step)
        if step >= at:
            raise error

    return report


def test_what_a_report_raises_ends_one_child(folder: Path) -> None:
    how = small(folder)
    policies, seeds = [everywhere()] * 4, [1, 2, 3, 4]
    alone = how.fit_many(policies, 0.2, seeds, CPU)
    seen: list[list[int]] = [[] for _ in policies]
    errors = (ad.Stopped("hopeless"), FloatingPointError("not finite"), ConnectionError("gone"))
    reports = [raising(error, 10, list_of) for error, list_of in zip(errors, seen, strict=False)]
    reports.append(lambda step, reward: seen[3].append(step))
    rewards = how.fit_many(policies, 0.2, seeds, CPU, reports)
    assert all(math.isnan(reward) for reward in rewards[:3])
    assert rewards[3] == alone[3]
    assert seen == [[5, 10]] * 3 + [[5, 10, 15, 20]]


def test_it_ends_when_all_have_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = small(folder)
    steps: list[int] = []
    train = Crowd._train
    monkeypatch.setattr(Crowd, "_train", lambda self: (steps.append(1), train(self))[1])
    seen: list[int] = []
    rewards = how.fit_many([None, None], 0.2, [1, 2], CPU, [raising(ad.Stopped("enough"), 5, seen)] * 2)
    assert all(math.isnan(reward) for reward in rewards)
    assert len(steps) == 5


def test_a_signal_ends_all_and_leaves_no_half_made_crowd(folder: Path) -> None:
    how, seen = small(folder), []
    with pytest.raises(KeyboardInterrupt):
        how.fit_many([None, None], 0.2, [1, 2], CPU, [raising(KeyboardInterrupt(), 5, seen)] * 2)
    assert not language_crowd._warm


def test_a_child_that_diverges_does_not_touch_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of one become NaN. Alone it would raise; here it scores nan, and its slot is as good as new after it."""
    how = small(folder)
    policies, seeds = [everywhere()] * 3, [1, 2, 3]
    alone = how.fit_many(policies, 0.2, seeds, CPU)
    train, spoils = Crowd._train, [True]

    def spoil(self: Crowd) -> None:
        train(self)
        if self._step.item() == 18 and spoils:  # when weights are averaged
            for weight in self.stack.child(1).values():
                weight.fill_(math.nan)

    language_crowd._warm.clear()
    monkeypatch.setattr(Crowd, "_train", spoil)
    reported: list[list[int]] = [[], [], []]
    reports = [lambda step, reward, steps=steps: steps.append(step) for steps in reported]
    rewards = how.fit_many(policies, 0.2, seeds, CPU, reports)
    assert [rewards[0], rewards[2]] == [alone[0], alone[2]]
    assert math.isnan(rewards[1])
    assert reported == [[5, 10, 15, 20], [5, 10, 15], [5, 10, 15, 20]], "what is not finite is not reported"
    spoils.clear()
    assert how.fit_many(policies, 0.2, seeds, CPU) == alone


def test_most_steps_left_out_is_divergence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As alone: a child most of whose gradients are not finite has diverged, though its weights stay finite."""
    how = small(folder)
    step = StackedAdam.step

    def spoil(self: StackedAdam, gradients: dict[str, Tensor], lr: Tensor) -> Tensor:
        gradients["model.softmax_bias"][1] = math.inf
        return step(self, gradients, lr)

    monkeypatch.setattr(StackedAdam, "step", spoil)
    kept, lost = how.fit_many([None, None], 0.2, [1, 2], CPU)
    assert math.isfinite(kept)
    assert math.isnan(lost)


# Its parts


def test_reading_is_log_loss(folder: Path) -> None:
    """Of every slot: weights that are large enough to matter, against the model alone."""
    how = small(folder)
    crowd = Crowd(how, CPU, 3)
    crowd.begin([None] * 3, 0.0, [1, 2, 3])
    for weight in crowd.stack.weights.values():
        weight.mul_(torch.tensor([1.0, 5.0, 20.0]).view(-1, *[1] * (weight.dim() - 1)))
    expected = []
    for child in range(3):
        model = how.build()
        model.load_state_dict({name.removeprefix("model."): w for name, w in crowd.stack.child(child).items()})
        expected.append(log_loss(model, how.pages(how.text().validation, "the text"), how.evaluation_memory))
    assert crowd.reading.nats(averaged=False) == pytest.approx(expected, rel=1e-6)
    assert expected[2] > expected[0]


def test_cross_entropy_is_torchs(folder: Path) -> None:
    model = small(folder).build()
    hidden = torch.randn(3, 10, model.size.width, requires_grad=True)
    targets = torch.randint(len(model.softmax_bias), (3, 10))
    leaves = hidden, model.embedding.weight, model.softmax_bias
    model.softmax_bias.data.normal_()
    ours, torchs = stacked_language.cross_entropy(model, hidden, targets), cross_entropy(model, hidden, targets)
    torch.testing.assert_close(ours, torchs)
    torch.testing.assert_close(torch.autograd.grad(ours, leaves), torch.autograd.grad(torchs, leaves))


@pytest.mark.parametrize("shape", [(3, 1, 5), (4, 6), (1,)])
def test_draws_of_stacked_seeds_are_those_of_each(shape: tuple[int, ...]) -> None:
    seeds, rates = torch.tensor([7, -3, 2**62]), torch.tensor([0.2, 0.5, 1.0])
    for rate, dim in ((rates, 0), (torch.tensor(0.5), None)):
        stacked = torch.vmap(lambda seed, rate: bernoulli(shape, rate, seed), in_dims=(0, dim))(seeds, rate)
        each = [bernoulli(shape, rate if dim is None else rate[number], seed) for number, seed in enumerate(seeds)]
        assert torch.equal(stacked, torch.stack(each))


def test_masks_follow_from_seed_and_step(folder: Path) -> None:
    """Of the model's own dropouts and of a policy; whatever else draws numbers."""
    how = small(folder)

    def hidden(seed: int, step: int) -> Tensor:
        model = how.build().train()
        initialize(model.named_parameters(), torch.Generator().manual_seed(0))
        ad.attach(model, everywhere(), rate=0.3, example=example_for(model))
        noise = Noise(model, seed, torch.device("cpu"))
        noise.at(step)
        torch.rand(step + 1)
        return model.softmax_dropout(model(torch.arange(8).view(1, 8), model.blank_memory(1))[0])

    first = hidden(1, 5)
    assert torch.equal(first, hidden(1, 5))
    for other in (hidden(1, 6), hidden(2, 5), hidden(0, 6)):
        assert not torch.equal(first, other)


def test_initial_weights() -> None:
    """Of both kinds, and again over what was there before."""
    model = TransformerXL(50, SIZE)
    initialize(model.named_parameters(), torch.Generator().manual_seed(1))
    first = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(7.0)
    initialize(model.named_parameters(), torch.Generator().manual_seed(1))
    for name, weight in model.named_parameters():
        assert torch.equal(weight, first[name])
        if weight.dim() == 1:
            assert set(weight.tolist()) == {1.0 if ".norm" in name and name.endswith("weight") else 0.0}, name
    assert first["embedding.weight"].std().item() == pytest.approx(0.02, rel=0.1)


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1]}, "2 policies, 1 seeds"),
        ({"reports": [print]}, "2 policies, 2 seeds, 1 reports"),
        ({"rate": 1.5}, r"rate must lie in \[0, 1\], got 1.5"),
        ({"policies": [None, ad.baseline("dropout")]}, "policies for Transformers, got Baseline"),
        ({"run": replace(CPU, test=True)}, "has no test"),
        ({"run": replace(CPU, folder=Path("somewhere"))}, "has no folder"),
    ],
)
def test_bad_input(folder: Path, changes: dict, message: str) -> None:
    call = {"policies": [None, None], "rate": RATE, "seeds": [1, 2], "run": CPU, "reports": None} | changes
    with pytest.raises(ValueError, match=message):
        small(folder).fit_many(**call)
