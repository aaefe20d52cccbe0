"""The image recipes: the paper's numbers, and those of the works it refers to, held fast; small versions that train."""

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import autodropout as ad
from autodropout.recipes import get
from autodropout.recipes import images as recipes
from autodropout.training import ImageTraining, Pictures, RmsProp, Run, Sgd, SlowCosine
from autodropout.training.semi_supervised import FixMatch, Uda
from tiny_images import tiny_imagenette

CIFAR = [
    recipes.cifar10_search,
    recipes.cifar10_final,
    recipes.cifar10_4k_search,
    recipes.cifar10_4k_uda,
    recipes.cifar10_4k_fixmatch,
]
IMAGENET = [
    recipes.resnet50_search,
    recipes.resnet50,
    recipes.efficientnet_b0_search,
    recipes.efficientnet,
    recipes.imagenet_10_uda,
    recipes.imagenet_10_fixmatch,
]


def epochs(training: ImageTraining, images: int) -> float:
    return training.steps * training.batch / images


def test_the_searches_are_the_papers() -> None:
    """Section "Search Configurations and Proxy Tasks"."""
    cifar, resnet, efficient = recipes.cifar10_search(), recipes.resnet50_search(), recipes.efficientnet_b0_search()
    assert (cifar.model, cifar.steps) == ("wrn-28-2", 32_000)
    assert (cifar.pictures.train, cifar.pictures.validation) == (45_000, 5_000)
    for training, model in ((resnet, "resnet50-half"), (efficient, "efficientnet-b0-half")):
        assert (training.model, training.steps, training.resolution) == (model, 16_000, 224)
        assert (training.pictures.train, training.pictures.validation) == (80_000, 5_000)
    few = recipes.cifar10_4k_search()
    assert (few.pictures.train, few.pictures.validation) == (3_600, 400)
    assert replace(few, pictures=cifar.pictures) == cifar


@pytest.mark.parametrize("name", ["cifar10", "cifar10-4k", "resnet50", "imagenet-10", "efficientnet-b0"])
def test_every_search_has_the_papers_rate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get(name).rate == 0.2
    monkeypatch.setattr(recipes, "SEARCH_RATE", 0.9)
    assert get(name).rate == 0.9, "it is said in one place"


def test_the_final_runs_are_the_papers() -> None:
    """Appendix "Image Recognition Models"; nothing is held out, so they can only be tested."""
    wide, resnet = recipes.cifar10_final(), recipes.resnet50()
    assert (wide.model, epochs(wide, 50_000)) == ("wrn-28-10", 200)
    assert (resnet.model, resnet.batch) == ("resnet50", 1024)
    assert epochs(resnet, 1_281_167) == pytest.approx(240, abs=0.001)
    assert [at / resnet.steps for at in resnet.schedule.at] == pytest.approx(
        [125 / 270, 200 / 270, 250 / 270], abs=1e-5
    )
    for training in (wide, resnet, recipes.efficientnet("b7")):
        assert training.pictures.validation == 0


@pytest.mark.parametrize(("size", "resolution"), [("b0", 224), ("b3", 300), ("b5", 456), ("b7", 600)])
def test_efficientnets_train_as_their_authors_did(size: str, resolution: int) -> None:
    training = recipes.efficientnet(size)
    assert epochs(training, 1_281_167) == pytest.approx(350, abs=0.01)
    assert (training.model, training.resolution) == (f"efficientnet-{size}", resolution)
    assert training.pictures.size == round(resolution * 256 / 224)
    assert training.optimizer == RmsProp(lr=0.256, momentum=0.9, memory=0.9, weight_decay=1e-5)
    assert training.schedule.factor == 0.97
    assert training.schedule.every == pytest.approx(2.4 * 1_281_167 / 4096, abs=0.5)
    assert (training.label_smoothing, training.average) == (0.1, 0.9999)


def test_uda_and_fixmatch_have_their_authors_values() -> None:
    uda, fixmatch = recipes.cifar10_4k_uda(), recipes.cifar10_4k_fixmatch()
    for training in (uda, fixmatch):
        assert (training.model, training.batch, training.ratio) == ("wrn-28-2", 64, 7)
        assert training.optimizer == Sgd(lr=0.03, momentum=0.9, weight_decay=5e-4, decay_all=training is uda)
        assert training.schedule == SlowCosine()
        assert training.pictures == Pictures(name="cifar10", train=4_000, validation=0)
    assert (uda.method, uda.steps, uda.average) == (Uda(temperature=0.4, threshold=0.8), 500_000, 0.9999)
    assert (fixmatch.method, fixmatch.steps, fixmatch.average) == (FixMatch(threshold=0.95), 2**20, 0.999)
    assert (uda.strong, fixmatch.strong) == ("uda", "fixmatch")


def test_uda_and_fixmatch_on_imagenet() -> None:
    """UDA's appendix and issue 5; FixMatch's code and issues 21 and 55: 3,000 epochs of 128,116 labelled images."""
    uda, fixmatch = recipes.imagenet_10_uda(), recipes.imagenet_10_fixmatch()
    assert (uda.model, uda.batch, uda.batch * uda.ratio, uda.steps) == ("resnet50", 512, 15_360, 40_000)
    assert uda.method == Uda(temperature=0.4, threshold=0.5, weight=20.0)
    assert uda.optimizer == Sgd(lr=0.3, weight_decay=1e-4, decay_all=False)
    factor = uda.schedule.factors(uda.steps)
    assert [factor(step) for step in (2221, 13332, 13333, 26666, 35555, 39999)] == pytest.approx(
        [1.0, 1.0, 0.1, 0.01, 0.001, 0.001]
    )
    assert (fixmatch.batch, fixmatch.batch * fixmatch.ratio) == (1024, 5120)
    assert fixmatch.method == FixMatch(threshold=0.7, weight=10.0)
    assert fixmatch.steps == pytest.approx(3_000 * 128_116 / 1024, rel=1e-4)
    assert [at / fixmatch.steps for at in fixmatch.schedule.at] == pytest.approx(
        [0.2, 0.4, 160 / 300, 200 / 300], abs=1e-5
    )
    assert fixmatch.optimizer == Sgd(lr=0.4, weight_decay=6e-4, decay_all=False)
    assert (fixmatch.average, fixmatch.strong) == (0.999, "imagenet_fixmatch")


def test_the_tables_other_rows() -> None:
    assert recipes.cifar10_final("randaugment", mix="cutmix").mix == "cutmix"
    fixed = recipes.resnet50(mix="cutmix", fixres=True)
    assert (fixed.resolution, fixed.fixres.resolution, fixed.fixres.lr) == (224, 320, 1e-3)
    assert fixed.fixres.steps * fixed.fixres.batch / 1_281_167 == pytest.approx(11, abs=0.001)
    assert fixed.pictures.size >= 320, "images must not be blown up"
    assert recipes.resnet50(rates="linear").rates == "linear"


@pytest.mark.parametrize("recipe", CIFAR + IMAGENET, ids=lambda recipe: recipe.__name__)
def test_a_recipe_travels(recipe: Callable[[], ImageTraining]) -> None:
    training = recipe()
    assert pickle.loads(pickle.dumps(training)) == training


def test_every_proxy_has_the_groups_of_the_full_model() -> None:
    """A policy found on a proxy fits the final model."""
    assert recipes.cifar10_search().space() == ad.ConvSpace(groups=((32, 32), (16, 16), (8, 8)), resolution=(32, 32))
    resnet = recipes.resnet50_search().space()
    assert resnet.groups == ((56, 56), (28, 28), (14, 14), (7, 7))
    assert recipes.resnet50().space() == resnet
    assert len(recipes.efficientnet_b0_search().space().groups) == len(recipes.efficientnet("b0").space().groups) == 5


@pytest.mark.parametrize("recipe", IMAGENET, ids=lambda recipe: recipe.__name__)
def test_small_versions_train_on_image_files(recipe: Callable[[], ImageTraining], tmp_path: Path) -> None:
    training = recipe()
    folder = tiny_imagenette(tmp_path, train=8)
    small = replace(training, pictures=replace(training.pictures, folder=folder)).smoke()
    assert type(small) is type(training)
    assert small.steps * small.batch <= 100
    policy = small.space().sample(seed=0)
    assert 0.0 <= small.fit(policy, 0.2, seed=0, run=Run(device="cpu")).reward <= 1.0


@pytest.mark.slow
@pytest.mark.skipif("AUTODROPOUT_DATA" not in os.environ, reason="needs CIFAR-10: set AUTODROPOUT_DATA")
@pytest.mark.parametrize("recipe", CIFAR, ids=lambda recipe: recipe.__name__)
def test_small_versions_train_on_cifar10(recipe: Callable[[], ImageTraining]) -> None:
    small = recipe().smoke()
    policy = small.space().sample(seed=0)
    assert 0.0 <= small.fit(policy, 0.2, seed=0, run=Run(device="cpu")).reward <= 1.0
