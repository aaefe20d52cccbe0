"""Crowds on a GPU: a captured child is the eager one, neighbours do not matter, nothing grows, nothing is redone."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import pytest
import torch
from cuda_tools import MARKS, no_waiting
from cuda_tools import TRAINING as SMALL
from torch import Tensor
from torch._dynamo.utils import counters

import autodropout as ad
from autodropout.attach.schedule import Shape
from autodropout.data import Labelled, Splits
from autodropout.training import Cosine, ImageTraining, Pictures, RmsProp, Run, Sgd
from autodropout.training.graphed import Lane
from autodropout.training.image_crowd import Crowd
from autodropout.training.image_learner import Learner
from autodropout.training.run import Regularizer
from two_samples import LIMIT, student_t

pytestmark = MARKS
TRAINING = replace(SMALL, steps=400, augmentation="standard")
POLICIES = [TRAINING.space().sample(seed=seed) for seed in range(4)]
SEEDS = [3, 1, 4, 1]
RATE = 0.2
GPU = Run(device="cuda")
FAST = Run(device="cuda", precision="bfloat16", compile=True)
STEPS = 20
CALM = 3
"""First steps before rounding and the order of sums in cuDNN, which no seed fixes, are seen in a child's losses."""


def alone(training: ImageTraining, regularizer: Regularizer, seed: int, run: Run = GPU, rate: float = RATE) -> Tensor:
    """The losses of a lone child's first steps, eagerly."""
    with ExitStack() as closing:
        learner = Learner(training, training.load(), regularizer, rate, seed, run, closing)
        return torch.stack([learner.step(step)["train_loss"].detach() for step in range(STEPS)]).cpu()


def alike(losses: Tensor, others: Tensor, run: Run = GPU) -> bool:
    """Whether two children were one; after the first steps, as near as such children stay to each other."""
    calm = 1e-2 if run is FAST else 2e-3
    return torch.allclose(losses[:CALM], others[:CALM], atol=calm, rtol=0) and torch.allclose(
        losses, others, atol=0.1, rtol=0
    )


def begun(training: ImageTraining = TRAINING, run: Run = GPU, children: int = 4) -> Crowd:
    crowd = Crowd(training, run)
    crowd.begin(POLICIES[:children], RATE, SEEDS[:children])
    return crowd


def test_captured_steps_serve_trainings_of_other_lengths() -> None:
    crowd = begun()
    for steps in (STEPS, 2 * TRAINING.steps):
        training = replace(TRAINING, steps=steps)
        crowd.serve(training)
        crowd.begin(POLICIES, RATE, SEEDS)
        crowd.advance(STEPS)
        for slot, policy, seed in zip(crowd.active, POLICIES, SEEDS, strict=True):
            assert alike(slot.losses(), alone(training, policy, seed))


def test_a_lane_draws_in_graphs_what_manual_seed_gives() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    lanes = [Lane(device) for _ in range(2)]
    drawn = [torch.zeros(5, device=device) for _ in lanes]

    def work(out: Tensor) -> None:
        out.copy_(torch.rand(5, device=device) + torch.randint(9, (5,), device=device))

    steps = [lane.capture(partial(work, out)) for lane, out in zip(lanes, drawn, strict=True)]
    for number, lane in enumerate(lanes):
        lane.seed(number)
    found: list[list[Tensor]] = [[], []]
    for number in (0, 1, 1, 0, 0, 1):
        steps[number]()
        torch.rand(3, device=device)  # whoever else draws
        lanes[number].wait()
        found[number].append(drawn[number].clone())
    for number in (0, 1):
        torch.manual_seed(number)
        eager = torch.zeros(5, device=device)
        for one in found[number]:
            work(eager)
            assert torch.equal(one, eager)


@pytest.mark.parametrize(
    "training",
    [
        TRAINING,
        replace(TRAINING, augmentation="randaugment", mix="cutmix", rates="linear"),
        replace(TRAINING, mix="manifold_mixup", optimizer=RmsProp(lr=0.002)),
    ],
    ids=["plain", "cutmix", "manifold_mixup"],
)
def test_replays_are_the_eager_steps(training: ImageTraining) -> None:
    """As near as two eager runs are to each other, on a backend whose sums have no fixed order."""
    crowd = begun(training)
    crowd.advance(STEPS)
    for slot, policy, seed in zip(crowd.slots[None], POLICIES, SEEDS, strict=True):
        first, second = (alone(training, policy, seed) for _ in range(2))
        noise = (first - second).abs().max().item()
        assert (slot.losses() - first).abs().max().item() <= max(20 * noise, 2e-3)
        assert slot.losses()[0].item() == pytest.approx(first[0].item(), abs=1e-4)


@pytest.mark.parametrize("run", [GPU, FAST], ids=["eager", "compiled"])
@pytest.mark.parametrize("shape", ["constant", "linear"])
def test_baselines_beside_policies_are_the_eager_steps(run: Run, shape: Shape) -> None:
    """Each at its own rate, also at one that it was not captured at; and at rate 0 they do nothing.

    Images are as they are: compiled code would draw other crops. It also rounds elsewhere, which grows with the steps.
    """
    training = replace(TRAINING, rates=shape, augmentation="none")
    regularizers = [ad.baseline("dropout"), POLICIES[0], ad.baseline("dropblock", block=3), ad.baseline("dropout")]
    rates = [0.3, 0.4, 0.1, 0.0]
    crowd = Crowd(training, run)
    crowd.begin(regularizers, 0.9, [7, 8, 9, 10])
    crowd.advance(STEPS)
    crowd.begin(regularizers, rates, SEEDS)
    crowd.advance(STEPS)
    losses = [slot.losses() for slot in crowd.active]
    eager = replace(run, compile=False)
    others = [alone(training, *child) for child in zip(regularizers, SEEDS, [eager] * 4, rates, strict=True)]
    assert all(alike(*pair, run) for pair in zip(losses, others, strict=True))
    assert alike(losses[3], alone(training, None, SEEDS[3], eager), run)


def test_test_images_are_judged_in_the_end() -> None:
    """By graphs that are captured before the first step, of a crowd that has trained without them before."""
    training = replace(TRAINING, steps=100)
    training.fit_many(POLICIES[:2], RATE, [5, 6], GPU)
    heard: dict[int, float] = {}
    reports = [lambda step, value, child=child: heard.update({child: value}) for child in range(2)]
    rewards = training.fit_many([POLICIES[0], None], RATE, [0, 1], GPU, None, reports)
    for child, regularizer in enumerate((POLICIES[0], None)):
        alone = training.fit(regularizer, RATE, child, replace(GPU, test=True))
        assert rewards[child] == pytest.approx(alone.reward, abs=0.1)
        assert heard[child] == pytest.approx(alone.metrics["test_accuracy"], abs=0.1)


def test_scores_of_eight_seeds_are_those_of_children_alone() -> None:
    """In the end, compiled and rounded against eager: one distribution (Student's t, p = 0.001)."""
    training = replace(TRAINING, steps=150, optimizer=Sgd(lr=0.1), augmentation="none")
    alone = [training.fit(POLICIES[0], 0.1, seed, GPU).reward for seed in range(8)]
    together = Crowd(training, FAST).fit([POLICIES[0]] * 8, 0.1, range(8))
    assert min(alone) > 0.8
    assert student_t(together, alone) < LIMIT


@pytest.mark.parametrize("run", [GPU, FAST], ids=["eager", "compiled"])
def test_parallel_streams_are_one_after_another(run: Run) -> None:
    crowd = begun(run=run)
    crowd.advance(STEPS)
    together = [slot.losses() for slot in crowd.slots[None]]
    crowd.begin(POLICIES, RATE, SEEDS)
    for slot in crowd.slots[None]:
        slot.choose_images(0)
        for _ in range(STEPS):
            slot.replay_step()
        slot.lane.wait()
    for slot, losses in zip(crowd.slots[None], together, strict=True):
        assert alike(slot.losses(), losses, run)
    crowd.begin(POLICIES[:1], RATE, SEEDS[:1])
    crowd.advance(STEPS)
    assert alike(crowd.slots[None][0].losses(), together[0], run)


def test_no_step_waits_for_the_device() -> None:
    crowd = begun()
    crowd.advance(1)
    with no_waiting():
        crowd.advance(TRAINING.steps - 1)  # new images are chosen on the way
    assert all(map(torch.isfinite, (slot.losses().sum() for slot in crowd.slots[None])))


def test_memory_does_not_grow() -> None:
    crowd = begun()
    crowd.advance(20)
    crowd.judge()
    crowd.wait()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(3):
        crowd.advance(100)
        crowd.judge()
    crowd.wait()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


def test_a_second_job_compiles_and_captures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[object] = []
    graph = torch.cuda.graph

    def noted(*args, **options):
        captured.append(args)
        return graph(*args, **options)

    monkeypatch.setattr(torch.cuda, "graph", noted)
    counters.clear()
    crowd = begun(run=FAST)
    crowd.advance(2)
    compiled = counters["stats"]["unique_graphs"]
    assert compiled == 3, "the loss, the noise and the average, for four slots"
    assert len(captured) == 8, "a step and a judgement for each slot"
    crowd.fit(POLICIES[::-1], 0.4, [7, 8, 9, 10])
    crowd.fit(POLICIES[:2], 0.1, [7, 8])
    assert counters["stats"]["unique_graphs"] == compiled
    assert len(captured) == 8


def test_policies_and_rates_reach_captured_graphs() -> None:
    """One graph, by turns under policies and rates: each time it is the eager child of these, and no other.

    Images are as they are, so that nothing else is drawn: on a CPU, with this seed, no two of these children are nearer
    to each other than 0.03.
    """
    training = replace(TRAINING, augmentation="none")
    crowd = begun(training)
    children = [(0, 0.0), (1, 0.0), (0, 0.5), (1, 0.5)]
    losses, eager = [], []
    for number, rate in children:
        crowd.begin([POLICIES[number]], rate, [4])
        crowd.advance(STEPS)
        losses.append(crowd.active[0].losses())
        eager.append(alone(training, POLICIES[number], 4, rate=rate))
    assert all(map(alike, losses, eager))
    assert alike(losses[0], losses[1])
    apart = [(one[:CALM] - other[:CALM]).abs().max() for one, other in combinations(losses[1:], 2)]
    assert min(apart) > 1e-2, "five times what counts as alike"


def test_one_child_ends_and_the_others_go_on() -> None:
    def ends(step: int, value: float) -> None:
        raise ad.Stopped

    training = replace(TRAINING, steps=100, evaluate_every=40)
    rewards = training.fit_many(POLICIES[:2], RATE, [0, 1], GPU, [ends, lambda step, value: None])
    assert rewards[0] != rewards[0]
    assert rewards[1] == pytest.approx(training.fit(POLICIES[1], RATE, 1, GPU).reward, abs=0.1)


@dataclass(frozen=True, kw_only=True)
class OnNoise(ImageTraining):
    """Random images in colour, which the large networks want."""

    def load(self) -> Splits:
        draw = torch.Generator().manual_seed(0)
        images = torch.randint(256, (100, 3, 80, 80), dtype=torch.uint8, generator=draw)
        some = Labelled(images, torch.randint(10, (100,), generator=draw))
        return Splits(some, some[:50], some[:0])


@pytest.mark.parametrize("model", ["resnet50-half", "efficientnet-b0-half"])
def test_the_large_networks_are_crowds_of_one(model: str) -> None:
    """Compiled and captured, as a search trains them; again under another policy, with nothing done anew."""
    training = OnNoise(
        model=model, pictures=Pictures(name="imagenet", train=100, validation=50), resolution=64, steps=6, batch=8,
        optimizer=RmsProp(lr=0.001), schedule=Cosine(), augmentation="imagenet", average=0.9,
    )  # fmt: skip
    crowd = Crowd(training, FAST)
    crowd.fit([training.space().sample(seed=0)], RATE, [0])
    before = dict(counters["stats"])
    assert crowd.slots[None][0].losses().isfinite().all()
    (reward,) = crowd.fit([training.space().sample(seed=1)], RATE, [1])
    assert 0.0 <= reward <= 1.0
    assert dict(counters["stats"]) == before
