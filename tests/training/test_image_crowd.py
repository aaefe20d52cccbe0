"""Crowds of image trainings: each child is the one that `fit` trains alone, whoever is trained beside it."""

import math
import weakref
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from small_images import PICTURES, busy
from small_images import TRAINING as SMALL
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import autodropout as ad
from autodropout.attach.schedule import Shape
from autodropout.training import Cosine, FixRes, ImageTraining, Pictures, RmsProp, Run, Sgd
from autodropout.training import image_crowd as module
from autodropout.training import image_slot as slot_module
from autodropout.training.augment import MIXES
from autodropout.training.ema import MovingAverage, share
from autodropout.training.flat import ALIGNED, Flat, FlatAverage
from autodropout.training.graphed import Lane, at
from autodropout.training.image_crowd import Crowd
from autodropout.training.image_learner import Learner
from autodropout.training.run import Regularizer, Scores
from autodropout.training.semi_supervised import FixMatch, SemiSupervisedTraining

TRAINING = replace(SMALL, pictures=replace(PICTURES, validation=90))  # 90: not a whole number of batches
BUSY = busy(TRAINING)
POLICIES = [TRAINING.space().sample(seed=seed) for seed in range(3)]
SEEDS = [5, 0, 7]
CPU = Run(device="cpu")
RATE = 0.3


@pytest.fixture(autouse=True)
def cold() -> None:
    module._warm.clear()


def alone(training: ImageTraining, regularizer: Regularizer, seed: int, rate: float = RATE) -> Tensor:
    """The losses of a lone child, step by step."""
    with ExitStack() as closing:
        learner = Learner(training, training.load(), regularizer, rate, seed, CPU, closing)
        return torch.stack([learner.step(step)["train_loss"].detach() for step in range(training.steps)])


@pytest.mark.parametrize(
    "training",
    [
        TRAINING,
        BUSY,
        replace(TRAINING, optimizer=RmsProp(lr=0.01)),
        replace(TRAINING, optimizer=Sgd(lr=0.05, decay_all=False), augmentation="standard"),
        replace(TRAINING, augmentation="imagenet"),
        *(replace(TRAINING, mix=mix) for mix in MIXES if mix not in ("none", "cutmix")),
    ],
    ids=lambda t: f"{t.mix}-{t.augmentation}-{type(t.optimizer).__name__}",
)
def test_a_child_in_a_crowd_is_the_child_alone(training: ImageTraining) -> None:
    crowd = Crowd(training, CPU)
    crowd.fit(POLICIES, RATE, [1, 2, 3])  # what was in the slots before leaves no trace
    rewards = crowd.fit(POLICIES, RATE, SEEDS)
    for slot, policy, seed, reward in zip(crowd.active, POLICIES, SEEDS, rewards, strict=True):
        assert torch.equal(slot.losses(), alone(training, policy, seed))
        assert reward == training.fit(policy, RATE, seed, CPU).reward


def test_the_rate_of_a_baseline_changes_as_in_a_lone_training() -> None:
    """To the bit: unlike a policy's, it scales what is kept."""
    training, rates = replace(TRAINING, rates="linear"), [0.1, 0.2, 0.37, 0.5]
    dropout = ad.baseline("dropout")
    training.fit_many([dropout] * 4, rates, [0] * 4, CPU)
    (crowd,) = module._warm.values()
    for slot, rate in zip(crowd.active, rates, strict=True):
        assert torch.equal(slot.losses(), alone(training, dropout, 0, rate))


def test_all_kinds_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own limit, beyond which it says so and goes on uncompiled, is 8 graphs of one function."""
    limits: list[int] = []
    monkeypatch.setattr(slot_module.Slot, "prepare", lambda slot: limits.append(torch._dynamo.config.recompile_limit))
    before = torch._dynamo.config.recompile_limit
    kinds = [ad.baseline("dropblock", block=block) for block in range(1, 11)]
    Crowd(TRAINING, replace(CPU, compile=True)).make_room(kinds)
    assert len(limits) == 10
    assert min(limits) >= 10
    assert torch._dynamo.config.recompile_limit == before


@pytest.mark.parametrize("optimizer", [Sgd(lr=0.05), RmsProp(lr=0.01)], ids=["Sgd", "RmsProp"])
def test_in_bfloat16_too(optimizer: Sgd | RmsProp) -> None:
    """Where a crowd keeps weights of bfloat16, and a lone child lets autocast make them."""
    training, half = replace(TRAINING, optimizer=optimizer, average=0.9), replace(CPU, precision="bfloat16")
    crowd = Crowd(training, half)
    for seed in (1, SEEDS[0]):
        crowd.fit(POLICIES[:1], RATE, [seed])
    (slot,) = crowd.active
    assert {weight.dtype for weight in slot.model.parameters()} == {torch.bfloat16, torch.float32}
    with ExitStack() as closing:
        learner = Learner(training, training.load(), POLICIES[0], RATE, SEEDS[0], half, closing)
        losses = torch.stack([learner.step(step)["train_loss"].detach() for step in range(training.steps)])
    assert torch.equal(slot.losses(), losses)
    assert slot._average is not None
    with learner.averaged(), slot._average.applied():
        lone = learner.model.state_dict()
        assert all(torch.equal(value, lone[name]) for name, value in slot._flat.named.items())


def test_without_a_policy_too() -> None:
    bare, mixed = Crowd(TRAINING, CPU, dropping=False), Crowd(TRAINING, CPU)
    bare.fit([None], RATE, [3])
    mixed.fit([POLICIES[0], None], RATE, [3, 3])
    assert torch.equal(bare.active[0].losses(), alone(TRAINING, None, 3))
    assert torch.equal(bare.active[0].losses(), mixed.active[1].losses())


def test_images_chosen_ahead_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    long = replace(TRAINING, steps=9)
    monkeypatch.setattr(slot_module, "LEAD", 4)
    monkeypatch.setattr(module, "LEAD", 4)
    crowd = Crowd(long, CPU)
    crowd.fit(POLICIES[:1], RATE, [2])
    assert torch.equal(crowd.active[0].losses(), alone(long, POLICIES[0], 2))


def test_reports_are_those_of_a_lone_training() -> None:
    heard: list[list[tuple[int, float]]] = [[], []]
    reports = [lambda *one: heard[0].append(one), lambda *one: heard[1].append(one)]
    rewards = BUSY.fit_many(POLICIES[:2], RATE, [1, 2], CPU, reports)
    for child, seed in enumerate((1, 2)):
        lone: list[tuple[int, float]] = []
        BUSY.fit(POLICIES[child], RATE, seed, replace(CPU, report=lambda *one, lone=lone: lone.append(one)))
        assert heard[child] == lone
        assert heard[child][-1] == (BUSY.steps, rewards[child])


@pytest.mark.parametrize("error", [ad.Stopped("hopeless"), FloatingPointError("nan"), RuntimeError("a bug")])
def test_a_report_ends_its_own_child_alone(error: Exception) -> None:
    heard: list[int] = []

    def ends(step: int, value: float) -> None:
        heard.append(step)
        raise error

    def goes_on(step: int, value: float) -> None:
        pass

    training = replace(TRAINING, evaluate_every=4)
    crowd = Crowd(training, CPU)
    rewards = crowd.fit(POLICIES, RATE, SEEDS, [goes_on, ends, goes_on])
    assert math.isnan(rewards[1])
    assert heard == [4]
    assert len(crowd.slots[None][1].losses()) == 4, "it is not trained on"
    assert [rewards[0], rewards[2]] == [training.fit(POLICIES[i], RATE, SEEDS[i], CPU).reward for i in (0, 2)]


def test_all_children_may_be_ended() -> None:
    def ends(step: int, value: float) -> None:
        raise ad.Stopped

    rewards = replace(TRAINING, evaluate_every=2).fit_many(POLICIES[:2], RATE, [0, 1], CPU, [ends, ends])
    assert all(map(math.isnan, rewards))


@pytest.mark.parametrize("where", ["loss", "weights"])
def test_a_child_that_diverges_leaves_the_others_alone(where: str) -> None:
    """In training, or so late that only its answers show it; and its report hears nothing of it."""
    heard: list[int] = []
    crowd = Crowd(replace(TRAINING, evaluate_every=5), CPU)
    crowd.fit(POLICIES[:2], RATE, [0, 1])
    sick, train = crowd.active[0], crowd.active[0].replay_step

    def step() -> None:
        train()
        if where == "weights" and len(sick.losses()) == 5:
            next(sick.model.parameters()).data.fill_(math.nan)
        elif where == "loss" and len(sick.losses()) == 2:
            sick._losses[1] = math.inf

    sick.replay_step = step
    rewards = crowd.fit(POLICIES[:2], RATE, [8, 9], [lambda *_: heard.append(0), lambda *_: heard.append(1)])
    assert math.isnan(rewards[0])
    assert rewards[1] == crowd.training.fit(POLICIES[1], RATE, 9, CPU).reward
    assert heard == [1, 1]
    assert len(sick.losses()) == 5
    sick.replay_step = train
    assert crowd.fit(POLICIES[:1], RATE, [8]) == [crowd.training.fit(POLICIES[0], RATE, 8, CPU).reward], "the next"


def test_the_slots_are_kept_for_the_next_job_and_serve_fewer() -> None:
    first = TRAINING.fit_many(POLICIES, RATE, SEEDS, CPU)
    (crowd,) = module._warm.values()
    slots = tuple(crowd.active)
    assert TRAINING.fit_many(POLICIES[1:2], RATE, SEEDS[1:2], CPU) == first[1:2]
    assert TRAINING.fit_many([*POLICIES, POLICIES[0]], RATE, [*SEEDS, 9], CPU)[:3] == first
    assert list(module._warm.values()) == [crowd]
    assert tuple(crowd.slots[None][:3]) == slots
    TRAINING.fit_many(POLICIES[:1], 0.6, [0], CPU)  # another rate needs no other slots
    assert list(module._warm.values()) == [crowd]
    replace(TRAINING, batch=TRAINING.batch + 1).fit_many(POLICIES[:1], RATE, [0], CPU)
    assert list(module._warm.values()) != [crowd]
    assert len(module._warm) == 1, "one training's slots are all that a GPU holds"


@pytest.mark.parametrize("rates", ["constant", "linear"])
def test_the_slots_serve_trainings_of_other_lengths(rates: Shape) -> None:
    """Longer, then shorter: schedules of learning and drop rates, readings and curves are those of the length."""
    short = replace(BUSY, rates=rates, evaluate_every=2)
    assert short.prepare_many(POLICIES, CPU)
    (crowd,) = module._warm.values()
    for training in (short, replace(short, steps=2 * short.steps + 1), replace(short, steps=3, evaluate_every=None)):
        assert not training.prepare_many(POLICIES, CPU), "nothing is compiled or captured again"
        curves: list[list[int]] = [[] for _ in POLICIES]
        reports = [lambda step, _, curve=curve: curve.append(step) for curve in curves]
        rewards = training.fit_many(POLICIES, RATE, SEEDS, CPU, reports)
        assert list(module._warm.values()) == [crowd]
        every = training.evaluate_every or training.steps
        assert curves == 3 * [[*range(every, training.steps, every), training.steps]]
        assert rewards == [training.fit(p, RATE, seed, CPU).reward for p, seed in zip(POLICIES, SEEDS, strict=True)]
        for slot, policy, seed in zip(crowd.active, POLICIES, SEEDS, strict=True):
            assert torch.equal(slot.losses(), alone(training, policy, seed))


def test_a_training_that_is_too_long_for_the_slots_gets_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "ROOM", 4)
    lengths = (3, 4, 5, 8, 3, 9)
    crowds = []
    for steps in lengths:
        training = replace(TRAINING, steps=steps)
        assert training.fit_many(POLICIES[:1], RATE, [0], CPU) == [training.fit(POLICIES[0], RATE, 0, CPU).reward]
        crowds += module._warm.values()
    assert [crowds.index(crowd) for crowd in crowds] == [0, 0, 2, 2, 2, 5]


def test_a_length_that_is_refused_is_refused_again() -> None:
    """And leaves the slots to the training that they had."""
    training = replace(TRAINING, schedule=Cosine(warmup=3))
    first = training.fit_many(POLICIES[:1], RATE, [0], CPU)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"warmup must lie in \[0, 3\), .* got 3"):
            replace(training, steps=3).fit_many(POLICIES[:1], RATE, [0], CPU)
    assert training.fit_many(POLICIES[:1], RATE, [0], CPU) == first


def test_the_rate_reaches_the_warm_slots() -> None:
    crowd = Crowd(BUSY, CPU)
    losses = []
    for rate in (0.0, 0.9, 0.0):
        crowd.fit(POLICIES[:1], rate, [0])
        losses.append(crowd.active[0].losses())
    assert torch.equal(losses[0], losses[2])
    assert not torch.equal(losses[0], losses[1])


def test_one_compiled_function_serves_all_slots_and_policies() -> None:
    counter = CompileCounterWithBackend("eager")
    crowd = Crowd(replace(TRAINING, mix="manifold_mixup", augmentation="standard"), CPU)
    compiled = torch.compile(crowd.training.loss, backend=counter, fullgraph=True)
    crowd._shared = replace(crowd._shared, loss=compiled)
    for seeds in (SEEDS, [1, 2, 3]):
        crowd.fit(POLICIES[:: 1 if seeds is SEEDS else -1], RATE, seeds)
    assert counter.frame_count == 1


def test_generators_are_left_alone_and_do_not_matter() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = BUSY.fit_many(POLICIES, RATE, SEEDS, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    assert BUSY.fit_many(POLICIES, RATE, SEEDS, CPU) == first


@pytest.mark.parametrize(
    ("seeds", "run", "message"),
    [([0], CPU, "3 policies, 1 seeds"), (SEEDS, replace(CPU, test=True), "has no test")],
)
def test_mistakes(seeds: list[int], run: Run, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TRAINING.fit_many(POLICIES, RATE, seeds, run)


def test_what_cannot_be_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    big = replace(TRAINING, augmentation="imagenet", fixres=FixRes(resolution=16, steps=2, batch=8))
    with pytest.raises(ValueError, match="FixRes trains one network at a time"):
        big.fit_many(POLICIES, RATE, SEEDS, CPU)
    semi = SemiSupervisedTraining(
        model="wrn-10-1", pictures=Pictures(name="digits", train=50, validation=50), resolution=20, steps=2, batch=8,
        optimizer=Sgd(lr=0.05), schedule=Cosine(), augmentation="standard", method=FixMatch(), ratio=2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="only supervised trainings"):
        semi.fit_many(POLICIES, RATE, SEEDS, CPU)
    with pytest.raises(ValueError, match="each child has a policy, a seed and a report"):
        TRAINING.fit_many(POLICIES, RATE, SEEDS, CPU, [])
    assert TRAINING.fit_many([], RATE, [], CPU) == []
    splits = TRAINING.load()
    monkeypatch.setattr(Pictures, "load", lambda self: replace(splits, validation=splits.validation[:0]))
    with pytest.raises(ValueError, match="no validation images"):
        TRAINING.fit_many(POLICIES, RATE, SEEDS, CPU)


def test_images_that_do_not_fit_the_gpu_are_trained_on_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One network after the other; one that its report ends, or that diverges, ends alone."""
    expected = TRAINING.fit_many(POLICIES, RATE, SEEDS, CPU)
    (crowd,) = map(weakref.ref, module._warm.values())
    fit = ImageTraining.fit

    def looks(*arguments: object) -> Scores:
        assert crowd() is None, "its memory is wanted"
        return fit(*arguments)

    monkeypatch.setattr(ImageTraining, "fit", looks)
    monkeypatch.setattr(slot_module, "fits", lambda images, device: False)
    reports = [lambda step, accuracy: None] * len(POLICIES)
    assert TRAINING.fit_many(POLICIES, RATE, SEEDS, CPU, None, reports) == expected, "the test images do not fit"
    assert TRAINING.fit_many(POLICIES, RATE, SEEDS, CPU) == expected

    def ends(step: int, reward: float) -> None:
        raise RuntimeError("enough")

    noted: list[int] = []
    rewards = TRAINING.fit_many(POLICIES[:2], RATE, SEEDS[:2], CPU, [ends, lambda step, reward: noted.append(step)])
    assert math.isnan(rewards[0])
    assert rewards[1] == expected[1]
    assert noted == [TRAINING.steps]
    wild = replace(TRAINING, optimizer=Sgd(lr=1e30))
    assert all(map(math.isnan, wild.fit_many(POLICIES[:1], RATE, [0], CPU)))
    monkeypatch.setattr(ImageTraining, "load", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        TRAINING.fit_many(POLICIES, RATE, SEEDS, CPU)


def test_a_lane_draws_its_own_numbers() -> None:
    lanes = [Lane(torch.device("cpu")) for _ in range(2)]
    drawn: dict[int, list[Tensor]] = {0: [], 1: []}
    steps = []
    for number, lane in enumerate(lanes):
        lane.seed(number)
        steps.append(lane.capture(lambda number=number: drawn[number].append(torch.rand(3))))
    for number in (0, 1, 1, 0, 0, 1):
        steps[number]()
        torch.rand(2)
    for number in (0, 1):
        torch.manual_seed(number)
        assert torch.equal(torch.cat(drawn[number]), torch.cat([torch.rand(3) for _ in range(3)]))


def test_a_flat_model_is_the_model() -> None:
    """The same values in the same memory formats, each tensor in a place of its own of the one that holds them all."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5)).to(memory_format=torch.channels_last)
    before = {name: (value.clone(), value.stride()) for name, value in model.state_dict().items()}
    flat = Flat(model).values
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name][0])
        assert value.stride() == before[name][1]
    followed = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    assert all(value.data_ptr() % 16 == flat.data_ptr() % 16 for value in followed)
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in model.parameters())
    flat.fill_(7.0)
    for value in followed:
        assert (value == 7.0).all(), "no two share a place, and none lies elsewhere"
        value.data.zero_()
    assert len(flat) < sum(value.numel() for value in followed) + ALIGNED * len(followed)


def test_a_flat_average_is_the_average() -> None:
    first, second = (torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)) for _ in range(2))
    second.load_state_dict(first.state_dict())
    average, flat = MovingAverage(first, 0.95), FlatAverage(Flat(second).values)
    shares = torch.tensor([share(0.95, step) for step in range(6)])
    for step in range(6):
        for model in (first, second):
            model(torch.arange(12.0).reshape(4, 3) ** step).square().sum().backward()
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.01)
        average.update()
        flat.follow(at(shares, torch.tensor([step])))
    own = [value.clone() for value in second.state_dict().values()]
    with average.applied(), flat.applied():
        assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
        assert not torch.equal(second[0].weight, own[0])
    assert all(map(torch.equal, second.state_dict().values(), own))
    flat.restart()
    with flat.applied():
        assert torch.equal(second[0].weight, own[0])


def test_batches_are_counted_where_the_count_is_used() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(2), torch.nn.BatchNorm2d(2, momentum=None))
    slot_module._uncount(model)
    model(torch.randn(4, 2, 3, 3))
    assert model[0].num_batches_tracked is None
    assert int(model[1].num_batches_tracked) == 1
