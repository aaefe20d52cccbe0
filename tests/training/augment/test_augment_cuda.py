"""On a CUDA device: the CPU's images, no wait for the device, and captured graphs that draw anew. `make test-gpu`."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autodropout.models import wide_resnet
from autodropout.training.augment import AUGMENTATIONS, CIFAR_MEAN, CIFAR_STD, MIXES, Augment, augmentation, mixing
from autodropout.training.augment.operations import NAMES, apply

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),  # advice, on every compilation
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),  # torch captures one to prepare its pool
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),  # it is a prototype
]
DRAWING = tuple(name for name in AUGMENTATIONS if name not in ("none", "imagenet_eval"))


@pytest.fixture
def no_waiting() -> Iterator[Callable[[], None]]:
    """Call it, and from then on waiting for the device is an error."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


def pipeline(name: str) -> Augment:
    return augmentation(name, CIFAR_MEAN, CIFAR_STD, size=24 if name.startswith("imagenet") else None).cuda()


def photographs(count: int) -> Tensor:
    return torch.randint(256, (count, 3, 32, 36), dtype=torch.uint8, device="cuda")


def replayed(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The function's kernels as a graph; each call gives a copy of what they wrote."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written = function()
    # torch sets a graph's seed on the stream of the capture, and once more for a replay, on the stream of that: on a
    # busy GPU the first may come last.
    torch.cuda.synchronize()

    def replay() -> Tensor:
        graph.replay()
        return written.clone()

    return replay


def test_operations_give_the_cpus_bytes() -> None:
    """To one level: fused multiply-adds round once where the CPU rounds twice. Moves may differ at ties."""
    count = 8 * len(NAMES)
    images = torch.randint(256, (count, 3, 33, 47), dtype=torch.uint8)
    operation, magnitude = torch.arange(count) % len(NAMES), torch.rand(count) * 0.9
    centre, fill = torch.rand(count, 2), torch.full((3, 1, 1), 9, dtype=torch.uint8)
    here = apply(images, operation, magnitude, centre, fill)
    there = apply(images.cuda(), operation.cuda(), magnitude.cuda(), centre.cuda(), fill.cuda()).cpu()
    assert ((here.int() - there.int()).abs() > 1).float().mean() < 1e-3
    assert (here != there).float().mean() < 0.01


@pytest.mark.parametrize("name", ["none", "imagenet_eval"])
def test_testing_gives_the_cpus_images(name: str) -> None:
    images = photographs(5)
    there = pipeline(name)(images).cpu()
    torch.testing.assert_close(there, pipeline(name).cpu()(images.cpu()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_pipelines_do_not_wait(name: str, no_waiting: Callable[[], None]) -> None:
    augment, images = pipeline(name), photographs(16)
    augment(images)
    torch.cuda.synchronize()
    no_waiting()
    augment(images)


@pytest.mark.parametrize("name", DRAWING)
def test_graphs_draw_anew(name: str) -> None:
    augment, images = pipeline(name), photographs(16)
    replay = replayed(lambda: augment(images))
    torch.cuda.manual_seed(1)
    first, second = replay(), replay()
    assert not torch.equal(first, second)
    torch.cuda.manual_seed(1)
    assert torch.equal(replay(), first)


@pytest.mark.parametrize("name", ["standard", "randaugment", "imagenet"])
def test_compiled_and_captured(name: str) -> None:
    """Mean and deviation as eager's within 0.07, five deviations of what two eager runs differ by (p < 1e-6)."""
    augment, images = pipeline(name), photographs(512)
    compiled = torch.compile(augment, fullgraph=True)
    replay = replayed(lambda: compiled(images))
    eager, first, second = augment(images), replay(), replay()
    assert not torch.equal(first, second)
    for statistic in (torch.mean, torch.std):
        assert abs(statistic(first) - statistic(eager)) < 0.07


@pytest.mark.parametrize("name", MIXES)
def test_a_mixed_training_step_does_not_wait_and_is_captured(name: str, no_waiting: Callable[[], None]) -> None:
    model = wide_resnet(10, 1, 16).cuda()
    images, labels = torch.randn(16, 3, 20, 20, device="cuda"), torch.arange(16, device="cuda")
    mix = mixing(name, 16, model=model, example=images, setting="imagenet")

    def step() -> Tensor:
        logits, target = mix(model, images, labels)
        loss = F.cross_entropy(logits, target)
        model.zero_grad(set_to_none=False)
        loss.backward()
        return loss.detach()

    step()
    torch.cuda.synchronize()
    no_waiting()
    step()
    torch.cuda.set_sync_debug_mode("default")
    replay = replayed(step)
    losses = {replay().item() for _ in range(5)}
    assert all(loss < 20 for loss in losses)
    assert len(losses) > 1 or name == "none"
