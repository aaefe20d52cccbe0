"""Translation on a CUDA device: trained in bfloat16, compiled for all shapes at once; the CPU's translations."""

from dataclasses import replace

import pytest
import torch
from translation_tools import TOY, Words, pairs, toy

from autodropout.data import Translation
from autodropout.training.run import Run
from autodropout.training.translation_scores import mean_loss, translate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),  # advice, on every compilation
]

LONG = replace(TOY, longest=40, steps=40, evaluate_every=20)


def text() -> Translation:
    """Lengths of many kinds, so that batches have many shapes."""
    return Translation(pairs(200, 0, longest=30), pairs(20, 1), pairs(20, 2), Words(), 0)


@pytest.mark.parametrize("compiled", [False, True])
def test_training_in_bfloat16_goes_as_on_the_cpu(compiled: bool) -> None:
    policy = TOY.space().sample(seed=0)
    here = LONG.fit_on(text(), policy, 0.1, 0, Run(device="cuda", precision="bfloat16", compile=compiled))
    there = LONG.fit_on(text(), policy, 0.1, 0, Run(device="cpu"))
    for name in ("train_loss", "validation_loss"):
        assert here.metrics[name] == pytest.approx(there.metrics[name], rel=0.1)  # other masks, other rounding


def test_all_shapes_are_compiled_at_once() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    LONG.fit_on(text(), None, 0.0, 0, Run(device="cuda", compile=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_losses_and_translations_are_the_cpus() -> None:
    judged = toy(judged=30).validation
    torch.manual_seed(0)
    model = TOY.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # opinions that differ from source to source
    results = []
    for device in ("cpu", "cuda"):
        run = Run(device=device)
        model.to(device)
        results.append((mean_loss(model, judged, 80, run), translate(model, judged, Words(), TOY.beam, 80, run)))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    assert results[0][1] == results[1][1]
