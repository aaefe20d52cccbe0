"""Training on images in memory: it learns, repeats itself to the bit, reports, and says so when it diverges."""

import pytest
import torch
from torch import Tensor, nn

import autodropout as ad
from autodropout.data import Labelled
from autodropout.training import Sgd, accuracy, threads, train

HOW = Sgd(epochs=4, batch=16, lr=0.1)


def bars(count: int, seed: int) -> Labelled:
    """Noisy images of 10x10 with a horizontal (0) or a vertical (1) bar."""
    draw = torch.Generator().manual_seed(seed)
    images = 0.3 * torch.randn(count, 1, 10, 10, generator=draw)
    labels = torch.arange(count) % 2
    for image, label, place in zip(images, labels, torch.randint(10, (count,), generator=draw), strict=True):
        image[0].select(int(label), int(place)).add_(1.0)
    return Labelled(images, labels)


TRAIN, HELD_OUT = bars(72, seed=0), bars(100, seed=1)  # 72: the last batch of an epoch is a smaller one


def network() -> nn.Module:
    torch.manual_seed(0)
    features = nn.Conv2d(1, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveMaxPool2d(1)
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(8, 2))


def score(seed: int = 0, policy_seed: int | None = None, how: Sgd = HOW) -> tuple[float, Tensor]:
    """The score, and the weights that training came to."""
    model = network()
    if policy_seed is not None:
        policy = ad.space(model, TRAIN.images[:1]).sample(policy_seed)
        ad.attach(model, policy, rate=0.5, example=TRAIN.images[:1])
    value = train(model, TRAIN, HELD_OUT, how, seed=seed)
    return value, nn.utils.parameters_to_vector(model.parameters()).detach()


def test_it_learns() -> None:
    untrained = accuracy(network(), HELD_OUT)
    assert 0.2 < untrained < 0.8
    assert score(how=Sgd(epochs=10, batch=16, lr=0.05))[0] > 0.95


def test_policy_and_seed_decide_everything() -> None:
    value, weights = score(seed=3, policy_seed=0)
    torch.rand(7)  # whatever else drew numbers before
    again, same = score(seed=3, policy_seed=0)
    assert value == again
    assert torch.equal(weights, same)
    assert not torch.equal(weights, score(seed=4, policy_seed=0)[1])
    assert not torch.equal(weights, score(seed=3, policy_seed=2)[1])
    assert not torch.equal(weights, score(seed=3)[1])


def test_the_order_of_the_images_does_not_depend_on_what_the_masks_draw() -> None:
    def order(greedy: bool) -> list[Tensor]:
        model, seen = network(), []

        def look(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            if module.training:
                seen.append(args[0])
                torch.rand(100 if greedy else 0)

        model.register_forward_pre_hook(look)
        train(model, TRAIN, HELD_OUT, HOW, seed=5)
        return seen

    plain, greedy = order(greedy=False), order(greedy=True)
    assert len(plain) == 4 * 5
    assert all(map(torch.equal, plain, greedy))
    first_epoch, second_epoch = torch.cat(plain[:5]), torch.cat(plain[5:10])
    assert len(first_epoch.unique(dim=0)) == len(TRAIN), "an epoch shows every image once"
    assert not torch.equal(first_epoch, second_epoch)


def test_reports() -> None:
    def reported(every: int) -> list[tuple[int, float]]:
        heard: list[tuple[int, float]] = []
        result = train(
            network(), TRAIN, HELD_OUT, HOW, seed=0, report=lambda *one: heard.append(one), report_every=every
        )
        assert heard[-1] == (HOW.epochs, result)
        return heard

    whole = reported(every=1)
    assert [epoch for epoch, _ in whole] == [1, 2, 3, 4]
    assert reported(every=3) == [whole[2], whole[3]], "judging changes nothing in the training"
    assert score()[0] == whole[-1][1]


def test_what_a_report_raises_ends_the_training() -> None:
    class Enough(Exception):
        pass

    def report(epoch: int, value: float) -> None:
        if epoch == 2:
            raise Enough

    with pytest.raises(Enough):
        train(network(), TRAIN, HELD_OUT, HOW, seed=0, report=report)


def test_divergence() -> None:
    with pytest.raises(FloatingPointError, match=r"the loss is (nan|inf) in epoch"):
        train(network(), TRAIN, HELD_OUT, Sgd(epochs=4, batch=16, lr=1e20), seed=0)


def test_a_last_step_into_nan_is_divergence_too() -> None:
    """One step at a finite loss, then weights that are not finite: only what the model says afterwards shows it."""
    with pytest.raises(FloatingPointError, match="logits"):
        train(network(), TRAIN, HELD_OUT, Sgd(epochs=1, batch=72, lr=1e38, weight_decay=0.0), seed=0)


def test_accuracy_counts_over_batches() -> None:
    class Names(nn.Module):
        """Names the class by the first pixel."""

        def forward(self, images: Tensor) -> Tensor:
            return nn.functional.one_hot(images[:, 0, 0, 0].long(), 3).float()

    images, labels = torch.zeros(450, 1, 1, 1), torch.zeros(450, dtype=torch.int64)
    labels[::3] = 2  # 150 of the 450, in every batch some
    assert accuracy(Names(), Labelled(images, labels)) == 300 / 450


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()

    def fail_on(count: int) -> None:
        with threads(count):
            raise RuntimeError(f"failed on {torch.get_num_threads()} threads")

    with pytest.raises(RuntimeError, match=f"failed on {before + 1} threads"):
        fail_on(before + 1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [({"epochs": 0}, "epochs .* got 0"), ({"batch": 0}, "batch .* got 0"), ({"lr": 0.0}, "lr .* got 0.0")],
)
def test_mistakes(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sgd(**({"epochs": 1, "batch": 1, "lr": 0.1} | options))


def test_reporting_never_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"report_every .* got 0"):
        train(network(), TRAIN, HELD_OUT, HOW, seed=0, report_every=0)
