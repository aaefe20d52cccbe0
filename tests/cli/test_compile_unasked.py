"""What is compiled without being asked for: long trainings of ConvNets, alone on a GPU."""

from pathlib import Path

import pytest
import torch

from autodropout import recipes
from autodropout.cli.training import Place, compiles_unasked

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("name", ["cifar10", "cifar10-4k", "resnet50"])
def test_the_papers_convnets_are(name: str) -> None:
    recipe = recipes.get(name)
    assert compiles_unasked(recipe.final, GPU)
    assert compiles_unasked(recipe.proxy, GPU)


def test_what_would_not_pay_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    final = recipes.get("cifar10").final
    assert not compiles_unasked(final, torch.device("cpu"))
    assert not compiles_unasked(final.smoke(), GPU)
    assert not compiles_unasked(recipes.get("digits").final, GPU)
    assert not compiles_unasked(recipes.get("ptb").final, GPU)
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert not compiles_unasked(final, GPU)


@pytest.mark.parametrize(("asked", "compiled"), [(True, True), (False, False), (None, False)])
def test_whoever_asks_gets_it(asked: bool | None, compiled: bool, tmp_path: Path) -> None:
    place = Place(tmp_path, None, "cpu", False, asked)
    assert place.run(recipes.get("digits").final).compile == compiled
