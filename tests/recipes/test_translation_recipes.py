"""The translation recipes: the paper's numbers, and all of them from files to a score."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autodropout.data.folders import MissingData
from autodropout.layers import baseline
from autodropout.recipes.translation import RATE, iwslt14_de_en, multi30k_de_en, wmt14_en_fr
from autodropout.spaces import TRANSFORMER_SITES
from autodropout.training.run import Run
from autodropout.training.translation import TranslationTraining

RECIPES = [iwslt14_de_en, wmt14_en_fr, multi30k_de_en]


@pytest.mark.parametrize(
    ("recipe", "pieces", "longest", "steps", "parameters"),
    [(iwslt14_de_en, 10_000, 360, 15_000, 49_223_680), (wmt14_en_fr, 32_000, 200, 35_000, 60_487_680)],
)
def test_the_numbers_of_the_paper(
    recipe: Callable[[], TranslationTraining], pieces: int, longest: int, steps: int, parameters: int
) -> None:
    training = recipe()
    assert (training.pieces, training.longest, training.steps) == (pieces, longest, steps)
    assert (training.warmup, training.lr) == (4_000, 1.6e-3)
    with torch.device("meta"):
        model = training.build()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert RATE == 0.1


def test_the_space_is_that_of_a_transformer() -> None:
    space = multi30k_de_en().space()
    assert sorted(space.sites) == sorted(TRANSFORMER_SITES)


def write_text(folder: Path, names: dict[str, tuple[str, str]]) -> None:
    """Made-up sentences; the other language is the first, its words spelled backwards."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 5))) for _ in range(40)]
    for part, count in (("train", 250), ("valid", 30), ("test", 30)):
        lines = [draw.choices(words, k=draw.randint(2, 9)) for _ in range(count)]
        for name, turned in zip(names[part], (False, True), strict=True):
            text = "".join(" ".join(word[::-1] if turned else word for word in line) + "\n" for line in lines)
            (folder / name).write_text(text)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_from_files_to_a_score(recipe: Callable[[], TranslationTraining], tmp_path: Path) -> None:
    training = recipe()
    languages = training.source, training.target
    names = {part: tuple(f"{part}.{language}" for language in languages) for part in ("train", "valid", "test")}
    write_text(tmp_path / training.dataset, names)
    if training.dataset == "multi30k":
        folder = tmp_path / "multi30k"
        for part in ("val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr"):
            for language in ("de", "en", "fr"):
                (folder / f"{part}.{language}").write_text("a line\n" * 3)
        (folder / "train.fr").write_text((folder / "train.en").read_text())
    own = {"dataset": training.dataset, "lowercase": training.lowercase}  # the smoke size may stand in for them
    small = replace(training.smoke(), **own, pieces=60, data=tmp_path)
    scores = small.fit(baseline("dropout"), RATE, 0, Run(device="cpu", test=True))
    assert 0.0 <= scores.reward <= 1.0
    assert scores.metrics["validation_loss"] > 0
    assert 0.0 <= scores.metrics["test_bleu"] <= 100.0


@pytest.mark.slow
def test_captions() -> None:
    try:
        scores = multi30k_de_en().smoke().fit(baseline("dropout"), RATE, 0, Run(device="cpu"))
    except MissingData:
        pytest.skip("Multi30k is not there")
    assert scores.metrics["validation_perplexity"] < 2_000  # of 10,000 pieces
